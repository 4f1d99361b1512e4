"""The memory plan and the packed cache on a GPU: what was planned is what is taken."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, SamplingParams
from bytebound.memory import MemoryPlan
from bytebound.vram import LATER_BYTES, MIB, measured_peak, outside_bytes

from .cuda_models import symmetric

pytestmark = pytest.mark.gpu

PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=1, logprobs=5)


@pytest.fixture(autouse=True)
def an_empty_card() -> Iterator[None]:
    def clear() -> None:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    clear()
    yield
    clear()


def peak_of(model: str | Path, prompt: int, **settings: Any) -> tuple[MemoryPlan, int]:
    """The plan, and the most bytes that loading, a long prompt and both kinds of choice took.

    Code that is loaded later lies outside the allocator, so the peak of loading is counted with
    what lay there before, and that of the requests with what lies there at the end.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    before, outside = torch.cuda.memory_reserved(device), outside_bytes(device) - LATER_BYTES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random weights
        # No states are kept: whether their budget is used up depends on the prompts.
        engine = Engine.from_pretrained(model, backend="cuda", snapshot_bytes=0, **settings)
    plan = engine.memory_plan
    assert plan is not None
    loading = torch.cuda.max_memory_reserved(device) - before + outside
    torch.cuda.reset_peak_memory_stats()
    ids = [7 + i % 200 for i in range(prompt)]
    for params in (PARAMS, SAMPLED):
        engine.generate(ids, params)
    torch.cuda.synchronize()
    requests = measured_peak(device) - before
    for name, size in [*plan.rows(), ("total", plan.total)]:
        print(f"{name:14} {size / MIB:10.1f} MiB")
    grown = requests - torch.cuda.max_memory_reserved(device) + before - outside
    for name, size in (("loading", loading), ("requests", requests), ("grown outside", grown)):
        print(f"measured {name:14} {size / MIB:10.1f} MiB")
    return plan, max(loading, requests)


def test_the_plan_of_a_small_model_is_never_exceeded() -> None:
    plan, peak = peak_of("tiny", 900, max_len=1024)
    # Small tensors leave whole segments of the allocator unused: an upper bound, no more.
    assert 0.5 * plan.total < peak <= plan.total


@pytest.mark.parametrize(
    ("max_len", "prompt", "engine"),
    [(8192, 8000, "graph"), (100_000, 99_900, "graph"), (8192, 8000, "stream")],
)
def test_the_plan_of_the_flagship_is_right_to_3_percent(
    max_len: int, prompt: int, engine: str
) -> None:
    """Float16 keys and values at the shorter context, fp8 at the longer one."""
    if engine == "stream" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the weight stream needs compute capability 9.0")
    plan, peak = peak_of("random:qwen3.5-27b", prompt, max_len=max_len, engine=engine)
    assert (plan.stream > 0) == (engine == "stream")
    assert peak == pytest.approx(plan.total, rel=0.03)


def test_a_longer_prompt_takes_no_more_memory() -> None:
    """E07: past two chunks it is the same; keys and values have their place from the start."""
    engine = Engine.from_pretrained("tiny", backend="cuda", draft="mtp", snapshot_bytes=0)
    peaks = []
    for length in (4500, 8000):
        torch.cuda.reset_peak_memory_stats()
        engine.generate([300 + i % 200 for i in range(length)], PARAMS)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] <= peaks[0] + MIB


def test_the_packed_form_gives_the_same_tokens(tmp_path: Path) -> None:
    folder = symmetric(tmp_path / "model")
    tokens = []
    for packed in (False, True):
        kept = folder / ".bytebound"
        assert kept.is_dir() == packed
        engine = Engine.from_pretrained(folder, backend="cuda", max_len=512)
        tokens.append(engine.generate([1, 2, 3, 4, 5], PARAMS).token_ids)
        (file,) = kept.glob("packed-*.bin")
        major, minor = torch.cuda.get_device_capability()
        assert file.name == f"packed-sm{major}{minor}.bin"
    with file.open("r+b") as damaged:
        damaged.seek(5000)
        damaged.write(b"\xff\x00\xff\x00")
    engine = Engine.from_pretrained(folder, backend="cuda", max_len=512)
    tokens.append(engine.generate([1, 2, 3, 4, 5], PARAMS).token_ids)
    assert tokens[0] == tokens[1] == tokens[2]


def test_a_read_only_folder_loads(tmp_path: Path) -> None:
    folder = symmetric(tmp_path / "model")
    (folder / ".bytebound").write_text("in the way")  # holds for root too, unlike permissions
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Engine.from_pretrained(folder, backend="cuda", max_len=128)
