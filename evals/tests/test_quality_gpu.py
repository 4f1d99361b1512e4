"""The CUDA engine on the yardstick: how far it is from the reference engine in float32."""

import pytest
from bytebound_evals.divergence import LiveReference, measure_divergence
from bytebound_evals.measured_text import TextSettings
from bytebound_evals.model_run import ModelRun

pytestmark = pytest.mark.gpu


def test_the_cuda_engine_is_near_the_reference_at_every_position() -> None:
    reference = ModelRun("tiny", backend="reference", device="cuda", dtype="float32").open()
    engine = ModelRun("tiny", backend="cuda").open()
    text = TextSettings(window=8192, max_tokens=16_384).cut(engine.tokenizer)
    found = measure_divergence(engine, LiveReference(reference, text), text)
    assert found.kl < 0.01
    assert found.top1 > 0.97
    # A recurrent state that loses precision would drift further away the longer the text is.
    assert found.kl_by_position[4096] < 2 * found.kl_by_position[128] + 1e-3
