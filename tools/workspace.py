"""The workspace as its manifests describe it: which packages there are, and what each says.

Reads the root's pyproject.toml and every member's, and judges nothing.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

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
