"""``ppl``, ``kl``, ``gsm8k`` and ``needle`` as a user runs them, on the shipped model and a CPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bytebound.names import resolve_model
from bytebound_evals.cli import main
from bytebound_evals.cli.errors import UsageError
from bytebound_evals.cli.text_options import unescaped
from bytebound_evals.results import read_result

from .evals_cli import Cli, cli, refused
from .local_datasets import write_wikitext

__all__ = ["cli"]  # a fixture

TINY = ["-m", "tiny", "--device", "cpu"]
CUT = ["--window", 128, "--max-tokens", 600]


@pytest.fixture(scope="module")
def rtn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bytebound_quant.cli import main as quant

    folder = tmp_path_factory.mktemp("models") / "tiny-rtn"
    assert quant(["rtn", "tiny", str(folder), "--device", "cpu"]) == 0
    return folder


@pytest.fixture(scope="module")
def other_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model with two ids of its vocabulary exchanged."""
    folder = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(resolve_model("tiny"), folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, two = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    file.write_text(json.dumps(tokenizer))
    return folder


def printed(cli: Cli, *words: object) -> dict[str, Any]:
    outcome = cli(*words, "--json")
    assert outcome.code == 0, outcome.err
    (line,) = outcome.out.splitlines()
    record: dict[str, Any] = json.loads(line)
    return record


def test_perplexity_is_shown_with_its_rule(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("ppl", *TINY, *CUT)
    assert outcome.code == 0
    assert "5 of 128 tokens, one every 128; prefix: none; 595 tokens scored" in outcome.out
    record = printed(cli, "ppl", *TINY, *CUT, "--stride", 64, "--prefix", "window")
    assert (record["stride"], record["prefix"], record["prefix_id"]) == (64, "window", 4076)
    assert record["scored_tokens"] == record["tokens"] == 600
    low, high = record["ppl_interval"]
    assert 1 < low < record["ppl"] < high < 100


def test_a_result_file_holds_the_figure_and_how_it_was_taken(cli: Cli, tmp_path: Path) -> None:
    text, out = tmp_path / "mine.txt", tmp_path / "out" / "ppl.json"
    text.write_text("The cat sat on the mat, and the dog on the log. " * 40)
    words = ["--text", text, "--window", 64, "--name", "bf16", "--out", out]
    record = printed(cli, "ppl", *TINY, *words)
    result = read_result(out)
    metric = result.metrics["bf16.ppl"]
    assert metric.samples == (record["ppl"],)
    assert metric.case["text"] == "text:mine.txt" and metric.case["window"] == 64
    assert str(tmp_path) not in out.read_text()


def test_divergence_of_a_4_bit_folder(cli: Cli, rtn: Path, tmp_path: Path) -> None:
    words = ["kl", "-m", rtn, "--device", "cpu", *CUT]
    side_by_side = printed(cli, *words, "--reference", "tiny")
    assert side_by_side["direction"] == "KL(reference || model)"
    assert 0.01 < side_by_side["kl"] < 0.5 and 0.7 < side_by_side["top1"] < 1
    low, high = side_by_side["kl_interval"]
    assert low < side_by_side["kl"] < high

    cache = tmp_path / "cache"
    first = cli(*words, "--reference", "tiny", "--cache", cache, "--json")
    (entry,) = cache.iterdir()
    assert f"writes 9.75 MB of reference logits to {entry}" in first.err
    again = cli(*words, "--reference", "tiny", "--cache", cache, "--json")
    assert "writes" not in again.err
    assert json.loads(first.out) == json.loads(again.out) == side_by_side
    alone = printed(cli, *words, "--reference-logits", entry)
    assert {**alone, "reference": "tiny"} == side_by_side


def test_the_model_itself_is_no_way_from_itself(cli: Cli) -> None:
    record = printed(cli, "kl", *TINY, *CUT, "--reference", "tiny")
    assert (record["kl"], record["top1"]) == (0, 1)
    assert record["ppl"] == record["reference_ppl"]


def test_another_tokenizer_is_refused(cli: Cli, other_tokenizer: Path, tmp_path: Path) -> None:
    words = ["kl", "-m", other_tokenizer, "--device", "cpu", *CUT]
    refused(cli(*words, "--reference", "tiny"), "the reference has another tokenizer")
    cache = tmp_path / "cache"
    printed(cli, "kl", *TINY, *CUT, "--reference", "tiny", "--cache", cache)
    (entry,) = cache.iterdir()
    refused(cli(*words, "--reference-logits", entry), "made with another tokenizer")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ppl", "-m", "tiny", "--text", "absent.txt"], "is no file and no known text"),
        (["ppl", "-m", "tiny", "--max-tokens", 100], "shorter than the window of 2048"),
        (["ppl", "-m", "tiny", "--window", 9000], "window 9000 is beyond the model's context of"),
        (["ppl", "-m", "tiny", "--stride", 4096], "stride is 4096, expected 1 to 2048"),
        (["ppl", "-m", "tiny", "--prefix", "bos"], "prefix is 'bos', expected one of none"),
        (["ppl", "-m", "tiny", "--prefix-id", 3], "prefix 'none' with prefix id 3"),
        (["ppl", "-m", "tiny", "--prefix", "window", "--prefix-id", 5000], "prefix id is 5000"),
        (["ppl", "-m", "tiny", "--join", r"\x"], r"expected \n"),
        (["ppl", "-m", "nowhere"], "no model folder 'nowhere'"),
        (["ppl", "-m", "random:qwen3.5-27b"], "holds no tokenizer"),
        (["kl", "-m", "tiny"], "expected either --reference or --reference-logits"),
        (["kl", "-m", "tiny", "--reference-logits", "x", "--cache", "y"], "--cache keeps"),
        (["kl", "-m", "tiny", "--reference-logits", "absent"], "holds no complete reference"),
        (["kl", "-m", "tiny", "--reference", "tiny", "--cache", "/dev/null"], "is no folder"),
        (["kl", "-m", "tiny", "--reference", "tiny", "--cache-limit", "nan"], "--cache-limit nan"),
        (["kl", "-m", "tiny", "--reference", "absent"], "no model folder 'absent'"),
        (["gsm8k", "-m", "tiny", "--data", "absent.jsonl"], "is no file and no known text"),
        (["ppl", "-m", "tiny", "--text", "wikitext2:absent"], "'absent' is no folder; expected"),
        (["gsm8k", "-m", "tiny", "--data", "gsm8k:absent"], "'absent' is no folder; expected"),
        (["gsm8k", "-m", "tiny", "--mode", "base"], "mode is 'base'"),
        (["gsm8k", "-m", "tiny", "--data", "arithmetic", "--limit", 0], "limit 0"),
        (["gsm8k", "-m", "tiny", "--max-tokens", 9000], "max tokens 9000 is beyond"),
        (["needle", "-m", "tiny", "--lengths", "16k"], "length 16384 is beyond the model's"),
        (["needle", "-m", "tiny", "--depths", "top"], "--depths 'top': expected numbers"),
        (["needle", "-m", "tiny", "--max-tokens", 0], "an answer token"),
        (["needle", "-m", "tiny", "--plot", "map.jpg"], "map.jpg: expected a file that ends in"),
    ],
)
def test_wrong_use_is_one_line_before_anything_is_measured(
    cli: Cli, words: list[object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(cli(*words), message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["ppl", "kl", "gsm8k", "needle", "throughput"])
def test_an_out_that_cannot_be_written_is_refused_first(
    cli: Cli, command: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    words = [command, "-m", tmp_path / "no-model"]
    words += ["--reference", "no-model"] if command == "kl" else []
    for out in ("", ".", "/", "..", tmp_path):
        refused(cli(*words, "--out", out), "--out", "is a folder; expected the name of a file")
    for out in (tmp_path / "file" / "x.json", tmp_path / "file" / "y" / "x.json"):
        refused(cli(*words, "--out", out), "--out", "is no folder")
    refused(cli(*words, "--out", tmp_path / ("x" * 300)), "too long")


def test_a_missing_column_and_an_empty_document_are_wrong_use(cli: Cli, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"body": "some words that make a document of this table"}\n{"body": ""}\n')
    refused(cli("ppl", *TINY, "--text", rows), "no field 'text'; it has body")
    words = ["--text", f"jsonl:{rows}#body", "--window", 8]
    refused(cli("ppl", *TINY, *words), "document 2 is empty")
    assert cli("ppl", *TINY, *words, "--join", r"\n").code == 0


def test_a_dataset_leaves_nothing_on_stderr(tmp_path: Path) -> None:
    """In a process of its own: the libraries read their variables when they are imported."""
    copy = write_wikitext(tmp_path / "wikitext")
    words = ["ppl", "-m", "tiny", "--device", "cpu", "--window", "8", "--text", f"wikitext2:{copy}"]
    done = subprocess.run(
        [sys.executable, "-m", "bytebound_evals", *words],
        env={**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_shipped_problems_are_asked_and_the_log_is_continued(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    words = ["gsm8k", *TINY, "--data", "arithmetic", "--limit", 4, "--max-tokens", 160]
    record = printed(cli, *words, "--log", log)
    assert (record["problems"], record["valid"], record["thinking"]) == (4, True, False)
    assert record["accuracy"] == record["right"] / 4 >= 0.75
    whole = log.read_bytes()
    log.write_bytes(whole[: whole.rfind(b'{"item": "2"')])
    assert printed(cli, *words, "--log", log) == record
    assert log.read_bytes() == whole
    other = ["gsm8k", *TINY, "--data", "arithmetic", "--limit", 4, "--max-tokens", 99]
    refused(cli(*other, "--log", log), "max_tokens 160, now 99")


def test_a_run_with_too_many_cut_replies_fails_and_has_no_accuracy(
    cli: Cli, tmp_path: Path
) -> None:
    words = ["gsm8k", *TINY, "--data", "arithmetic", "--limit", 2, "--max-tokens", 5, "--json"]
    outcome = cli(*words, "--out", tmp_path / "out.json")
    assert outcome.code == 1
    assert "invalid: 100.0% of the replies were cut off at 5 tokens" in outcome.err
    record = json.loads(outcome.out)
    assert (record["valid"], record["accuracy"]) == (False, None)
    assert list(read_result(tmp_path / "out.json").metrics) == ["arithmetic.tiny.cut_share"]


def test_needles_are_shown_as_a_table_and_drawn(cli: Cli, tmp_path: Path) -> None:
    words = ["needle", *TINY, "--lengths", "400,512", "--depths", "0,1"]
    outcome = cli(*words, "--plot", tmp_path / "map.png", "--out", tmp_path / "out.json")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-3].split() == ["depth", "\\", "length", "400", "512"]
    assert (tmp_path / "map.png").stat().st_size > 1000
    metrics = read_result(tmp_path / "out.json").metrics
    assert set(metrics) == {
        "needle.tiny.found",
        "needle.tiny.found_400",
        "needle.tiny.found_512",
    }


@pytest.mark.parametrize("command", ["ppl", "kl", "gsm8k", "needle"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "read"), [(r"\n\n", "\n\n"), (r"a\tb\\n", "a\tb\\n"), ("", ""), (None, None)]
)
def test_escapes_of_join(given: str | None, read: str | None) -> None:
    assert unescaped(given) == read


def test_an_unknown_escape_is_refused() -> None:
    with pytest.raises(UsageError, match="backslash"):
        unescaped("a\\")
