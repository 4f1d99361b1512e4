import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import check_workspace
import pytest
from check_text import FAULT_IDS

REPOSITORY = Path(__file__).resolve().parents[2]

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
        ("engine", "demo", '"demo-kernels>=0.1.0,<0.2", "torch"'),
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


def test_a_sound_workspace_has_no_violation(root: Path) -> None:
    assert check_workspace.find_violations(root) == []


Breaks = list[tuple[str, str, str]]


@pytest.mark.parametrize(
    ("breaks", "expected"),
    [
        pytest.param(
            [("pyproject.toml", '"demo", ', "")],
            "pyproject.toml: project.dependencies lacks the bare name demo",
            id="root-lacks-member",
        ),
        pytest.param(
            [("pyproject.toml", '"demo-kernels"', '"demo-kernels>=0.1"')],
            "pyproject.toml: project.dependencies lacks the bare name demo-kernels",
            id="root-range-not-bare",
        ),
        pytest.param(
            [("pyproject.toml", "demo = { workspace = true }\n", "")],
            "pyproject.toml: tool.uv.sources.demo is not { workspace = true }",
            id="root-lacks-source",
        ),
        pytest.param(
            [(KERNELS, 'requires-python = ">=3.11"', 'requires-python = ">=3.12"')],
            "demo-kernels: requires-python is '>=3.12', the root's is '>=3.11'",
            id="requires-python-differs",
        ),
        pytest.param(
            [(ENGINE, 'version = "0.1.0"', 'dynamic = ["version"]')],
            "demo: the version is dynamic; write it into pyproject.toml",
            id="version-dynamic",
        ),
        pytest.param(
            [(ENGINE, 'version = "0.1.0"', 'version = "one"')],
            "demo: project.version is 'one', expected a version such as '0.1.0'",
            id="version-does-not-parse",
        ),
        pytest.param(
            [(KERNELS, 'version = "0.1.0"', 'version = "0.2.0"')],
            "demo: demo-kernels<0.2,>=0.1.0 does not hold demo-kernels's own version 0.2.0",
            id="range-below-version",
        ),
        pytest.param(
            [(ENGINE, ">=0.1.0,<0.2", ">=0.1.5,<0.2")],
            "demo: demo-kernels<0.2,>=0.1.5 does not hold demo-kernels's own version 0.1.0",
            id="range-above-version",
        ),
        pytest.param(
            [(ENGINE, ">=0.1.0,<0.2", "<0.2")],
            "demo: demo-kernels<0.2 has no floor; write >= the oldest tested version",
            id="range-without-floor",
        ),
        pytest.param(
            [(ENGINE, ">=0.1.0,<0.2", ">=0.1.0")],
            "demo: demo-kernels>=0.1.0 has no cap; write < the next minor version",
            id="range-without-cap",
        ),
        pytest.param(
            [(ENGINE, "demo-kernels>=0.1.0,<0.2", "demo_Kernels>=0.1.0")],
            "demo: demo_Kernels>=0.1.0 has no cap; write < the next minor version",
            id="range-in-other-spelling",
        ),
        pytest.param(
            [(ENGINE, "demo-kernels>=0.1.0,<0.2", "demo-kernels>=>0.1")],
            "demo: dependency 'demo-kernels>=>0.1' does not parse",
            id="range-does-not-parse",
        ),
        pytest.param(
            [(KERNELS, '"Typing :: Typed"', '"Typing :: Typed", "Private :: Do Not Upload"')],
            "demo: is published but needs demo-kernels, which is not",
            id="published-needs-unpublished",
        ),
        pytest.param(
            [(ENGINE, 'readme = "README.md"\n', "")],
            "demo: project.readme is None, expected a file of the package",
            id="readme-not-named",
        ),
        pytest.param(
            [("packages/engine/README.md", "# demo\n", "\n")],
            "demo: README.md is empty",
            id="readme-empty",
        ),
        pytest.param(
            [(ENGINE, '"Apache-2.0"', '"MIT"')],
            "demo: project.license is 'MIT', expected 'Apache-2.0'",
            id="licence-field",
        ),
        pytest.param(
            [("packages/engine/LICENSE", "the licence", "another")],
            "demo: LICENSE is missing or differs from the root's; copy it",
            id="licence-text-differs",
        ),
        pytest.param(
            [("packages/engine/CHANGELOG.md", "## 0.1.0 -", "## 0.0.9 -")],
            "demo: CHANGELOG.md has no section '## 0.1.0 - ...'",
            id="changelog-lacks-version",
        ),
        pytest.param(
            [(ENGINE, '  "Programming Language :: Python :: 3.14",\n', "")],
            "demo: classifiers lack 'Programming Language :: Python :: 3.14'",
            id="python-classifier",
        ),
        pytest.param(
            [(ENGINE, '  "Typing :: Typed",\n', "")],
            "demo: classifiers lack 'Typing :: Typed'",
            id="typed-classifier",
        ),
        pytest.param(
            [("docs/faults.md", "| E07 | a name | not yet: kernels |\n", "")],
            "docs/faults.md: E07 has 0 rows, expected 1",
            id="fault-row-missing",
        ),
        pytest.param(
            [("docs/faults.md", "| E07 |", "| E06 |")],
            "docs/faults.md: E06 has 2 rows, expected 1",
            id="fault-row-twice",
        ),
        pytest.param(
            [("docs/faults.md", "| E79 |", "| E80 |")],
            "docs/faults.md: E80 is not a known fault",
            id="fault-row-unknown",
        ),
        pytest.param(
            [("docs/faults.md", "| E01 | a name | not yet: kernels |", "| E01 | a | `x.py::y` |")],
            "docs/faults.md: x.py does not exist",
            id="fault-link-to-no-file",
        ),
        pytest.param(
            [("docs/faults.md", "| E02 | a name | not yet: kernels |", "| E02 | a | later |")],
            "docs/faults.md: E02 says 'later', which is no state of a fault",
            id="fault-without-state",
        ),
        pytest.param(
            [
                (
                    "docs/faults.md",
                    "| E03 | a name | not yet: kernels |",
                    "| E03 | a | not yet: me |",
                )
            ],
            "docs/faults.md: E03 says 'not yet: me', which is no state of a fault",
            id="fault-of-no-owner",
        ),
    ],
)
def test_a_broken_rule_is_one_violation(root: Path, breaks: Breaks, expected: str) -> None:
    for name, old, new in breaks:
        edit(root, name, old, new)
    assert any(line.startswith(expected) for line in check_workspace.find_violations(root))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("packages/engine/CHANGELOG.md", "demo: CHANGELOG.md is missing"),
        ("packages/engine/README.md", "demo: project.readme is 'README.md'"),
        ("packages/engine/LICENSE", "demo: LICENSE is missing or differs"),
        ("packages/engine/src/demo/py.typed", "demo: src/demo/py.typed is missing"),
        ("LICENSE", "LICENSE: missing at the root"),
        ("docs/faults.md", "docs/faults.md: missing"),
    ],
    ids=["changelog", "readme", "licence", "py.typed", "root-licence", "fault-table"],
)
def test_a_missing_file_is_one_violation(root: Path, name: str, expected: str) -> None:
    (root / name).unlink()
    assert any(line.startswith(expected) for line in check_workspace.find_violations(root))


