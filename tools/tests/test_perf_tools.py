"""The two tools of the perf workflows: turns of two commits, and a comment that is only text."""

import json
import os
import subprocess
from pathlib import Path

import perf_ab
import perf_comment
import pytest


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example"]
    return subprocess.run(
        [*command, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "evals").mkdir(parents=True)
    git(folder, "init", "-q")
    for text in ("one", "two"):
        (folder / "evals" / "file").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", text)
    return folder


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up uv that makes an environment whose python only writes down how it was called."""
    log = tmp_path / "calls"
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        f'''#!/bin/sh
echo "uv $@" >> "{log}"
[ "$1" = sync ] || exit 0
for last; do :; done
mkdir -p "$last/.venv/bin"
cat > "$last/.venv/bin/python" <<'PYTHON'
#!/bin/sh
echo "$0 $@" >> "{log}"
case "$*" in *--fail*) exit 3;; esac
for last; do :; done
echo "{{}}" > "$last"
PYTHON
chmod +x "$last/.venv/bin/python"
'''
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    return log


def test_base_and_head_take_turns_with_heads_harness(
    repository: Path, calls: Path, tmp_path: Path
) -> None:
    work, out = tmp_path / "ab", tmp_path / "out"
    perf_ab.prepare("HEAD~1", "HEAD", work, repository)
    assert (work / "base" / "evals" / "file").read_text() == "one"
    assert (work / "head" / "evals" / "file").read_text() == "two"
    installed = calls.read_text().splitlines()[-1]
    assert installed.endswith(f"--no-deps {work}/head/evals")
    assert f"--python {work}/base/.venv/bin/python" in installed
    calls.write_text("")
    perf_ab.measure(work, out, rounds=2, pause_s=0, words=["--model", "x"])
    runs = [line.split() for line in calls.read_text().splitlines()]
    assert [run[0] for run in runs] == [
        str(work / side / ".venv/bin/python") for side in ("base", "head", "base", "head")
    ]
    base, head = git(repository, "rev-parse", "HEAD~1"), git(repository, "rev-parse", "HEAD")
    assert [run[run.index("--commit") + 1] for run in runs] == [base, head, base, head]
    assert sorted(file.name for file in out.iterdir()) == [
        "base-1.json",
        "base-2.json",
        "head-1.json",
        "head-2.json",
    ]
    perf_ab.clean(work, repository)
    assert not work.exists()
    assert git(repository, "worktree", "list").count("\n") == 0


def test_what_fails(
    repository: Path, calls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, out = tmp_path / "ab", tmp_path / "out"
    with pytest.raises(perf_ab.UsageError, match="no commit"):
        perf_ab.prepare("no-such", "HEAD", work, repository)
    with pytest.raises(perf_ab.UsageError, match="no commit"):
        perf_ab.prepare("--all", "HEAD", work, repository)
    with pytest.raises(perf_ab.UsageError, match="not prepared"):
        perf_ab.measure(work, out, rounds=1, pause_s=0, words=[])
    perf_ab.prepare("HEAD~1", "HEAD", work, repository)
    with pytest.raises(perf_ab.UsageError, match="exists"):
        perf_ab.prepare("HEAD~1", "HEAD", work, repository)
    with pytest.raises(perf_ab.PerfError, match="exit code 3"):
        perf_ab.measure(work, out, rounds=1, pause_s=0, words=["--fail"])
    assert perf_ab.main(["measure", "--work", str(tmp_path / "none"), "--out", str(out)]) == 2
    words = ["measure", "--work", str(work), "--out", str(out), "--pause", "0", "--", "--fail"]
    assert perf_ab.main(words) == 1
    assert "perf_ab: " in capsys.readouterr().err


SUMMARY = f"""{perf_comment.MARKER}
## Performance gate

**Passed.** See https://evil.example or www.evil.example, [click](javascript:x)

| metric | base |
| --- | --- |
| <img src=x> @everyone #12 | 5 |
"""


def test_a_comment_keeps_the_table_and_nothing_else() -> None:
    text = perf_comment.comment(SUMMARY, "RUN-PAGE")
    lines = text.splitlines()
    assert lines[0] == perf_comment.MARKER
    assert text.count("<!--") == 1
    assert "## Performance gate" in lines
    assert "| --- | --- |" in lines
    assert "**Passed.**" in text
    assert text.endswith("[The run](RUN-PAGE)\n")
    for odd in ("<img", "@everyone", "#12", "https://", "www.evil", "[click]("):
        assert odd not in text


def test_a_comment_is_cut_at_a_line() -> None:
    text = perf_comment.comment("| row |\n" * 100_000, None)
    assert len(text) < 65_536
    assert text.rstrip().endswith("the run's page has all of it.")


def test_the_gates_marker_is_the_comments() -> None:
    from bytebound_evals.gate import tables

    assert tables.MARKER == perf_comment.MARKER


def test_the_tools_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert perf_comment.main([str(tmp_path / "none")]) == 2
    (tmp_path / "summary.md").write_bytes(b"| \xff |\n")
    assert perf_comment.main([str(tmp_path / "summary.md")]) == 0
    assert capsys.readouterr().out.startswith(perf_comment.MARKER)
    assert json.dumps("ok")
