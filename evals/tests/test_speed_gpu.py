"""``throughput`` and ``gate`` on a GPU, at a few layers of the 27B shape with random weights."""

import json
from importlib import resources
from pathlib import Path

import pytest
from bytebound_evals.results import read_result

from .evals_cli import Cli, cli

__all__ = ["cli"]  # a fixture

pytestmark = pytest.mark.gpu

LAYERS = 4  # three Gated DeltaNet, one attention


@pytest.fixture
def shape(tmp_path: Path) -> str:
    file = resources.files("bytebound") / "models" / "shapes" / "qwen3.5-27b.json"
    config = {**json.loads(file.read_text()), "num_hidden_layers": LAYERS, "vocab_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return f"random:{tmp_path / 'config.json'}"


def test_a_card_is_measured_against_its_limit(cli: Cli, shape: str, tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    words = ["throughput", "-m", shape, "--backend", "cuda", "--depth", 600, "--prompt", "json"]
    words += ["--draft", "none", "--draft", "mtp:3", "--draft", "forced:3@0.5"]
    words += ["--tokens", 24, "--samples", 3, "--out", out]
    outcome = cli(*words)
    assert outcome.code == 0, outcome
    found = read_result(out)
    assert {"gpu", "driver", "cuda", "power_limit_w", "clocks"} <= found.machine.keys()
    read = found.metrics["read_gb_s"]
    assert read.case["source"] == "measured before"
    assert len(read.samples) == 10
    plain = found.metrics["plain_600.tok_s"]
    assert (plain.case["dtype"], plain.case["kv_dtype"]) == ("float16", "float16")
    per_token = found.metrics["plain_600.bytes_per_token"].median
    share = [100 * speed * per_token / (1e9 * read.median) for speed in plain.samples]
    assert list(found.metrics["plain_600.percent_of_limit"].samples) == pytest.approx(share)
    for label in ("mtp3", "forced3@0.5"):
        for stem in (f"{label}_600", f"json.{label}"):
            assert found.metrics[f"{stem}.same_tokens"].median == 1
            assert found.metrics[f"{stem}.step_ms"].median > 0
    assert "mtp3_600.tok_s" not in found.metrics  # random weights accept nothing
    assert found.metrics["forced3@0.5_600.accepted_per_step"].median > 1
    assert found.metrics["prompt_600.tok_s"].case["backend"] == "cuda"
    assert cli("gate", "--baseline", out, "--head", out).code == 0
