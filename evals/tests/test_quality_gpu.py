"""The CUDA engine on the yardstick: how far it is from the reference engine in float32."""

from pathlib import Path

import pytest
from bytebound_evals.divergence import LiveReference, measure_divergence
from bytebound_evals.measured_text import TextSettings
from bytebound_evals.model_run import ModelRun
from bytebound_evals.results import read_result
from bytebound_evals.suite.forms import Calibration, form_keys, make_form

from .evals_cli import Cli, cli

__all__ = ["cli"]  # a fixture

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("bits", "most_kl", "least_top1"),
    [
        pytest.param(16, 1e-3, 0.98, id="16 bits, computed in bfloat16"),
        pytest.param(4, 1e-4, 0.99, id="4 bits, computed in float16"),
    ],
)
def test_the_cuda_engine_is_near_the_reference_at_every_position(
    tmp_path: Path, bits: int, most_kl: float, least_top1: float
) -> None:
    """The bounds are some 30 to 100 times what rounding alone makes of the shipped model."""
    model = "tiny"
    if bits == 4:
        (key,) = form_keys(["rtn"], model, Calibration(), "cpu").values()
        model = make_form(key, model, tmp_path, Calibration(), "cpu").model
    reference = ModelRun(model, backend="reference", device="cuda", dtype="float32").open()
    engine = ModelRun(model, backend="cuda").open()
    text = TextSettings(window=8192, max_tokens=16_384).cut(engine.tokenizer)
    found = measure_divergence(engine, LiveReference(reference, text), text)
    assert found.kl < most_kl
    assert found.top1 > least_top1
    # A recurrent state that loses precision would drift further away the longer the text is.
    assert found.kl_by_position[4096] < 2 * found.kl_by_position[128] + most_kl


def test_the_suite_runs_on_a_gpu(cli: Cli, tmp_path: Path) -> None:
    words = ["suite", "-m", "tiny", "--backend", "cuda", "--window", 512, "--text-tokens", 2048]
    words += ["--problem-limit", 4, "--make", "rtn", "--tokens", 8, "--samples", 2]
    words += ["--depth", 64, "--prompt", "json", "--draft", "none", "--draft", "mtp:2"]
    outcome = cli(*words, "--out", tmp_path)
    assert outcome.code == 0, outcome
    quality = read_result(tmp_path / "results" / "quality.json")
    assert "gpu" in quality.machine
    assert 0 < quality.metrics["rtn.kl"].median < 0.2
    assert quality.metrics["rtn.ppl"].median < 1.2 * quality.metrics["bf16.ppl"].median
    speed = read_result(tmp_path / "results" / "speed.json")
    assert speed.metrics["mtp2_64.same_tokens"].median == 1
    assert speed.metrics["plain_64.tok_s"].case["dtype"] == "bfloat16"
