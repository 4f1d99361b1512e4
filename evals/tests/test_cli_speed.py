"""``throughput`` and ``gate`` as a user runs them, on the shipped model and this CPU."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from bytebound_evals.cli.app import COMMANDS
from bytebound_evals.conditions import machine_record
from bytebound_evals.results import Result, parse_result, read_result, write_result

from .evals_cli import Cli, Outcome, cli, refused
from .speed_results import metric, result, scaled

__all__ = ["cli"]  # a fixture

QUICK = ["-m", "tiny", "--device", "cpu", "--tokens", 12, "--samples", 2]
DRAFTS = [f"--draft={word}" for word in ("none", "ngram:2", "mtp:2", "forced:2@0.5")]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Result:
    from bytebound_evals.cli import main

    file = tmp_path_factory.mktemp("speed") / "tiny.json"
    words = ["throughput", *QUICK, *DRAFTS, "--depth", 40, "--prompt", "json", "--prompt", "chat"]
    words += ["--read-gb-s", 20, "--commit", "abc", "--out", file]
    assert main([str(word) for word in words]) == 0
    return read_result(file)


def test_every_draft_has_its_numbers(measured: Result) -> None:
    names = set(measured.metrics)
    for stem in ("plain_40", "json.plain", "chat.plain"):
        assert f"{stem}.tok_s" in names
    for label in ("ngram2", "mtp2", "forced2@0.5"):
        for stem in (f"{label}_40", f"json.{label}", f"chat.{label}"):
            fields = ("tok_s", "step_ms", "accepted_per_step", "acceptance", "same_tokens")
            drafted = {f"{stem}.{field}" for field in fields}
            # An n-gram may never recur in twelve tokens: then nothing was drafted.
            assert drafted <= names or label == "ngram2"
    assert {"prompt_40.tok_s", "plain_40.percent_of_limit", "suite.mtp2.tok_s"} <= names


def test_samples_are_all_kept_and_greedy_text_is_the_same(measured: Result) -> None:
    for name, one in measured.metrics.items():
        single = name == "read_gb_s" or name.endswith((".same_tokens", ".bytes_per_token"))
        assert len(one.samples) == (1 if single else 2), name
        if name.endswith(".same_tokens"):
            assert (one.median, one.tol_pct) == (1.0, 0.0), name


def test_the_file_says_the_conditions(measured: Result) -> None:
    assert measured.commit == "abc"
    assert {"cpu", "threads", "torch"} <= measured.machine.keys()
    assert measured.command.startswith("bytebound-evals throughput --model tiny")
    assert measured.command.endswith(" --read-gb-s 20")  # the gate runs it again
    assert "Forced acceptance" in (measured.note or "")
    case = measured.metrics["json.mtp2.tok_s"].case
    assert case["draft"] == "mtp"
    assert case["draft_tokens"] == 2
    assert case["dtype"] == "float32"
    assert case["new_tokens"] == 12


def test_percent_of_the_limit_is_speed_times_bytes_over_bandwidth(measured: Result) -> None:
    speed = measured.metrics["plain_40.tok_s"].median
    num_bytes = measured.metrics["plain_40.bytes_per_token"].median
    percent = measured.metrics["plain_40.percent_of_limit"].median
    assert percent == pytest.approx(100 * speed * num_bytes / 20e9)
    assert num_bytes > 4 * 9e6  # float32 weights of the shipped model, the embedding apart


def test_json_to_stdout_is_the_file(cli: Cli) -> None:
    outcome = cli(
        *("throughput", *QUICK, "--draft", "none", "--depth", 8, "--prompt", "none"),
        "--samples", 1, "--json",
    )  # fmt: skip
    assert outcome.code == 0
    written = parse_result(json.loads(outcome.out), "stdout")
    assert "plain_8.tok_s" in written.metrics
    assert "plain_8: " in outcome.err  # each run is printed


def test_the_gate_runs_the_baselines_own_command(
    cli: Cli, tmp_path: Path, measured: Result
) -> None:
    """What it measures need not equal the baseline in speed here, only in form and exactness."""
    stem = "throughput --model tiny --device cpu --draft none --draft mtp:2 --depth 0"
    command = f"bytebound-evals {stem} --prompt json --tokens 6 --samples 1"
    first = cli(*command.split()[1:], "--out", tmp_path / "base.json")
    assert first.code == 0
    base = read_result(tmp_path / "base.json")
    words = base.command.split()
    assert words[:2] == ["bytebound-evals", "throughput"]
    slow = {
        name: dataclasses.replace(m, tol_pct=1e6) if m.tol_pct else m
        for name, m in base.metrics.items()
    }
    write_result(tmp_path / "base.json", dataclasses.replace(base, metrics=slow))
    outcome = cli("gate", "--baseline", tmp_path / "base.json", "--json")
    assert outcome.code == 0, outcome
    rows = {row["metric"]: row for row in json.loads(outcome.out)["rows"]}
    assert rows.keys() == base.metrics.keys()
    assert rows["json.mtp2.same_tokens"]["verdict"] == "ok"


def test_gate_exit_codes_and_files(cli: Cli, tmp_path: Path) -> None:
    base = result({"a.tok_s": metric(100, 101, 99, 100, 102)})
    slow = scaled(base, lambda name, i: 0.9)
    for name, one in (("base", base), ("slow", slow)):
        write_result(tmp_path / f"{name}.json", one)
    paths = {name: tmp_path / f"{name}.json" for name in ("base", "slow")}
    same = cli("gate", "--baseline", paths["base"], "--head", paths["base"])
    assert (same.code, same.err) == (0, "")
    assert "passed: 1 metrics" in same.out
    summary = tmp_path / "new" / "summary.md"
    worse = cli(
        *("gate", "--baseline", paths["base"], "--head", paths["slow"]),
        *("--summary", summary, "--out", tmp_path / "gate.json"),
    )
    assert worse.code == 1
    assert "SLOWER" in worse.out
    assert "| a.tok_s | 100 | 90 | tok/s | -10.0 %" in summary.read_text()
    assert json.loads((tmp_path / "gate.json").read_text())["failed"] is True
    waivers = tmp_path / "body.txt"
    waivers.write_text("perf-waiver: a.tok_s exactness first\n")
    waived = cli(
        *("gate", "--baseline", paths["base"], "--head", paths["slow"], "--waivers", waivers)
    )
    assert waived.code == 0
    rounds = [word for _ in range(2) for word in ("--head", paths["slow"])]
    assert cli("gate", "--baseline", paths["base"], *rounds).code == 1
    for option in ("--out", "--summary"):
        words = ["gate", "--baseline", tmp_path / "none.json", option]
        refused(cli(*words, "."), option, "is a folder")
        refused(cli(*words, paths["base"] / "x"), option, "is no folder")


def test_gate_refuses(cli: Cli, tmp_path: Path) -> None:
    base, other = tmp_path / "base.json", tmp_path / "other.json"
    write_result(base, result({"a.tok_s": metric(1.0)}, command="python bench/decode.py"))
    write_result(other, result({"a.tok_s": metric(1.0)}, machine={"gpu": "Other", "driver": "1"}))
    refused(cli("gate", "--baseline", base, "--head", other), "different machines", "Some GPU")
    refused(cli("gate", "--baseline", base), "python bench/decode.py", "--head FILE")
    refused(cli("gate", "--baseline", tmp_path / "none.json"), "none.json", "No such file")
    for widen in (0.5, "inf", "nan"):
        refused(cli("gate", "--baseline", base, "--head", base, "--widen", widen), "--widen")
    unclosed = tmp_path / "unclosed.json"
    command = "bytebound-evals ppl --name 'x"
    write_result(unclosed, result({"a": metric(1.0)}, command=command))
    refused(cli("gate", "--baseline", unclosed), "cannot run again; give --head FILE")
    deep, huge = tmp_path / "deep.json", tmp_path / "huge.json"
    deep.write_text("[" * 200_000)
    record = result({"a": metric(1.0)}).as_dict()
    record["metrics"]["a"]["samples"] = [10**400]
    huge.write_text(json.dumps(record))
    for damaged, words in ((deep, "nested too deep"), (huge, "finite numbers")):
        refused(cli("gate", "--baseline", base, "--head", damaged), words)
        refused(cli("report", damaged, "--out", tmp_path / "report"), words)
    refused(cli("gate"), "--baseline", "bytebound-evals gate --help")


def test_the_gate_measures_nothing_that_it_could_not_compare(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bytebound_evals.cli.gate.subprocess.run", pytest.fail)
    file = tmp_path / "base.json"
    command = "bytebound-evals throughput --model tiny"

    def judged(**fields: Any) -> Outcome:
        metrics = {} if "not_measured" in fields else {"a.tok_s": metric(1.0)}
        write_result(file, result(metrics, command=command, **fields))
        return cli("gate", "--baseline", file)

    def no_driver() -> str:
        raise RuntimeError("no NVIDIA driver")

    monkeypatch.setattr("bytebound_evals.conditions._card", dict)
    monkeypatch.setattr("torch.cuda.get_device_name", no_driver)
    refused(judged(), "the baseline is of the GPU 'Some GPU', and there is none here")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Another GPU")
    refused(judged(), "the baseline and what runs here", "'Some GPU' and 'Another GPU'")
    here = machine_record("cpu")
    refused(judged(machine={**here, "threads": 99}), "different machines", "threads is 99")
    refused(judged(not_measured="no such card was at hand"), "the baseline was not measured")


WRONG = {
    "model": (["-m", "no-such"], ["no-such"]),
    "draft": (["--draft", "mpt:4"], ["mpt:4", "forced:4@0.7"]),
    "draft twice": (["--draft", "mtp", "--draft", "mtp:4"], ["mtp4", "twice"]),
    "forced alone": (["--draft", "forced:4@0.5"], ["--draft none"]),
    "one token": (["--tokens", 1], ["--tokens 1", "at least 2"]),
    "no sample": (["--samples", 0], ["--samples 0"]),
    "depth": (["--depth", -5], ["--depth -5"]),
    "depth twice": (["--depth", 8, "--depth", 8], ["twice"]),
    "draft's depth": (["--depth", 8, "--draft-depth", 9], ["--draft-depth 9", "one of the depths"]),
    "nothing": (["--depth", 0, "--prompt", "none"], ["nothing to measure"]),
    "prompt": (["--prompt", "poem"], ["poem", "prose"]),
    "bandwidth": (["--read-gb-s", -1], ["--read-gb-s"]),
    "card": (["--card", "none.json"], ["none.json"]),
    "device": (["--device", "tpu", "--depth", 8], ["device='tpu'"]),
    "no such GPU": (["--device", "cuda:99", "--depth", 8], ["cuda:99"]),
    "backend": (["--backend", "gpu", "--depth", 8], ["backend='gpu'"]),
    "cuda here": (["--backend", "cuda"], ["backend='cuda'"]),
    "random here": (["-m", "random:qwen3.5-27b", "--draft", "none"], ["cuda"]),
    "beyond the model": (["--depth", 100000], ["max_len"]),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG)
def test_wrong_use(cli: Cli, words: list[object], said: list[str]) -> None:
    refused(cli("throughput", "-m", "tiny", "--device", "cpu", *words), *said)


def test_every_command_explains_itself(cli: Cli) -> None:
    for command in COMMANDS:
        outcome = cli(command.__name__.replace("_", "-"), "--help")
        assert outcome.code == 0
        assert "--json" in outcome.out
    assert cli("--version").out.startswith("bytebound-evals 0.")
    refused(cli("thruput"), "thruput")
    bare = cli()
    assert (bare.code, bare.out) == (2, "")
