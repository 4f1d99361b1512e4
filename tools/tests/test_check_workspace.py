import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import check_workspace
import pytest

from .small_workspace import ENGINE, KERNELS, edit, root, write

__all__ = ["root"]  # fixture

REPOSITORY = Path(__file__).resolve().parents[2]


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
            [(ENGINE, ">=0.1.0,<0.2", ">=0.1.0,<99")],
            "demo: demo-kernels<99,>=0.1.0 must have its cap at <0.2, the next minor",
            id="range-with-a-far-cap",
        ),
        pytest.param(
            [(ENGINE, ">=0.1.0,<0.2", ">=0.0.1,<0.2")],
            "demo: demo-kernels<0.2,>=0.0.1 begins at 0.0.1, which demo-kernels's CHANGELOG.md",
            id="range-from-no-version",
        ),
        pytest.param(
            [(ENGINE, ">=0.1.0,<0.2", "==0.*")],
            "demo: demo-kernels==0.* uses ==; write a floor >= and a cap <",
            id="range-by-prefix",
        ),
        pytest.param(
            [(ENGINE, "torch>=2", "torch")],
            "demo: torch has no bound; write >= the oldest tested version",
            id="third-party-without-bound",
        ),
        pytest.param(
            [(ENGINE, '"torch>=2"', '"demo>=0.1.0,<0.2"')],
            "demo: needs itself",
            id="needs-itself",
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
            [(ENGINE, 'license-files = ["LICENSE"]\n', "")],
            "demo: project.license-files is None, expected ['LICENSE']",
            id="licence-files-missing",
        ),
        pytest.param(
            [(ENGINE, 'license-files = ["LICENSE"]', 'license-files = ["README.md"]')],
            "demo: project.license-files lacks LICENSE",
            id="licence-files-without-the-licence",
        ),
        pytest.param(
            [(ENGINE, 'license-files = ["LICENSE"]', 'license-files = ["LICENSE", "/COPYING"]')],
            "demo: project.license-files names '/COPYING', which matches no file",
            id="licence-files-match-nothing",
        ),
        pytest.param(
            [("packages/engine/CHANGELOG.md", "unreleased", "2026-13-45")],
            "demo: CHANGELOG.md: '## 0.1.0 - 2026-13-45' is not",
            id="changelog-date-does-not-exist",
        ),
        pytest.param(
            [("packages/engine/CHANGELOG.md", "- New.", "## 0.0.9 - soon")],
            "demo: CHANGELOG.md: '## 0.0.9 - soon' is not",
            id="changelog-heading-of-another-form",
        ),
        pytest.param(
            [("packages/engine/README.md", "# demo", "[text](../none.md)")],
            "packages/engine/README.md:1: the link to ../none.md leads to no tracked file",
            id="broken-link",
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
        + '[project.optional-dependencies]\nall = ["demo<0.2", "demo-kernels[more]"]\n',
    )
    assert check_workspace.find_violations(root) == [
        "demo-kernels: demo<0.2 has no floor; write >= the oldest tested version"
    ]


@pytest.mark.parametrize(
    ("name", "needed", "expected"),
    [
        ("demo", "bytebound-evals", "demo: needs bytebound-evals; nothing may depend on it"),
        (
            "bytebound-kernels",
            "bytebound-evals",
            "bytebound-kernels: needs bytebound-evals; nothing may depend on it",
        ),
        (
            "bytebound-kernels",
            "bytebound-quant",
            "bytebound-kernels: needs bytebound-quant; it may need nothing",
        ),
        ("bytebound", "bytebound-quant", "bytebound: must not need bytebound-quant"),
        ("bytebound", "bytebound-evals", "bytebound: needs bytebound-evals; nothing may depend"),
    ],
)
@pytest.mark.parametrize("in_extra", [False, True], ids=["plain", "extra"])
def test_forbidden_edges(root: Path, name: str, needed: str, expected: str, in_extra: bool) -> None:
    edit(root, ENGINE, 'name = "demo"', f'name = "{name}"')
    edit(root, KERNELS, 'name = "demo-kernels"', f'name = "{needed}"')
    edit(root, ENGINE, "demo-kernels>=", f"{needed}>=")
    if in_extra:
        edit(root, ENGINE, "\ndependencies = ", "\n[project.optional-dependencies]\nmore = ")
    found = check_workspace.find_violations(root)
    assert any(line.startswith(expected) for line in found)


def test_the_kernels_may_not_need_torch_either(root: Path) -> None:
    edit(root, KERNELS, 'name = "demo-kernels"', 'name = "bytebound-kernels"')
    edit(root, KERNELS, "dependencies = []", 'dependencies = ["torch>=2"]')
    expected = "bytebound-kernels: needs torch; it may need nothing"
    assert expected in check_workspace.find_violations(root)


def test_the_kernels_may_offer_torch_in_an_extra(root: Path) -> None:
    edit(root, KERNELS, 'name = "demo-kernels"', 'name = "bytebound-kernels"')
    extra = "dependencies = []\n[project.optional-dependencies]\nmore = ['torch>=2']"
    edit(root, KERNELS, "dependencies = []", extra)
    found = check_workspace.find_violations(root)
    assert not [line for line in found if "may need nothing" in line]


def test_a_private_member_may_need_any_version_of_others(root: Path) -> None:
    edit(root, ENGINE, "torch>=2", "torch")
    edit(root, ENGINE, '"Typing :: Typed"', '"Typing :: Typed", "Private :: Do Not Upload"')
    assert check_workspace.find_violations(root) == []


def test_a_linked_step_must_exist(root: Path) -> None:
    write(root, ".ci/run", "# steps\nstep_dist-install() {\n}\n")
    link = "`.ci/run dist-install`: it is installed and run"
    edit(root, "docs/faults.md", "E01 | a name | not yet: kernels", f"E01 | a name | {link}")
    assert check_workspace.find_violations(root) == []
    edit(root, ".ci/run", "step_dist-install", "step_dist")
    assert check_workspace.find_violations(root) == [
        "docs/faults.md: .ci/run has no step dist-install"
    ]


def test_a_linked_test_must_exist_by_name(root: Path) -> None:
    write(root, "tests/test_x.py", "def test_yes() -> None: ...\n")
    link = "`tests/test_x.py::test_yes`; not yet"
    edit(root, "docs/faults.md", "E01 | a name | not yet", f"E01 | a name | {link}")
    assert check_workspace.find_violations(root) == []
    edit(root, "docs/faults.md", "::test_yes`", "::test_ye`")
    assert check_workspace.find_violations(root) == [
        "docs/faults.md: tests/test_x.py has no test test_ye"
    ]


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
