"""The benchmarks of the server run, on small models and short prompts."""

import json
import runpy
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from .checkpoints import random_checkpoint

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture(autouse=True)
def neighbours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A script finds the modules beside it, and leaves as many CPU threads as there were."""
    monkeypatch.syspath_prepend(str(BENCH))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    sys.modules.pop("served_engine", None)


def run(script: str, target: Path, *options: str) -> dict[str, Any]:
    main = runpy.run_path(str(BENCH / script))["main"]
    assert main(["--json", str(target), *options, "--commit", "abc"]) == 0
    content: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    assert (content["schema"], content["commit"]) == (1, "abc")
    for metric in content["metrics"].values():
        assert metric["median"] == statistics.median(metric["samples"])
    metrics: dict[str, Any] = content["metrics"]
    return metrics


def test_overhead(tmp_path: Path) -> None:
    options = ["--tok-s", "500", "--tokens", "40", "--rounds", "2"]
    metrics = run("server_overhead.py", tmp_path / "server.json", *options)
    assert set(metrics) == {
        f"{prefix}{name}"
        for prefix in ("", "in_turn.")
        for name in (
            "bare.tok_s",
            *(f"{name}.tok_s" for name in ("chat", "completions", "messages")),
            *(f"{name}.overhead_percent" for name in ("chat", "completions", "messages")),
        )
    }
    assert all(len(metric["samples"]) == 2 for metric in metrics.values())
    for name in ("bare", "chat", "completions", "messages"):
        assert 0 < metrics[f"{name}.tok_s"]["median"] < 1000


@pytest.mark.parametrize("has_tokenizer", [True, False], ids=["tiny", "no-tokenizer"])
def test_latency(tmp_path: Path, has_tokenizer: bool) -> None:
    folder = random_checkpoint(tmp_path / "model", vocab_size=4096).folder
    model = "tiny" if has_tokenizer else str(folder)
    options = ["--model", model, "--backend", "reference", "--prompt-tokens", "200"]
    options += ["--samples", "2", "--reply-tokens", "4"]
    metrics = run("server_latency.py", tmp_path / "latency.json", *options)
    for name in ("cold", "repeat", "warm"):
        case = metrics[f"{name}_200.s"]["case"]
        assert 200 <= case["prompt_tokens"] < 260
        assert metrics[f"{name}_200.s"]["median"] >= metrics[f"{name}_200.engine_s"]["median"] > 0
    assert metrics["cold_200.s"]["case"]["cached_tokens"] == 0
    repeated = metrics["repeat_200.s"]["case"]
    assert repeated["cached_tokens"] == repeated["prompt_tokens"]
    assert metrics["warm_200.s"]["case"]["cached_tokens"] > 150
    assert 0 < metrics["repeat_200_over_cold"]["median"] < 1
