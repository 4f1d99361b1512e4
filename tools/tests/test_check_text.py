from collections.abc import Callable
from pathlib import Path

import check_workspace
import pytest

from .small_workspace import git_add, root, write

__all__ = ["root"]  # fixture


@pytest.mark.parametrize("folder", ["work", "home/me", "tmp", "root", "Users/me", "opt/x"])
def test_a_machine_path_in_tracked_text(root: Path, folder: str) -> None:
    write(root, "notes.md", f"first\nsee '/{folder}/file'\n")
    assert check_workspace.find_violations(root) == []
    git_add(root)
    assert check_workspace.find_violations(root) == [
        f"notes.md:2: names a path of one machine: /{folder}/file'"
    ]


def test_a_machine_path_as_an_address(root: Path) -> None:
    path = "/" + "home/me/x"
    write(root, "notes.md", f"see <file://{path}>\n")
    git_add(root)
    (line,) = check_workspace.find_violations(root)
    assert line.startswith(f"notes.md:1: names a path of one machine: {path}")


@pytest.mark.parametrize(
    "text",
    [
        "/opt/cuda/bin",
        "https://a.b/home/x",
        "a/work/b",
        "$OUT/tmp/x",
        "${X}/home/y",
        "./tmp/z",
        "/workshop",
        "../home/a",
        "/usr/bin/env",
    ],
)
def test_other_paths_are_allowed(root: Path, text: str) -> None:
    write(root, "notes.md", text)
    git_add(root)
    assert check_workspace.find_violations(root) == []


@pytest.mark.parametrize("spelling", [str.lower, str.upper, str.title])
def test_a_registry_host_in_tracked_text(root: Path, spelling: Callable[[str], str]) -> None:
    host = ".".join(["pypi", "org"])
    write(root, "notes.md", f"https://{spelling(host)}/simple\n")
    write(root, "uv.lock", f"https://{host}/simple\n")
    git_add(root)
    assert check_workspace.find_violations(root) == [f"notes.md:1: names the registry host {host}"]


def test_only_known_binary_files_may_hold_nul_bytes(root: Path) -> None:
    for name in ("a.safetensors", "b.PNG", "c.md"):
        (root / name).write_bytes(b"\0 /tm" + b"p/x")
    git_add(root)
    assert check_workspace.find_violations(root) == [
        "c.md: holds NUL bytes; write UTF-8, or name its suffix as a binary one"
    ]
