"""Recorded runs and staged copies: the same bits as the plain ones.

What needs no GPU is tested by stand-ins that run over the buffers as a replay does, and that let a
copy arrive as late as it may.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound_quant import gptq as gptq_module
from bytebound_quant import layer_job, refine, transfer
from bytebound_quant.gptq import gptq
from bytebound_quant.grid import Scheme
from bytebound_quant.hessian import Hessian, halves
from bytebound_quant.layer_job import LayerJob
from bytebound_quant.layers import build_layer, converted
from bytebound_quant.replay import Replayed
from bytebound_quant.source import open_source

from .small import checkpoint, contents, gptq_job

STAND_IN = {"replays": 0}


class OnBuffers(Replayed):
    """Runs over the buffers where a GPU would replay."""

    def _can_record(self, one: torch.Tensor) -> bool:
        return True

    def _record(self, given: tuple[torch.Tensor, ...]) -> None:
        self._places = [torch.full_like(one, 77).contiguous() for one in given]
        self._graph = self

    def replay(self) -> None:
        STAND_IN["replays"] += 1
        self._results = [self._run(*self._places)]


class FreshBuffer:
    def view(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype)

    def mark(self, device: torch.device) -> None: ...

    def wait(self) -> None: ...


@pytest.fixture
def on_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gptq_module, refine, layer_job):
        monkeypatch.setattr(module, "Replayed", OnBuffers)
    STAND_IN["replays"] = 0


def fitted(device: str = "cpu", rows: int = 24, **options: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, 512, generator=generator)
    x = torch.randn(900, 512, generator=generator)
    moment = Hessian(512, device, drift=True)
    moment.add(x.to(device), x.to(device) * 1.01)
    scheme = Scheme(symmetric=options.pop("symmetric"), group_size=options.pop("group"))
    matrix, _ = gptq(weight.to(device), moment, scheme, **options)
    zero = [] if matrix.zero_point is None else [matrix.zero_point]
    return [one.cpu() for one in (matrix.codes, matrix.scale, *zero)]


CASES = [
    {"symmetric": True, "group": 128},
    {"symmetric": False, "group": 128},
    {"symmetric": True, "group": 64, "act_order": True},
    {"symmetric": False, "group": 32, "act_order": True},
    {"symmetric": False, "group": 256, "mse": False},
    {"symmetric": True, "group": 128, "block": 48},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_over_buffers_the_bits_are_the_same(
    case: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    plain = fitted(**case)
    request.getfixturevalue("on_buffers")
    for one, other in zip(plain, fitted(**case), strict=True):
        assert torch.equal(one, other)
    assert STAND_IN["replays"] > 8


def test_copies_that_arrive_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    made = checkpoint(tmp_path / "a")
    gptq_job(made.folder, tmp_path / "plain").run()
    request.getfixturevalue("on_buffers")
    monkeypatch.setattr(transfer, "_Buffer", FreshBuffer)
    monkeypatch.setattr(transfer.Transfer, "pinned", property(lambda self: True))
    gptq_job(made.folder, tmp_path / "late").run()
    assert contents(tmp_path / "late") == contents(tmp_path / "plain")
    assert STAND_IN["replays"] > 8


def test_halves_hold_sixteen_bits() -> None:
    x = torch.randn(1000) * torch.logspace(-6, 6, 1000)
    high, low = halves(x)
    assert high.dtype == low.dtype == torch.bfloat16
    assert ((high.float() + low.float() - x).abs() <= x.abs() * 2.0**-16).all()


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_recorded_on_a_gpu_the_bits_are_the_same(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    recorded, again = fitted("cuda", 384, **case), fitted("cuda", 384, **case)
    assert not [one for one in recwarn if "graph" in str(one.message)]
    monkeypatch.setattr(Replayed, "_can_record", lambda self, one: False)
    for one, other, plain in zip(recorded, again, fitted("cuda", 384, **case), strict=True):
        assert torch.equal(one, plain) and torch.equal(other, plain)


@pytest.mark.gpu
def test_moments_of_bfloat16_on_a_gpu() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40_000, 96, generator=generator).bfloat16()
    ideal = (x.float() + 0.02 * torch.randn(x.shape, generator=generator)).bfloat16()
    lack = 0.1 * torch.randn(len(x), 40, generator=generator)
    moment = Hessian(96, "cuda", drift=True, outputs=40)
    moment.add(x.cuda(), ideal.cuda(), lack.cuda())
    right = x.double()
    for found, left in ((moment.matrix, right), (moment.drift, ideal - right), (moment.lack, lack)):
        exact = 2 / len(x) * left.double().T @ right
        assert (found.cpu() - exact).norm() < 2e-5 * exact.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["linear_attention", "full_attention"])
def test_a_layer_on_a_gpu(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    made = checkpoint(tmp_path / "a", num_hidden_layers=1, layer_types=[kind])
    source, cuda = open_source(made.folder), torch.device("cuda")
    states = torch.randn(9, 80, 64).bfloat16()
    layer = build_layer(
        lambda name: converted(name, source.read(name), torch.bfloat16, cuda),
        "model.layers.0.",
        kind,
    )

    def advanced() -> list[torch.Tensor]:
        job = LayerJob(source.config, states.clone(), cuda, states.clone())
        job.advance(layer, layer)
        assert job.ideal is not None
        return [job.states, job.ideal.states]

    def quantized() -> list[torch.Tensor]:
        job = LayerJob(source.config, states.clone(), cuda, states.clone())
        job.quantize(layer, (), lambda field, moment: torch.empty(0))
        assert job.ideal is not None
        return [job.states, job.ideal.states]

    recorded = [*advanced(), *quantized()]
    assert not [one for one in recwarn if "graph" in str(one.message)]
    monkeypatch.setattr(Replayed, "_can_record", lambda self, one: False)
    plain = advanced()
    for one in recorded:
        assert torch.equal(one, plain[0]) and torch.isfinite(one).all()
    assert not torch.equal(plain[0], states)
