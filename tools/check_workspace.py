"""Check what no other tool checks about the workspace: manifests, ranges, changelogs, text, links.

Reads files only, never an environment, so it runs before anything is installed. uv itself accepts
a range between members that the member's version does not meet; here it is a violation.

    python tools/check_workspace.py [ROOT]

Prints one line per violation. Exit code 0: none; 1: some; 2: this is not a workspace.
"""

import argparse
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changelog import find_section
from check_text import check_fault_table, check_tracked_text
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

LICENCE = "Apache-2.0"
"""Every member's licence; a member may add others by AND, and then carries their texts."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PRIVATE = "Private :: "
"""A classifier that begins so keeps a package off the index: it is never published."""


class WorkspaceError(Exception):
    """The folder is not a workspace that can be checked at all."""


@dataclass(frozen=True, slots=True)
class Member:
    """One package of the workspace, as its manifest describes it."""

    folder: Path
    name: str
    project: dict[str, Any]

    @property
    def import_name(self) -> str:
        """Name of the import package: the distribution's, with underscores."""
        return self.name.replace("-", "_")

    @property
    def published(self) -> bool:
        """Whether releases of this member go to the index."""
        return not any(c.startswith(PRIVATE) for c in self.project.get("classifiers", []))

    @property
    def version(self) -> Version | None:
        """The static version, or None where there is none that parses."""
        try:
            return Version(self.project["version"])
        except (KeyError, TypeError, InvalidVersion):
            return None


@dataclass(frozen=True, slots=True)
class Workspace:
    """The root manifest and its members, sorted by folder."""

    root: Path
    manifest: dict[str, Any]
    members: tuple[Member, ...]

    def member(self, name: str) -> Member | None:
        """Return the member of that distribution name, in any spelling of it."""
        wanted = canonicalize_name(name)
        return next((m for m in self.members if canonicalize_name(m.name) == wanted), None)


def load_workspace(root: Path) -> Workspace:
    """Read the root manifest and every member's.

    Raises:
        WorkspaceError: a manifest is missing, is not TOML, or names no package.
    """
    manifest = _read_manifest(root / "pyproject.toml")
    patterns = manifest.get("tool", {}).get("uv", {}).get("workspace", {}).get("members", [])
    folders = sorted({folder for p in patterns for folder in root.glob(p) if folder.is_dir()})
    if not folders:
        raise WorkspaceError(
            f"{root / 'pyproject.toml'}: tool.uv.workspace.members names no folder"
        )
    members = []
    for folder in folders:
        project = _read_manifest(folder / "pyproject.toml").get("project", {})
        if not isinstance(project.get("name"), str):
            raise WorkspaceError(f"{folder / 'pyproject.toml'}: project.name is missing")
        members.append(Member(folder=folder, name=project["name"], project=project))
    return Workspace(root=root, manifest=manifest, members=tuple(members))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WorkspaceError(f"{path}: {error}") from error


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


def check_ranges(workspace: Workspace) -> Iterator[str]:
    """Every range between members has a floor and a cap and holds the member's current version.

    Also: a member that is published needs no member that is not, and nothing needs itself.
    """
    for member in workspace.members:
        extras = member.project.get("optional-dependencies", {}).values()
        listed = [*member.project.get("dependencies", []), *(r for extra in extras for r in extra)]
        for text in listed:
            try:
                requirement = Requirement(text)
            except InvalidRequirement as error:
                yield f"{member.name}: dependency {text!r} does not parse: {error}"
                continue
            sibling = workspace.member(requirement.name)
            if sibling is None or (sibling is member and requirement.extras):
                continue
            yield from _check_range(member, sibling, requirement)


def _check_range(member: Member, sibling: Member, requirement: Requirement) -> Iterator[str]:
    operators = {specifier.operator for specifier in requirement.specifier}
    if not operators & {">=", "==", "~="}:
        yield f"{member.name}: {requirement} has no floor; write >= the oldest tested version"
    if not operators & {"<", "==", "~="}:
        yield f"{member.name}: {requirement} has no cap; write < the next minor version"
    version = sibling.version
    if version is not None and not requirement.specifier.contains(version, prereleases=True):
        yield f"{member.name}: {requirement} does not hold {sibling.name}'s own version {version}"
    if member.published and not sibling.published:
        yield f"{member.name}: is published but needs {sibling.name}, which is not"
    if sibling.name == "bytebound-evals":
        yield f"{member.name}: needs {sibling.name}; nothing may depend on it"


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
        for term in terms[1:]:
            if not (member.folder / "LICENSES" / f"{term}.txt").is_file():
                yield f"{member.name}: LICENSES/{term}.txt is missing"
        if licence_text is not None and _read_or_none(member.folder / "LICENSE") != licence_text:
            yield f"{member.name}: LICENSE is missing or differs from the root's; copy it"
        if not (member.folder / "src" / member.import_name / "py.typed").is_file():
            yield f"{member.name}: src/{member.import_name}/py.typed is missing"
        yield from _check_changelog(member)


def _check_changelog(member: Member) -> Iterator[str]:
    text = _read_or_none(member.folder / "CHANGELOG.md")
    if text is None:
        yield f"{member.name}: CHANGELOG.md is missing"
    elif member.version is not None and find_section(text, str(member.version)) is None:
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
    check_ranges,
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
