"""Rules for what a member of the workspace may need, and in which range of versions.

Between members: the edges that ARCHITECTURE.md forbids, a floor that the changelog knows, a cap at
the next minor version, and this tree's own version between them. From elsewhere: a bound of some
kind, where the member is published. `check_workspace` runs these with its own rules.
"""

from collections.abc import Iterator

from changelog import find_section
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name
from packaging.version import Version
from workspace import Member, Workspace

NEEDS_NOTHING = "bytebound-kernels"
NEEDED_BY_NOTHING = "bytebound-evals"
FORBIDDEN = {("bytebound", "bytebound-quant"), ("bytebound", NEEDED_BY_NOTHING)}
"""Pairs of a member and what it must not need."""


def check_requirements(workspace: Workspace) -> Iterator[str]:
    """Yield what is wrong with the dependencies of every member, those of its extras included."""
    for member in workspace.members:
        extras = member.project.get("optional-dependencies", {}).values()
        plain = member.project.get("dependencies", [])
        listed = [(text, False) for text in plain]
        listed += [(text, True) for extra in extras for text in extra]
        for text, in_extra in listed:
            try:
                requirement = Requirement(text)
            except InvalidRequirement as error:
                yield f"{member.name}: dependency {text!r} does not parse: {error}"
                continue
            sibling = workspace.member(requirement.name)
            if sibling is member and in_extra and requirement.extras:
                continue  # an extra that is made of others
            yield from _check_edge(member, requirement, may_be_foreign=in_extra and not sibling)
            if sibling is None:
                yield from _check_bound(member, requirement)
            elif sibling is not member:
                yield from _check_range(member, sibling, requirement)


def _check_edge(member: Member, requirement: Requirement, *, may_be_foreign: bool) -> Iterator[str]:
    """An edge of the graph; NEEDS_NOTHING may offer an extra that is made of other people's."""
    name, needed = canonicalize_name(member.name), canonicalize_name(requirement.name)
    if name == needed:
        yield f"{member.name}: needs itself"
    elif name == NEEDS_NOTHING and not may_be_foreign:
        yield f"{member.name}: needs {requirement.name}; it may need nothing"
    if needed == NEEDED_BY_NOTHING:
        yield f"{member.name}: needs {needed}; nothing may depend on it"
    elif (name, needed) in FORBIDDEN:
        yield f"{member.name}: must not need {needed}"


def _check_bound(member: Member, requirement: Requirement) -> Iterator[str]:
    if member.published and not requirement.specifier and requirement.url is None:
        yield f"{member.name}: {requirement} has no bound; write >= the oldest tested version"


def _check_range(member: Member, sibling: Member, requirement: Requirement) -> Iterator[str]:
    if member.published and not sibling.published:
        yield f"{member.name}: is published but needs {sibling.name}, which is not"
    by_operator: dict[str, list[Specifier]] = {}
    for specifier in requirement.specifier:
        by_operator.setdefault(specifier.operator, []).append(specifier)
    floors, caps = by_operator.pop(">=", []), by_operator.pop("<", [])
    by_operator.pop("!=", None)
    if not floors:
        yield f"{member.name}: {requirement} has no floor; write >= the oldest tested version"
    if not caps:
        yield f"{member.name}: {requirement} has no cap; write < the next minor version"
    for operator in sorted(by_operator):
        yield f"{member.name}: {requirement} uses {operator}; write a floor >= and a cap <"
    for floor in floors:
        yield from _check_floor(member, sibling, requirement, Version(floor.version))
    version = sibling.version
    if version is None:
        return
    next_minor = Version(f"{version.epoch}!{version.major}.{version.minor + 1}")
    if any(Version(cap.version) != next_minor for cap in caps):
        yield f"{member.name}: {requirement} must have its cap at <{next_minor}, the next minor"
    if not requirement.specifier.contains(version, prereleases=True):
        yield f"{member.name}: {requirement} does not hold {sibling.name}'s own version {version}"


def _check_floor(
    member: Member, sibling: Member, requirement: Requirement, floor: Version
) -> Iterator[str]:
    """A floor is a version that exists: this tree's, or one that the changelog has."""
    file = sibling.folder / "CHANGELOG.md"
    changelog = file.read_text(encoding="utf-8") if file.is_file() else ""
    if floor != sibling.version and find_section(changelog, str(floor)) is None:
        yield (
            f"{member.name}: {requirement} begins at {floor},"
            f" which {sibling.name}'s CHANGELOG.md does not have"
        )
