import subprocess
from pathlib import Path

import pytest
import release_plan
from release_plan import PlanError, read_index_answer, split_tag
from workspace import Member, Workspace, load_workspace

NAMES = ["bytebound", "bytebound-kernels", "bytebound-evals"]


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("bytebound-v0.5.1", ("bytebound", "0.5.1")),
        ("bytebound-kernels-v0.3.0", ("bytebound-kernels", "0.3.0")),
        ("bytebound-evals-v1.0.0rc1", ("bytebound-evals", "1.0.0rc1")),
    ],
)
def test_a_tag_names_its_member(tag: str, expected: tuple[str, str]) -> None:
    assert split_tag(tag, NAMES) == expected


def test_the_longest_name_is_tried_first() -> None:
    # As a tag of "a" the rest would be no version; as one of "a-v1" it is.
    assert split_tag("a-v1-v2", ["a", "a-v1"]) == ("a-v1", "2")


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("v0.1.0", "expected <distribution>-v<version>"),
        ("bytebound-0.1.0", "expected <distribution>-v<version>"),
        ("bytebound-quantum-v0.1.0", "expected <distribution>-v<version>"),
        ("bytebound-vx", "'x' is not a version"),
        ("bytebound-v", "'' is not a version"),
        ("bytebound-v0.1.0-rc1", "write the version as 0.1.0rc1"),
        ("bytebound-v01.0", "write the version as 1.0"),
    ],
)
def test_other_tags_are_refused(tag: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        split_tag(tag, NAMES)


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    write(tmp_path, "pyproject.toml", '[tool.uv.workspace]\nmembers = ["packages/*"]\n')
    for folder, name, needs in (
        ("runtime", "bytebound", '"bytebound-kernels>=0.3,<0.4", "torch"'),
        ("kernels", "bytebound-kernels", ""),
    ):
        write(
            tmp_path,
            f"packages/{folder}/pyproject.toml",
            f'[project]\nname = "{name}"\nversion = "0.3.0"\ndependencies = [{needs}]\n',
        )
        write(tmp_path, f"packages/{folder}/CHANGELOG.md", "## 0.3.0 - 2026-12-01\n\n- New.\n")
    write(tmp_path, "packages/kernels/CMakeLists.txt", "")
    return load_workspace(tmp_path)


def runtime(workspace: Workspace) -> Member:
    member = workspace.member("bytebound")
    assert member is not None
    return member


def reasons(workspace: Workspace, index: dict[str, set[str]], version: str = "0.3.0") -> list[str]:
    return list(
        release_plan.find_reasons_against(
            workspace, runtime(workspace), version, lambda name: index.get(name, set())
        )
    )


READY = {"bytebound": {"0.2.0"}, "bytebound-kernels": {"0.3.0"}}


def test_all_in_place(workspace: Workspace) -> None:
    assert reasons(workspace, READY) == []


def test_version_already_released(workspace: Workspace) -> None:
    index = READY | {"bytebound": {"0.3.0"}}
    assert reasons(workspace, index) == ["bytebound: the index already has 0.3.0"]


def test_needed_member_not_released_at_this_trees_version(workspace: Workspace) -> None:
    index = READY | {"bytebound-kernels": {"0.3.1"}}
    assert reasons(workspace, index) == [
        "bytebound: needs bytebound-kernels 0.3.0, which is not on the index"
    ]


def test_tag_differs_from_manifest(workspace: Workspace) -> None:
    assert reasons(workspace, READY, version="0.4.0") == [
        "bytebound: the tag says 0.4.0, pyproject.toml says 0.3.0",
        "bytebound: CHANGELOG.md has no section '## 0.4.0 - DATE'",
    ]


def test_changelog_without_a_date(workspace: Workspace) -> None:
    write(workspace.root, "packages/runtime/CHANGELOG.md", "## 0.3.0 - unreleased\n")
    assert reasons(workspace, READY) == ["bytebound: CHANGELOG.md gives 0.3.0 no date yet"]


def test_a_date_that_does_not_exist(workspace: Workspace) -> None:
    write(workspace.root, "packages/runtime/CHANGELOG.md", "## 0.3.0 - 2026-13-45\n")
    assert reasons(workspace, READY) == [
        "bytebound: CHANGELOG.md gives 0.3.0 the date 2026-13-45, which is none"
    ]


def test_index_answers() -> None:
    listed = "bytebound (0.3.0)\nAvailable versions: 0.3.0, 0.2.0\n"
    assert read_index_answer("bytebound", 0, listed, "") == {"0.3.0", "0.2.0"}
    unknown = "ERROR: No matching distribution found for bytebound\n"
    assert read_index_answer("bytebound", 1, "", unknown) == set()


@pytest.mark.parametrize(
    ("code", "output", "errors"),
    [
        (1, "", "WARNING: Retrying (Retry(...))\nERROR: No matching distribution found for x"),
        (1, "", "ERROR: something else"),
        (0, "", ""),
        (2, "Available versions: 1.0", ""),
    ],
    ids=["network", "other-error", "nothing-said", "failed"],
)
def test_an_unclear_index_answer_is_no_permission(code: int, output: str, errors: str) -> None:
    with pytest.raises(PlanError, match="no clear answer about x"):
        read_index_answer("x", code, output, errors)


def test_without_pip_it_says_so() -> None:
    with pytest.raises(PlanError, match="this Python has no pip to ask the index with"):
        read_index_answer("x", 1, "", "python: No module named pip\n")


def test_rehearsal_prints_what_to_build(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    write(workspace.root, "packages/kernels/CHANGELOG.md", "## 0.3.0 - unreleased\n")
    root = str(workspace.root)
    assert release_plan.main(["bytebound-kernels-v0.3.0", "--rehearse", "--root", root]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "distribution=bytebound-kernels",
        "version=0.3.0",
        "folder=packages/kernels",
        "native=true",
        "oldest_siblings=",
    ]


def test_the_plan_pins_the_oldest_siblings_and_writes_the_notes(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = workspace.root / "notes.md"
    root = str(workspace.root)
    arguments = ["bytebound-v0.3.0", "--rehearse", "--root", root, "--notes", str(notes)]
    assert release_plan.main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == ["native=false", "oldest_siblings=bytebound-kernels==0.3"]
    assert notes.read_text() == "- New.\n"


def test_notes_that_cannot_be_written(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = workspace.root / "none" / "notes.md"
    root = str(workspace.root)
    arguments = ["bytebound-v0.3.0", "--rehearse", "--root", root, "--notes", str(notes)]
    assert release_plan.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"release_plan: --notes {notes}: No such file or directory\n"


def test_a_name_that_is_no_member(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release_plan, "split_tag", lambda tag, names: ("other", "1.0"))
    assert release_plan.main(["other-v1.0", "--root", str(workspace.root)]) == 2
    assert "other-v1.0: the workspace has no member other" in capsys.readouterr().err


def test_exit_codes_of_refusals(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(workspace.root)
    assert release_plan.main(["bytebound-v0.9.0", "--rehearse", "--root", root]) == 1
    assert release_plan.main(["bytebound", "--rehearse", "--root", root]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "release_plan: bytebound: expected" in captured.err


def test_a_commit_off_the_branch_is_seen(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "one")
    assert release_plan.is_on_branch(tmp_path, "main")
    git("checkout", "-q", "-b", "side")
    git("commit", "-q", "--allow-empty", "-m", "two")
    assert not release_plan.is_on_branch(tmp_path, "main")
    with pytest.raises(PlanError, match="merge-base"):
        release_plan.is_on_branch(tmp_path, "no-such-branch")
