"""``throughput`` and ``gate`` over the CUDA backend, random weights, on the kernels' references.

What test_speed_gpu.py does on a GPU, at a narrow shape: everything but the kernels, the recordings
and the clock is the same.
"""

import json
from importlib import resources
from pathlib import Path

import pytest
from bytebound_evals.divergence import LiveReference, measure_divergence
from bytebound_evals.measured_text import TextSettings
from bytebound_evals.model_run import ModelRun
from bytebound_evals.results import read_result

from .emulation import emulate_cuda
from .evals_cli import Cli, cli

__all__ = ["cli"]  # a fixture

NARROW = {
    "vocab_size": 384,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
}
SMI = "Emulated GPU, 580.1, 700.00, 1980, 3201, 1980"


@pytest.fixture
def shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    emulate_cuda(monkeypatch)
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\necho '{SMI}'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:/usr/bin:/bin")
    file = resources.files("bytebound") / "models" / "shapes" / "qwen3.5-27b.json"
    (tmp_path / "config.json").write_text(json.dumps({**json.loads(file.read_text()), **NARROW}))
    return f"random:{tmp_path / 'config.json'}"


def test_random_weights_are_measured_with_every_draft(cli: Cli, shape: str, tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    words = ["throughput", "-m", shape, "--backend", "cuda", "--read-gb-s", 100]
    words += ["--depth", 130, "--depth", 70, "--draft-depth", 70, "--prompt", "json"]
    words += ["--draft", "none", "--draft", "mtp:3"]
    words += ["--draft", "forced:3@0.5", "--draft", "forced:3@1"]
    words += ["--tokens", 8, "--samples", 2, "--out", out]
    outcome = cli(*words)
    assert outcome.code == 0, outcome
    found = read_result(out)
    assert found.machine["gpu"] == "Emulated GPU"
    assert found.machine["power_limit_w"] == "700.00"
    assert found.metrics["plain_130.percent_of_limit"].median > 0
    case = found.metrics["prompt_130.tok_s"].case
    assert (case["backend"], case["dtype"], case["kv_dtype"], case["ids"]) == (
        "cuda",
        "float16",
        "float16",
        "bytes",
    )
    for label in ("mtp3", "forced3@0.5", "forced3@1"):
        for stem in (f"{label}_70", f"json.{label}"):
            assert found.metrics[f"{stem}.same_tokens"].median == 1, stem
            assert found.metrics[f"{stem}.step_ms"].median > 0
        assert f"{label}_130.step_ms" not in found.metrics
    assert "mtp3_70.tok_s" not in found.metrics
    assert found.metrics["forced3@1_70.acceptance"].median == 1
    assert 1 < found.metrics["forced3@0.5_70.accepted_per_step"].median < 4
    assert cli("gate", "--baseline", out, "--head", out).code == 0


def test_the_cuda_engine_is_judged_by_the_reference(shape: str, tmp_path: Path) -> None:
    """The path of test_quality_gpu.py: two engines, windows beyond a chunk of scored rows."""
    reference = ModelRun("tiny", backend="reference", device="cpu", dtype="float32").open()
    engine = ModelRun("tiny", backend="cuda").open()
    text = TextSettings(window=160, max_tokens=320).cut(engine.tokenizer)
    found = measure_divergence(engine, LiveReference(reference, text), text)
    assert found.kl < 0.01
    assert found.top1 > 0.97
    assert found.kl_by_position[128] < 2 * found.kl_by_position[0] + 1e-3
