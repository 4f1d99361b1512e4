"""Check what no other tool checks about the workspace: manifests, ranges, changelogs, text, links.

Reads files only, never an environment, so it runs before anything is installed. uv itself accepts
a range between members that the member's version does not meet; here it is a violation.

    python tools/check_workspace.py [ROOT]

Prints one line per violation. Exit code 0: none; 1: some; 2: this is not a workspace.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from changelog import find_section, odd_headings
from check_links import check_links
from check_requirements import check_requirements
from check_text import check_fault_table, check_tracked_text, tracked_files
from workspace import Member, Workspace, WorkspaceError, load_workspace

LICENCE = "Apache-2.0"
"""Every member's licence; a member may add others by AND, and then carries their texts."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def check_root_lists_members(workspace: Workspace) -> Iterator[str]:
    """Every member is a bare dependency of the root, and its source is the workspace."""
    dependencies = workspace.manifest.get("project", {}).get("dependencies", [])
    sources = workspace.manifest.get("tool", {}).get("uv", {}).get("sources", {})
    for member in workspace.members:
        if member.name not in dependencies:
            yield f"pyproject.toml: project.dependencies lacks the bare name {member.name}"
        if sources.get(member.name) != {"workspace": True}:
            yield f"pyproject.toml: tool.uv.sources.{member.name} is not {{ workspace = true }}"


def check_requires_python(workspace: Workspace) -> Iterator[str]:
    """Every member's requires-python equals the root's."""
    wanted = workspace.manifest.get("project", {}).get("requires-python")
    for member in workspace.members:
        found = member.project.get("requires-python")
        if wanted is None or found != wanted:
            yield f"{member.name}: requires-python is {found!r}, the root's is {wanted!r}"


def check_versions(workspace: Workspace) -> Iterator[str]:
    """Every version is static and parses."""
    for member in workspace.members:
        if "version" in member.project.get("dynamic", []):
            yield f"{member.name}: the version is dynamic; write it into pyproject.toml"
        elif member.version is None:
            found = member.project.get("version")
            yield f"{member.name}: project.version is {found!r}, expected a version such as '0.1.0'"


def check_package_files(workspace: Workspace) -> Iterator[str]:
    """Every member has a README, the licence, its types and a changelog of its version."""
    licence_text = _read_or_none(workspace.root / "LICENSE")
    if licence_text is None:
        yield "LICENSE: missing at the root"
    for member in workspace.members:
        readme = member.project.get("readme")
        if not isinstance(readme, str) or not (member.folder / readme).is_file():
            yield f"{member.name}: project.readme is {readme!r}, expected a file of the package"
        elif not (member.folder / readme).read_text(encoding="utf-8").strip():
            yield f"{member.name}: {readme} is empty"
        licence = member.project.get("license")
        terms = str(licence).split(" AND ")
        if terms[0] != LICENCE:
            yield f"{member.name}: project.license is {licence!r}, expected {LICENCE!r}"
        texts = ["LICENSE", *(f"LICENSES/{term}.txt" for term in terms[1:])]
        for text in texts[1:]:
            if not (member.folder / text).is_file():
                yield f"{member.name}: {text} is missing"
        yield from _check_licence_files(member, texts)
        if licence_text is not None and _read_or_none(member.folder / "LICENSE") != licence_text:
            yield f"{member.name}: LICENSE is missing or differs from the root's; copy it"
        if not (member.folder / "src" / member.import_name / "py.typed").is_file():
            yield f"{member.name}: src/{member.import_name}/py.typed is missing"
        yield from _check_changelog(member)


def _check_licence_files(member: Member, texts: list[str]) -> Iterator[str]:
    """What `license-files` names is there, and every licence's text is among it."""
    patterns = member.project.get("license-files")
    if not isinstance(patterns, list) or not patterns:
        yield f"{member.name}: project.license-files is {patterns!r}, expected {texts}"
        return
    named = set()
    for pattern in patterns:
        try:
            found = {file.relative_to(member.folder) for file in member.folder.glob(str(pattern))}
        except (ValueError, NotImplementedError):  # empty, or not relative
            found = set()
        if not found:
            yield f"{member.name}: project.license-files names {pattern!r}, which matches no file"
        named |= found
    for text in texts:
        if (member.folder / text).is_file() and Path(text) not in named:
            yield f"{member.name}: project.license-files lacks {text}"


def _check_changelog(member: Member) -> Iterator[str]:
    text = _read_or_none(member.folder / "CHANGELOG.md")
    if text is None:
        yield f"{member.name}: CHANGELOG.md is missing"
        return
    for heading in odd_headings(text):
        yield f"{member.name}: CHANGELOG.md: {heading!r} is not '## VERSION - DATE' or 'unreleased'"
    if member.version is not None and find_section(text, str(member.version)) is None:
        yield f"{member.name}: CHANGELOG.md has no section '## {member.version} - ...'"


def _read_or_none(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def check_classifiers(workspace: Workspace) -> Iterator[str]:
    """Every member names the Python versions that it supports, and that it is typed."""
    expected = [f"Programming Language :: Python :: {python}" for python in PYTHONS]
    for member in workspace.members:
        found = member.project.get("classifiers", [])
        for classifier in [*expected, "Typing :: Typed"]:
            if classifier not in found:
                yield f"{member.name}: classifiers lack {classifier!r}"


CHECKS = (
    check_root_lists_members,
    check_requires_python,
    check_versions,
    check_requirements,
    check_package_files,
    check_classifiers,
)


def find_violations(root: Path) -> list[str]:
    """Return every violation in the workspace at `root`, in a fixed order.

    Raises:
        WorkspaceError: the folder is not a git work tree with a readable workspace manifest.
    """
    workspace = load_workspace(root)
    found = [line for check in CHECKS for line in check(workspace)]
    try:
        found += check_tracked_text(root)
        found += check_links(root, tracked_files(root))
    except OSError as error:
        raise WorkspaceError(str(error)) from error
    found += check_fault_table(root)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every check; return the exit code."""
    parser = argparse.ArgumentParser(description="Check the workspace's manifests and text files.")
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("root", nargs="?", type=Path, default=here, help="default: this repository")
    root = parser.parse_args(arguments).root
    try:
        violations = find_violations(root)
    except WorkspaceError as error:
        print(f"check_workspace: {error}", file=sys.stderr)
        return 2
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
