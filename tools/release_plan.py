"""Decide whether a tag may be released, and say what to build. Fails closed.

    python tools/release_plan.py TAG [--main REF] [--rehearse] [--notes FILE]

A tag reads `<distribution>-v<version>`, e.g. `bytebound-kernels-v0.3.0`. It may be released when it
names a published member, its version is the manifest's, the changelog has a dated section for it,
the commit is on the main branch, the index does not have the version yet, and the index has every
member that it needs at the version of this tree. `--rehearse` leaves out the changelog's date, the
branch and the index.

Prints `key=value` lines (distribution, version, folder, native, oldest_siblings) for the workflow;
`--notes` writes the changelog's section.
Exit code 0: go; 1: do not release, one line per reason; 2: the question itself is wrong.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from changelog import find_section
from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version
from workspace import Member, Workspace, WorkspaceError, load_workspace

PublishedVersions = Callable[[str], set[str]]
"""Given a distribution's name, every version of it on the index."""


class PlanError(Exception):
    """The plan cannot be made: a tag of no known form, or an index that does not answer."""


def split_tag(tag: str, names: Iterable[str]) -> tuple[str, str]:
    """Return the distribution and the version of a tag.

    The longest name is tried first, since `bytebound` begins the name of every other member.

    Raises:
        PlanError: the tag is of no member, or its version is not one in its normal form.
    """
    known = sorted(names, key=len, reverse=True)
    for name in known:
        prefix = f"{name}-v"
        if not tag.startswith(prefix):
            continue
        version = tag.removeprefix(prefix)
        try:
            normal = str(Version(version))
        except InvalidVersion as error:
            raise PlanError(f"{tag}: {version!r} is not a version") from error
        if normal != version:
            raise PlanError(f"{tag}: write the version as {normal}")
        return name, version
    raise PlanError(f"{tag}: expected <distribution>-v<version>, one of {', '.join(sorted(known))}")


def find_reasons_against(
    workspace: Workspace, member: Member, version: str, published: PublishedVersions
) -> Iterator[str]:
    """Yield every reason not to release `member` at `version`, the branch apart."""
    yield from find_reasons_in_tree(member, version)
    section = find_section(_changelog(member), version)
    if section is not None and section.date is None:
        yield f"{member.name}: CHANGELOG.md gives {version} no date yet"
    if version in published(member.name):
        yield f"{member.name}: the index already has {version}"
    for text in member.project.get("dependencies", []):
        sibling = workspace.member(Requirement(text).name)
        if sibling is None:
            continue
        needed = str(sibling.version)
        if needed not in published(sibling.name):
            yield f"{member.name}: needs {sibling.name} {needed}, which is not on the index"


def find_reasons_in_tree(member: Member, version: str) -> Iterator[str]:
    """Yield the reasons that the tree alone gives; a rehearsal asks for no more."""
    if not member.published:
        yield f"{member.name}: is not a published package"
    if str(member.version) != version:
        yield f"{member.name}: the tag says {version}, pyproject.toml says {member.version}"
    section = find_section(_changelog(member), version)
    if section is not None and not section.date_exists:
        yield f"{member.name}: CHANGELOG.md gives {version} the date {section.date}, which is none"
    if section is None:
        yield f"{member.name}: CHANGELOG.md has no section '## {version} - DATE'"


def oldest_siblings(workspace: Workspace, member: Member) -> list[str]:
    """Return a pin for each member that `member` needs, at the floor of its range."""
    pins = []
    for text in member.project.get("dependencies", []):
        requirement = Requirement(text)
        if workspace.member(requirement.name) is not None:
            floors = [s.version for s in requirement.specifier if s.operator in (">=", "==", "~=")]
            pins += [f"{requirement.name}=={floor}" for floor in floors]
    return pins


def _changelog(member: Member) -> str:
    file = member.folder / "CHANGELOG.md"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def ask_index(name: str) -> set[str]:
    """Return the versions of `name` on the index, by pip; the empty set for an unknown name.

    Raises:
        PlanError: pip failed in any other way, so nothing is known.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", "--pre", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return read_index_answer(name, done.returncode, done.stdout, done.stderr)


def read_index_answer(name: str, code: int, output: str, errors: str) -> set[str]:
    """Return the versions in the answer of `pip index versions`.

    Raises:
        PlanError: the answer says neither which versions there are nor that there are none.
    """
    listed = re.search(r"^Available versions: (.+)$", output, re.M)
    if code == 0 and listed:
        return {version.strip() for version in listed[1].split(",")}
    if "No module named pip" in errors:
        raise PlanError("this Python has no pip to ask the index with: python -m ensurepip")
    if "No matching distribution found" in errors and "Retrying" not in errors:
        return set()
    raise PlanError(f"the index gave no clear answer about {name}: {errors.strip()[-200:]}")


def is_on_branch(root: Path, branch: str) -> bool:
    """Whether HEAD is `branch` or an ancestor of it."""
    command = ["git", "-C", str(root), "merge-base", "--is-ancestor", "HEAD", branch]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise PlanError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan or the reasons against it; return the exit code."""
    parser = argparse.ArgumentParser(description="Decide whether a tag may be released.")
    parser.add_argument("tag", help="<distribution>-v<version>")
    parser.add_argument("--main", default="origin/main", help="the branch that releases come from")
    parser.add_argument("--rehearse", action="store_true", help="ask the tree only")
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--notes", type=Path, help="write the changelog's section to this file")
    parser.add_argument("--root", type=Path, default=here, help="default: this repository")
    options = parser.parse_args(arguments)
    try:
        workspace = load_workspace(options.root)
        name, version = split_tag(options.tag, [member.name for member in workspace.members])
        member = workspace.member(name)
        if member is None:
            raise PlanError(f"{options.tag}: the workspace has no member {name}")
        if options.rehearse:
            reasons = list(find_reasons_in_tree(member, version))
        else:
            reasons = list(find_reasons_against(workspace, member, version, ask_index))
            if not is_on_branch(options.root, options.main):
                reasons.append(f"{name}: the commit is not on {options.main}")
    except (PlanError, WorkspaceError) as error:
        print(f"release_plan: {error}", file=sys.stderr)
        return 2
    if reasons:
        print("\n".join(reasons), file=sys.stderr)
        return 1
    if options.notes is not None:
        section = find_section(_changelog(member), version)
        try:
            options.notes.write_text(f"{section.body if section else ''}\n", encoding="utf-8")
        except OSError as error:
            print(f"release_plan: --notes {options.notes}: {error.strerror}", file=sys.stderr)
            return 2
    print(f"distribution={name}")
    print(f"version={version}")
    print(f"folder={member.folder.relative_to(options.root).as_posix()}")
    print(f"native={str((member.folder / 'CMakeLists.txt').is_file()).lower()}")
    print(f"oldest_siblings={' '.join(oldest_siblings(workspace, member))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
