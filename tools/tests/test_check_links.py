from collections.abc import Callable
from pathlib import Path

import pytest
from check_links import blank_code, check_links

Problems = Callable[[str], list[str]]
TRACKED = ("docs/a.md", "docs/b.md", "docs/with space.md", "LICENSE", "bench/results/x.json")


@pytest.fixture
def problems(tmp_path: Path) -> Problems:
    """Return the check of one Markdown file in docs/, among other tracked files."""
    (tmp_path / "docs").mkdir()

    def find(text: str) -> list[str]:
        (tmp_path / "docs" / "a.md").write_text(text)
        return list(check_links(tmp_path, TRACKED))

    return find


@pytest.mark.parametrize(
    "text",
    [
        "[b](b.md)",
        "[b](./b.md#part)",
        "[b](<b.md>)",
        '[b](b.md "title")',
        "[b](with%20space.md)",
        "[b](<with space.md>)",
        "[l](../LICENSE)",
        "[l](/LICENSE)",
        "[r](../bench/results)",
        "[r](../bench/)",
        "[root](..)",
        "[part](#part)",
        "[far](https://example.com/none.md)",
        "[mail](mailto:a@b.c)",
        "[b]: b.md",
        "```sh\n[x](none.md)\n```",
        "~~~~\n[x](none.md)\n~~~\n~~~~",
        "text\n\n    [x](none.md)\n\n    [y](none.md)\n",
        "`[x](none.md)` and ``a ` [x](none.md)``",
    ],
)
def test_sound(problems: Problems, text: str) -> None:
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "line", "target"),
    [
        ("one\n[b](none.md)", 2, "none.md"),
        ("![picture](none.png)", 1, "none.png"),
        ("[b](none.md#part)", 1, "none.md#part"),
        ("[a\nb](none.md)", 2, "none.md"),
        ("[b](../../outside.md)", 1, "../../outside.md"),
        ("[b](docs/b.md)", 1, "docs/b.md"),
        ("[b]: none.md", 1, "none.md"),
        ("```\ncode\n```\n[b](none.md)", 4, "none.md"),
        ("text\n    [b](none.md)", 2, "none.md"),
        ("`code` [b](none.md) `code`", 1, "none.md"),
        ("[`b`](none.md)", 1, "none.md"),
        ("[b](B.md)", 1, "B.md"),
    ],
)
def test_broken(problems: Problems, text: str, line: int, target: str) -> None:
    assert problems(text) == [f"docs/a.md:{line}: the link to {target} leads to no tracked file"]


def test_only_tracked_files_count(problems: Problems, tmp_path: Path) -> None:
    (tmp_path / "docs" / "new.md").write_text("not tracked, and so in no clone")
    assert len(problems("[b](new.md)")) == 1


def test_blanked_code_keeps_the_lines() -> None:
    text = "a\n```\nb\n```\n`c\nd` e\n"
    assert blank_code(text).count("\n") == text.count("\n")
    assert blank_code(text).split() == ["a", "e"]
