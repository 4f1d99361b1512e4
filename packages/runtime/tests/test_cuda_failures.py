"""The device's own decode loop, stopped in the middle: the next request is right."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bytebound.cuda.decoder
import pytest
import torch
from bytebound import Engine, NonFiniteLogitsError, OutOfMemoryError, SamplingParams
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.matrices import PackedMatrix

from .cuda_models import mtp_draft, some_ids, symmetric
from .emulated_kernels import Kernels, emulate
from .emulated_models import cuda_executor

PROMPT = some_ids(12)
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return symmetric(tmp_path_factory.mktemp("cuda_failures") / "model")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return emulate(monkeypatch)


@pytest.fixture(params=["none", "mtp"])
def engine(request: pytest.FixtureRequest, kernels: Kernels, folder: Path) -> Engine:
    executor = cuda_executor(folder, max_len=64)
    draft = mtp_draft(executor) if request.param == "mtp" else None
    decoder = CudaDecoder(executor, draft, 2)
    return Engine(executor, draft=draft, decoder=decoder, config=executor.config)


# Where a turn can be stopped: while it is enqueued, and while its result is fetched or awaited.
PLACES: dict[str, tuple[str, str]] = {
    "launch": ("CudaDecoder", "_run"),
    "fetch": ("_Report", "fetch"),
    "offer": ("CudaDecoder", "_logprob_of"),
}
STOPS: dict[str, tuple[Callable[[], BaseException], type[BaseException]]] = {
    "ctrl-c": (KeyboardInterrupt, KeyboardInterrupt),
    "memory": (lambda: RuntimeError("CUDA error: out of memory"), OutOfMemoryError),
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("place", PLACES)
def test_a_turn_that_is_stopped(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, place: str, stop: str
) -> None:
    """Three times, so that whatever a stop loses would be missed."""
    expected = engine.generate(PROMPT, PARAMS).token_ids
    owner = getattr(bytebound.cuda.decoder, PLACES[place][0])
    method = PLACES[place][1]
    real = getattr(owner, method)
    error, wanted = STOPS[stop]
    calls = list[int]()

    def stopped(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise error()
        return real(*args)

    for _ in range(3):
        calls.clear()
        with monkeypatch.context() as patch, pytest.raises(wanted):
            patch.setattr(owner, method, stopped)
            engine.generate(PROMPT, PARAMS)
        assert len(calls) == 3
        assert engine.generate(PROMPT, PARAMS).token_ids == expected


def test_nan_in_a_turn_names_the_op(engine: Engine, kernels: Kernels) -> None:
    expected = engine.generate(PROMPT, PARAMS).token_ids
    executor = engine.executor
    assert isinstance(executor, CudaExecutor)
    matrix = executor.weights.layers[2].mlp.down_proj
    assert isinstance(matrix, PackedMatrix)
    values = kernels.weights(matrix.weight)  # which it keeps
    sound = values[9].clone()
    stream = engine.stream(PROMPT, PARAMS)
    next(stream)
    with torch.inference_mode():
        values[9] = math.nan
    named = (
        r"layer 2 down_proj made them of finite values, first at position 0; row 9 of its weight"
    )
    with pytest.raises(NonFiniteLogitsError, match=named):
        list(stream)
    with torch.inference_mode():
        values[9] = sound
    assert engine.generate(PROMPT, PARAMS).token_ids == expected
