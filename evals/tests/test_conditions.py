"""What a result file says of the run: machine, commit, command."""

import subprocess
from pathlib import Path

import pytest
from bytebound_evals import conditions
from bytebound_evals.conditions import command_record, commit_record, machine_record


def test_a_command_keeps_no_folder_of_one_machine() -> None:
    words = ["--model", "/data/models/m 1", "--out=~/x/y.json", "--text", "text:/data/c.txt"]
    words += ["--form", "rtn=4", "-h", "../up/z", "bench/results/h200/card.json", "forced:4@0.7"]
    assert command_record("prog", words) == (
        "prog --model 'm 1' --out=y.json --text text:c.txt --form rtn=4 -h z "
        "bench/results/h200/card.json forced:4@0.7"
    )


def test_a_processor_says_its_threads() -> None:
    record = machine_record("cpu")
    assert record["cpu"]
    assert record["threads"] >= 1
    assert record.keys() == {"cpu", "threads", "torch", "python"}


def test_a_card_is_described_by_its_own_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "NVIDIA H200, 580.159.04, 700.00, 1905, 3201, 1980\nNVIDIA H200, other\n"

    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, line, "")

    monkeypatch.setattr(subprocess, "run", run)
    record = machine_record("cuda")
    assert record["gpu"] == "NVIDIA H200"
    assert record["driver"] == "580.159.04"
    assert record["power_limit_w"] == "700.00"
    assert record["clocks"] == "1905 MHz SM and 3201 MHz memory after the run, at most 1980 SM"
    assert record.keys() == {"gpu", "driver", "cuda", "torch", "power_limit_w", "clocks"}


def test_a_commit_is_given_or_found_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit_record("abc") == "abc"
    monkeypatch.setattr(conditions, "__file__", str(Path("/") / "x.py"))
    assert commit_record() == "unknown"
