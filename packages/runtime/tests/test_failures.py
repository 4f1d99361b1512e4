"""A request that fails half-way, by lack of memory or by Ctrl-C: the next one is right."""

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, OutOfMemoryError, SamplingParams
from bytebound.cli.errors import exit_code_of
from bytebound.failures import is_out_of_memory

from .cuda_models import reference, some_ids, symmetric
from .emulated_kernels import emulate
from .emulated_models import cuda_executor

PROMPT = some_ids(150)
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)
SHORTAGES = {
    "allocator": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
    "driver": lambda: RuntimeError("CUDA error: out of memory"),
    "host": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 4 GiB"),
    "python": MemoryError,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return symmetric(tmp_path_factory.mktemp("failures") / "model")


@pytest.fixture(params=["reference", "cuda", "cuda in steps"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Engine:
    executor: Any
    if request.param != "reference":
        emulate(monkeypatch)
        executor = cuda_executor(folder, max_len=256)
        executor.few_rows = 32 if request.param == "cuda in steps" else 8
    else:
        executor = reference(folder, 256)
        executor.prefill_chunk = 32
    return Engine(executor, config=executor.config)


def prompt_pass(engine: Engine) -> str:
    """The method that takes a chunk of 32 ids."""
    return "_in_steps" if getattr(engine.executor, "few_rows", 0) >= 32 else "_wide_pass"


def fail_at(
    monkeypatch: pytest.MonkeyPatch,
    executor: Any,
    method: str,
    call: int,
    error: Callable[[], BaseException],
) -> list[int]:
    """Let the ``call``-th call of a method do its work and then fail; returns their count."""
    executor.reset()  # so that no part of a prompt is known already
    calls: list[int] = []
    real = getattr(executor, method)

    def failing(*args: Any) -> Any:
        calls.append(len(calls) + 1)
        if calls[-1] != call:
            return real(*args)
        held = torch.zeros(10)  # an activation of the pass
        alive.append(weakref.ref(held))
        real(*args)
        raise error()

    alive: list[weakref.ref[torch.Tensor]] = []
    failing.alive = alive  # type: ignore[attr-defined]
    monkeypatch.setattr(executor, method, failing)
    executor.reset()  # a state kept from before would spare it the passes
    return calls


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_out_of_memory_in_a_prompt(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, shortage: str
) -> None:
    """E07: the chunks before the failure leave nothing behind."""
    expected = engine.generate(PROMPT, PARAMS).token_ids
    short = engine.generate(PROMPT[:40], PARAMS).token_ids
    method = prompt_pass(engine)
    calls = fail_at(monkeypatch, engine.executor, method, 3, SHORTAGES[shortage])
    other = [7, *PROMPT[1:]]
    with pytest.raises(OutOfMemoryError, match=r"150 tokens in the sequence.*next one works.*max"):
        engine.generate(other, PARAMS)
    assert calls == [1, 2, 3]
    # What it held is let go, though the error is still at hand.
    gc.collect()
    (held,) = getattr(engine.executor, method).alive
    assert held() is None
    assert engine.generate(PROMPT, PARAMS).token_ids == expected
    assert engine.generate(PROMPT[:40], PARAMS).token_ids == short


def test_out_of_memory_in_a_decode_pass(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = engine.generate(PROMPT, PARAMS).token_ids
    fail_at(monkeypatch, engine.executor, "verify", 4, SHORTAGES["driver"])
    stream = engine.stream(PROMPT, PARAMS)
    with pytest.raises(OutOfMemoryError, match="154 tokens in the sequence") as caught:
        list(stream)
    assert list(stream) == []
    assert exit_code_of(caught.value) == 1
    assert engine.generate(PROMPT, PARAMS).token_ids == expected


def test_other_errors_are_not_taken_for_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = engine.generate(PROMPT, PARAMS).token_ids
    fail_at(monkeypatch, engine.executor, prompt_pass(engine), 2, lambda: RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        engine.generate(PROMPT, PARAMS)
    assert engine.generate(PROMPT, PARAMS).token_ids == expected
    assert not is_out_of_memory(KeyError("memory"))


@pytest.mark.parametrize(("where", "call"), [("prompt", 2), ("verify", 3)])
def test_ctrl_c_leaves_the_engine_usable(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, where: str, call: int
) -> None:
    expected = engine.generate(PROMPT, PARAMS).token_ids
    method = prompt_pass(engine) if where == "prompt" else where
    fail_at(monkeypatch, engine.executor, method, call, KeyboardInterrupt)
    stream = engine.stream(PROMPT, PARAMS)
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        for event in stream:
            seen += event.token_ids
    assert seen == ([] if where == "prompt" else expected[:3])
    assert list(stream) == []
    assert engine.generate(PROMPT, PARAMS).token_ids == expected


def test_out_of_memory_while_scoring(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = engine.score(PROMPT)
    fail_at(monkeypatch, engine.executor, "_wide_pass", 2, SHORTAGES["allocator"])
    with pytest.raises(OutOfMemoryError, match="150 tokens"):
        engine.score(PROMPT)
    assert torch.equal(engine.score(PROMPT), expected)


@pytest.mark.gpu
def test_a_full_gpu(tmp_path: Path) -> None:
    """What is left of the card does not hold a chunk of the prompt; later it does again."""
    folder = symmetric(tmp_path / "model")
    engine = Engine.from_pretrained(folder, backend="cuda", draft="none", max_len=4000)
    prompt = (PROMPT * 30)[:3900]
    expected = engine.generate(prompt, PARAMS).token_ids
    torch.cuda.empty_cache()
    # A share of this process, not of the card: others may be using it.
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    try:
        blocks = []
        for size in (1 << 26, 1 << 22, 1 << 20, 1 << 12):
            with suppress(torch.OutOfMemoryError):
                while True:
                    blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        with pytest.raises(OutOfMemoryError, match=r"GiB are free now"):
            engine.generate([7, *prompt[1:]], PARAMS)  # of which no state is kept
        blocks.clear()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert engine.generate(prompt, PARAMS).token_ids == expected
