from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound.checkpoint import load_checkpoint
from bytebound.config import ModelConfig
from bytebound.reference.model import decoder_layer, forward
from bytebound.reference.mtp import mtp_forward
from bytebound.reference.norm import rms_norm
from bytebound.reference.rotary import rotary_angles
from bytebound.reference.rows import Rows
from bytebound.reference.state import KvCache, SequenceState
from bytebound.weights import ModelWeights
from bytebound_quant.embedded import EmbeddedWindows
from bytebound_quant.gptq import gptq
from bytebound_quant.grid import Scheme
from bytebound_quant.hessian import Hessian
from bytebound_quant.layer_job import LayerJob
from bytebound_quant.layers import build_layer
from bytebound_quant.matrices import GptqOptions, fit_matrix
from bytebound_quant.source import open_source

from .small import CPU, GROUP, calibration, checkpoint, gptq_job, rtn_job

SCHEME = Scheme(group_size=GROUP)


def loaded(folder: Path) -> tuple[ModelWeights, ModelConfig]:
    config = ModelConfig.from_folder(folder)
    return load_checkpoint(folder, config, dtype=torch.float32, device=CPU).weights, config


def hidden_of(ids: torch.Tensor, weights: ModelWeights, config: ModelConfig) -> torch.Tensor:
    state = SequenceState.empty(config, len(ids), torch.float32, CPU)
    return forward(ids, weights, config, state, Rows(0, len(ids), wide=True))


@pytest.mark.parametrize("kind", ["linear_attention", "full_attention"])
def test_a_layer_job_is_the_reference_layer(tmp_path: Path, kind: str) -> None:
    made = checkpoint(tmp_path / "a", num_hidden_layers=1, layer_types=[kind])
    weights, config = loaded(made.folder)
    states = torch.randn(3, 50, config.hidden_size)
    expected = []
    for x in states:
        state = SequenceState.empty(config, 50, torch.float32, CPU).layers[0]
        rows = Rows(0, 50, wide=True)
        angles = rotary_angles(rows.positions(CPU), config)
        expected.append(decoder_layer(x, weights.layers[0], config, state, rows, angles))
    fitted, advanced = LayerJob(config, states.clone(), CPU), LayerJob(config, states.clone(), CPU)
    fitted.quantize(weights.layers[0], (), lambda *_: pytest.fail("nothing is wanted"))
    advanced.advance(weights.layers[0])
    assert torch.equal(fitted.states, torch.stack(expected))
    assert torch.equal(advanced.states, torch.stack(expected))


@pytest.mark.parametrize("kind", ["linear_attention", "full_attention"])
def test_matrices_see_the_quantized_ones_before_them(tmp_path: Path, kind: str) -> None:
    """Recorded Hessians against those of the layer as it stood at each matrix's turn."""
    made = checkpoint(tmp_path / "a", num_hidden_layers=1, layer_types=[kind])
    source = open_source(made.folder)
    layer = build_layer(source.read, "model.layers.0.", kind)
    states = torch.randn(2, 40, 64)
    order: list[str] = []
    moments: dict[str, Hessian] = {}

    def solve(field: str, moment: Hessian) -> torch.Tensor:
        order.append(field)
        moments[field] = moment
        assert moment.rows == 80
        part = layer.mlp if hasattr(layer.mlp, field) else layer.mixer
        # Zero is as far from the original as a matrix can be: what follows must notice.
        return torch.zeros_like(getattr(part, field))

    wanted = (
        ("o_proj", "v_proj", "q_proj", "k_proj")
        if kind == "full_attention"
        else ("out_proj", "in_proj_z", "in_proj_qkv")
    )
    job = LayerJob(source.config, states.clone(), CPU)
    result = job.quantize(layer, (*wanted, "down_proj", "gate_proj", "up_proj"), solve)
    inputs = order[: len(wanted) - 1]
    assert set(inputs) == set(wanted[1:])
    assert order[len(inputs) :] == [wanted[0], "gate_proj", "up_proj", "down_proj"]
    assert len({id(moments[name]) for name in inputs}) == 1
    assert moments["gate_proj"] is moments["up_proj"]
    assert len({id(moment) for moment in moments.values()}) == 4
    # Every mixer and MLP output is zero, so the states pass unchanged.
    assert torch.equal(job.states, states)
    assert not result.mlp.down_proj.any()