def test_a_range_in_an_extra_counts_too(root: Path) -> None:
    write(
        root,
        KERNELS,
        (root / KERNELS).read_text()
        + '[project.optional-dependencies]\nall = ["demo<1", "demo-kernels[more]"]\n',
    )
    assert check_workspace.find_violations(root) == [
        "demo-kernels: demo<1 has no floor; write >= the oldest tested version"
    ]


def test_nothing_may_need_the_evaluation(root: Path) -> None:
    edit(root, KERNELS, 'name = "demo-kernels"', 'name = "bytebound-evals"')
    edit(root, ENGINE, "demo-kernels>=", "bytebound-evals>=")
    expected = "demo: needs bytebound-evals; nothing may depend on it"
    assert expected in check_workspace.find_violations(root)


def test_a_linked_test_must_exist_by_name(root: Path) -> None:
    write(root, "tests/test_x.py", "def test_yes() -> None: ...\n")
    link = "`tests/test_x.py::test_yes`; not yet"
    edit(root, "docs/faults.md", "E01 | a name | not yet", f"E01 | a name | {link}")
    assert check_workspace.find_violations(root) == []
    edit(root, "docs/faults.md", "::test_yes`", "::test_ye`")
    assert check_workspace.find_violations(root) == [
        "docs/faults.md: tests/test_x.py has no test test_ye"
    ]


@pytest.mark.parametrize("folder", ["work", "home/me", "tmp", "root", "Users/me"])
def test_a_machine_path_in_tracked_text(root: Path, folder: str) -> None:
    write(root, "notes.md", f"first\nsee '/{folder}/file'\n")
    assert check_workspace.find_violations(root) == []
    git_add(root)
    assert check_workspace.find_violations(root) == [
        f"notes.md:2: names a path of one machine: /{folder}/file'"
    ]


@pytest.mark.parametrize(
    "text",
    ["a/work/b", "$OUT/tmp/x", "${X}/home/y", "./tmp/z", "/workshop", "../home/a", "/usr/bin/env"],
)
def test_other_paths_are_allowed(root: Path, text: str) -> None:
    write(root, "notes.md", text)
    git_add(root)
    assert check_workspace.find_violations(root) == []


def test_a_registry_host_in_tracked_text(root: Path) -> None:
    host = ".".join(["pypi", "org"])
    write(root, "notes.md", f"https://{host}/simple\n")
    write(root, "uv.lock", f"https://{host}/simple\n")
    git_add(root)
    assert check_workspace.find_violations(root) == [f"notes.md:1: names the registry host {host}"]


def test_binary_files_are_not_text(root: Path) -> None:
    (root / "blob.bin").write_bytes(b"\0 /tm" + b"p/x")
    git_add(root)
    assert check_workspace.find_violations(root) == []


def _no_manifest(root: Path) -> None:
    (root / "pyproject.toml").unlink()


def _not_toml(root: Path) -> None:
    write(root, ENGINE, "[project")


def _no_members(root: Path) -> None:
    edit(root, "pyproject.toml", "packages/*", "nothing/*")


def _no_name(root: Path) -> None:
    edit(root, ENGINE, 'name = "demo"', 'title = "demo"')


def _member_without_manifest(root: Path) -> None:
    (root / ENGINE).unlink()


@pytest.mark.parametrize(
    "damage", [_no_manifest, _not_toml, _no_members, _no_name, _member_without_manifest]
)
def test_what_is_no_workspace_is_wrong_use(
    root: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(root)
    assert check_workspace.main([str(root)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("check_workspace: ")
    assert captured.err.count("\n") == 1


def test_exit_codes_and_one_line_each(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_workspace.main([str(root)]) == 0
    assert capsys.readouterr().out == ""
    edit(root, ENGINE, '"Apache-2.0"', '"MIT"')
    edit(root, KERNELS, '"Apache-2.0"', '"MIT"')
    assert check_workspace.main([str(root)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_this_repository_passes() -> None:
    script = REPOSITORY / "tools" / "check_workspace.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
