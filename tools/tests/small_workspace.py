"""A workspace of two packages that breaks no rule, for tests that break one."""

import subprocess
from pathlib import Path

import pytest
from check_text import FAULT_IDS

ROOT_MANIFEST = """\
[project]
name = "demo-workspace"
version = "0"
requires-python = ">=3.11"
dependencies = ["demo", "demo-kernels"]

[tool.uv.workspace]
members = ["packages/*"]

[tool.uv.sources]
demo = { workspace = true }
demo-kernels = { workspace = true }
"""

MEMBER_MANIFEST = """\
[project]
name = "{name}"
version = "0.1.0"
readme = "README.md"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = ">=3.11"
classifiers = [
  "Programming Language :: Python :: 3.11",
  "Programming Language :: Python :: 3.12",
  "Programming Language :: Python :: 3.13",
  "Programming Language :: Python :: 3.14",
  "Typing :: Typed",
]
dependencies = [{dependencies}]
"""

ENGINE = "packages/engine/pyproject.toml"
KERNELS = "packages/kernels/pyproject.toml"


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def edit(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text(encoding="utf-8")
    assert old in text
    write(root, name, text.replace(old, new))


def git_add(root: Path) -> None:
    subprocess.run(["git", "-C", str(root), "add", "-A"], check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "pyproject.toml", ROOT_MANIFEST)
    write(tmp_path, "LICENSE", "the licence\n")
    for folder, name, needs in (
        ("engine", "demo", '"demo-kernels>=0.1.0,<0.2", "torch>=2"'),
        ("kernels", "demo-kernels", ""),
    ):
        base = f"packages/{folder}"
        manifest = MEMBER_MANIFEST.format(name=name, dependencies=needs)
        write(tmp_path, f"{base}/pyproject.toml", manifest)
        write(tmp_path, f"{base}/README.md", f"# {name}\n")
        write(tmp_path, f"{base}/LICENSE", "the licence\n")
        write(tmp_path, f"{base}/CHANGELOG.md", "# Changelog\n\n## 0.1.0 - unreleased\n\n- New.\n")
        write(tmp_path, f"{base}/src/{name.replace('-', '_')}/py.typed", "")
    rows = "".join(f"| {fault} | a name | not yet: kernels |\n" for fault in FAULT_IDS)
    write(tmp_path, "docs/faults.md", f"| id | kind | where |\n| --- | --- | --- |\n{rows}")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    git_add(tmp_path)
    return tmp_path