def test_the_first_matrix_equals_gptq_called_by_hand(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a")
    ids = calibration(151)
    job = gptq_job(made.folder, tmp_path / "out", ids=ids)
    job.run()
    weights, config = loaded(made.folder)
    moment = Hessian(64)
    for window in ids:
        x = weights.embed_tokens[window]
        moment.add(rms_norm(x, weights.layers[0].input_layernorm, config.rms_norm_eps))
    expected, _ = gptq(weights.layers[0].mixer.in_proj_qkv, moment, SCHEME)
    quantized, _ = loaded(tmp_path / "out")
    assert torch.equal(quantized.layers[0].mixer.in_proj_qkv, expected.dequantize())


@pytest.mark.parametrize("compensate", [True, False], ids=["beside", "alone"])
@pytest.mark.parametrize("weigh", [True, False], ids=["weighted", "plain"])
def test_head_and_mtp_are_fitted_to_the_quantized_body(
    tmp_path: Path, compensate: bool, weigh: bool
) -> None:
    choices = GptqOptions(compensate=compensate, weigh_head=weigh)
    made = checkpoint(tmp_path / "a")
    ids = calibration(151)
    gptq_job(made.folder, tmp_path / "out", ids=ids, choices=choices).run()
    original, config = loaded(made.folder)
    quantized, _ = loaded(tmp_path / "out")
    head = Hessian(64, drift=choices.compensate)
    fc = Hessian(128, drift=choices.compensate)
    for window in ids:
        models = (quantized, original) if choices.compensate else (quantized,)
        hidden = [hidden_of(window, model, config) for model in models]
        p = (hidden[-1].double() @ original.lm_head.double().T).softmax(-1)
        weight = (1 - p.square().sum(-1)).clamp(min=1e-4).float() if choices.weigh_head else 1
        head.add(*(x * torch.as_tensor(weight).sqrt().view(-1, 1) for x in hidden))
        mtp = original.mtp
        embedded = rms_norm(
            original.embed_tokens[window[1:]], mtp.pre_fc_norm_embedding, config.rms_norm_eps
        )
        normed = [rms_norm(x[:-1], mtp.pre_fc_norm_hidden, config.rms_norm_eps) for x in hidden]
        fc.add(*(torch.cat((embedded, x), dim=-1) for x in normed))
    for weight, moment, result in (
        (original.lm_head, head, quantized.lm_head),
        (original.mtp.fc, fc, quantized.mtp.fc),
    ):
        expected, _ = gptq(weight, moment, SCHEME)
        # Sums in another order may move a code that lies on a half.
        assert (result == expected.dequantize()).float().mean() > 0.99


@pytest.mark.parametrize("kind", ["linear_attention", "full_attention"])
@pytest.mark.parametrize("wanted", [True, False], ids=["zeroed", "kept"])
def test_the_16_bit_run_goes_beside(tmp_path: Path, kind: str, wanted: bool) -> None:
    made = checkpoint(tmp_path / "a", num_hidden_layers=1, layer_types=[kind])
    source = open_source(made.folder)
    layer = build_layer(source.read, "model.layers.0.", kind)
    states, ideal = torch.randn(2, 3, 40, 64)
    moments: dict[str, Hessian] = {}

    def solve(field: str, moment: Hessian) -> torch.Tensor:
        moments[field] = moment
        part = layer.mlp if hasattr(layer.mlp, field) else layer.mixer
        return torch.zeros_like(getattr(part, field))

    output = "o_proj" if kind == "full_attention" else "out_proj"
    fields = (output, "gate_proj", "up_proj", "down_proj") if wanted else ()
    job = LayerJob(source.config, states.clone(), CPU, ideal.clone())
    result = job.quantize(layer, fields, solve)
    alone, again = LayerJob(source.config, ideal.clone(), CPU), None
    alone.advance(layer)
    assert torch.equal(job.ideal.states, alone.states)
    again = LayerJob(source.config, states.clone(), CPU, ideal.clone())
    again.advance(result, layer)
    assert torch.equal(again.states, job.states) and torch.equal(again.ideal.states, alone.states)
    if not wanted:
        return
    assert torch.equal(job.states, states)
    # Zero matrices let the states pass, so what the stream lacks is known at both sums.
    inner = LayerJob(source.config, ideal.clone(), CPU)
    between = ideal.clone()
    for index, (mixed, _) in enumerate(inner._mixer_inputs(layer, output)):
        between[index] += mixed @ getattr(layer.mixer, output).T
    normed = rms_norm(between, layer.post_attention_layernorm, 1e-6)
    mine = rms_norm(states, layer.post_attention_layernorm, 1e-6)
    gate, down = moments["gate_proj"], moments["down_proj"]
    assert gate.lack is None and down.drift is not None and moments[output].lack is not None
    expected = 2 / 120 * (normed - mine).view(120, 64).T @ mine.view(120, 64)
    torch.testing.assert_close(gate.drift, expected, rtol=1e-4, atol=1e-5)
    # gate and up are zero, hence so are the inputs of down, of which nothing follows.
    assert not down.matrix.any() and not down.lack.any()


def test_the_lack_of_the_residual_stream(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a", num_hidden_layers=1, layer_types=["full_attention"])
    source = open_source(made.folder)
    layer = build_layer(source.read, "model.layers.0.", "full_attention")
    states, ideal = torch.randn(2, 3, 40, 64)
    moments: dict[str, Hessian] = {}

    def solve(field: str, moment: Hessian) -> torch.Tensor:
        moments[field] = moment
        return getattr(layer.mlp if hasattr(layer.mlp, field) else layer.mixer, field)

    job = LayerJob(source.config, states.clone(), CPU, ideal.clone())
    job.quantize(layer, ("o_proj", "down_proj"), solve)
    sides = []
    for start in (states, ideal):
        one = LayerJob(source.config, start.clone(), CPU)
        mixed = torch.stack([seen.x for seen in one._mixer_inputs(layer, "o_proj")])
        between = start + mixed @ layer.mixer.o_proj.T
        y = rms_norm(between, layer.post_attention_layernorm, 1e-6)
        gated = torch.nn.functional.silu(y @ layer.mlp.gate_proj.T) * (y @ layer.mlp.up_proj.T)
        sides.append((start, mixed, between, gated))
    for field, at, inputs in (("o_proj", 0, 1), ("down_proj", 2, 3)):
        x, original = (side[inputs].flatten(0, 1) for side in sides)
        lack = (sides[1][at] - sides[0][at]).flatten(0, 1)
        moment = moments[field]
        torch.testing.assert_close(
            moment.drift, 2 / 120 * (original - x).T @ x, rtol=1e-3, atol=1e-4
        )
        torch.testing.assert_close(moment.lack, 2 / 120 * lack.T @ x, rtol=1e-3, atol=1e-4)


def test_rows_in_blocks_take_their_part_of_the_lack() -> None:
    weight, moment = torch.randn(48, 64), Hessian(64, drift=True, outputs=48)
    x = torch.randn(300, 64)
    moment.add(x, x + 0.1 * torch.randn(300, 64), torch.randn(300, 48))
    whole = fit_matrix([weight], moment, SCHEME, GptqOptions(), CPU)
    parts = fit_matrix(weight.split(16), moment, SCHEME, GptqOptions(), CPU)
    # Products of other sizes may round a sum to the other side of a half.
    same = whole.packed["weight_packed"] == parts.packed["weight_packed"]
    assert same.float().mean() > 0.95
    for name in ("output_error", "correction"):
        assert whole.row[name] == pytest.approx(parts.row[name], rel=1e-3)
    assert whole.row["correction"] > 0


def outputs_error(folder: Path, original: ModelWeights, ids: torch.Tensor) -> dict[str, float]:
    weights, config = loaded(folder)
    errors = {"head": 0.0, "mtp": 0.0}
    for window in ids:
        hidden, true = hidden_of(window, weights, config), hidden_of(window, original, config)
        errors["head"] += float((hidden @ weights.lm_head.T - true @ original.lm_head.T).norm())
        outs = []
        for model, state in ((weights, hidden), (original, true)):
            kv = KvCache.empty(config, len(window), torch.float32, CPU)
            outs.append(mtp_forward(window[1:], state[:-1], model, model.mtp, config, kv, 0))
        errors["mtp"] += float((outs[0] - outs[1]).norm())
    return errors


def test_gptq_changes_the_model_less_than_rounding(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a")
    ids = calibration(151, windows=96, length=64)
    gptq_job(made.folder, tmp_path / "gptq", ids=ids).run()
    rtn_job(made.folder, tmp_path / "rtn").run()
    original, _ = loaded(made.folder)
    fresh = calibration(151, windows=4, length=64, seed=9)
    by_gptq = outputs_error(tmp_path / "gptq", original, fresh)
    by_rtn = outputs_error(tmp_path / "rtn", original, fresh)
    assert by_gptq["head"] < 0.9 * by_rtn["head"]
    assert by_gptq["mtp"] < 0.9 * by_rtn["mtp"]


@pytest.mark.parametrize(
    "more",
    [
        {"symmetric": False},
        {"group": 64},
        {"keep_head": True, "mtp_bits": 16},
        {"choices": GptqOptions(mse=False, act_order=True, damping=0.05)},
    ],
    ids=["asymmetric", "group64", "kept", "act-order"],
)
def test_options(tmp_path: Path, more: dict[str, Any]) -> None:
    made = checkpoint(tmp_path / "a", dtype=torch.bfloat16, nested=True, shards=2, vision=True)
    report = gptq_job(made.folder, tmp_path / "out", **more).run()
    assert report["tensors"]
    for row in report["tensors"]:
        assert row["output_error"] <= row["rtn_output_error"] * (1 + 1e-6)
    weights, config = loaded(tmp_path / "out")
    assert torch.isfinite(hidden_of(torch.arange(20), weights, config)).all()


@pytest.mark.parametrize("case", ["one row", "fewer rows than inputs"])
def test_poor_calibration_still_gives_a_sound_model(tmp_path: Path, case: str) -> None:
    made = checkpoint(tmp_path / "a")
    ids = torch.full((2, 30), 7) if case == "one row" else calibration(151, windows=1, length=9)
    report = gptq_job(made.folder, tmp_path / "out", ids=ids).run()
    for row in report["tensors"]:
        assert row["output_error"] <= row["rtn_output_error"] * (1 + 1e-6)
        assert row["attempts"] >= 1
    loaded(tmp_path / "out")


def test_blocks_of_rows_give_the_same_matrix() -> None:
    weight, moment = torch.randn(48, 64), Hessian(64)
    moment.add(torch.randn(300, 64))
    whole = fit_matrix([weight], moment, SCHEME, GptqOptions(), CPU)
    parts = fit_matrix(weight.split(16), moment, SCHEME, GptqOptions(), CPU)
    assert whole.packed["weight_shape"].tolist() == parts.packed["weight_shape"].tolist()
    assert whole.row["output_error"] == pytest.approx(parts.row["output_error"], rel=1e-3)


def test_only_the_rows_of_used_ids_are_held(tmp_path: Path) -> None:
    made = checkpoint(tmp_path / "a")
    ids = torch.tensor([[3, 3, 150], [0, 7, 3]])
    name = "model.embed_tokens.weight"
    embedded = EmbeddedWindows(open_source(made.folder), name, ids)
    assert embedded._table.shape[0] == 4
    assert torch.equal(embedded.states(torch.float32), made.tensors[name][ids])
    assert torch.equal(embedded.rows(1), made.tensors[name][ids[1]])
