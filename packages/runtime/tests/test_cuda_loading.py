"""``load_cuda`` from end to end on the kernels' references: plan, cache, draft head, labels."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bytebound import Engine, InvalidSettingError, SamplingParams
from bytebound.config import ModelConfig
from bytebound.cuda import loading
from bytebound.cuda.loading import CudaParts, load_cuda
from bytebound.cuda.matrices import PackedMatrix
from bytebound.cuda.memory import Card, taken
from bytebound.vram import GIB

from .checkpoints import random_checkpoint
from .cuda_models import SHAPE, asymmetric, symmetric
from .emulated_kernels import emulate

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
CARD = Card(product_bytes=2048, context_bytes=1000)


@pytest.fixture(autouse=True)
def a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    monkeypatch.setattr(Card, "of", lambda device: CARD)
    monkeypatch.setattr(loading, "allocatable_bytes", lambda device: GIB)


def load(folder: Path | None, config: ModelConfig, **settings: Any) -> CudaParts:
    given = {"max_len": 64, "kv_dtype": "auto", "num_draft_tokens": 2, "device": CPU}
    return load_cuda(folder, config, **{**given, **settings})


def tokens(parts: CudaParts, config: ModelConfig) -> list[int]:
    return Engine(parts.executor, config=config).generate([1, 2, 3], PARAMS).token_ids


@pytest.mark.parametrize("make", [symmetric, asymmetric])
def test_the_second_load_comes_from_the_cache(tmp_path: Path, make: Any) -> None:
    folder = make(tmp_path / "model")
    config = ModelConfig.from_folder(folder)
    ids = torch.tensor([0, 5, 9, 300], dtype=torch.int32)
    first = load(folder, config, draft_ids=ids)
    assert [path.name for path in (folder / ".bytebound").glob("packed*")] == ["packed-cpu.bin"]
    second = load(folder, config, draft_ids=ids)
    assert tokens(first, config) == tokens(second, config)
    heads = []
    for parts in (first, second):
        mtp = parts.executor.weights.mtp
        assert mtp is not None and mtp.draft_ids is not None and mtp.draft_ids.equal(ids)
        assert isinstance(mtp.draft_head, PackedMatrix)
        assert parts.memory_plan.draft_head == taken(mtp.draft_head.num_bytes) + ids.nbytes
        heads.append(mtp.draft_head.weight.data)
    assert torch.equal(*heads)
    # What is planned for the cache is the file's own bytes, without the allocator's rounding.
    assert second.memory_plan.weights <= first.memory_plan.weights
    assert second.memory_plan.total <= first.memory_plan.total


def test_without_the_cache_nothing_is_written(tmp_path: Path) -> None:
    folder = symmetric(tmp_path / "model")
    load(folder, ModelConfig.from_folder(folder), use_packed_cache=False)
    assert not (folder / ".bytebound").exists()


def test_a_folder_in_16_bits_is_not_kept(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path / "model", **SHAPE).folder
    parts = load(folder, ModelConfig.from_folder(folder))
    assert not (folder / ".bytebound").exists()
    assert not parts.memory_plan.random_weights


def test_random_weights_are_labelled(tmp_path: Path) -> None:
    config = ModelConfig.from_folder(random_checkpoint(tmp_path, **SHAPE).folder)
    parts = load(None, config, draft_ids=torch.arange(100, dtype=torch.int32))
    assert parts.memory_plan.random_weights and parts.memory_plan.backend == "cuda"
    mtp = parts.executor.weights.mtp
    assert mtp is not None and mtp.draft_head is not None and mtp.draft_head.n == 100
    assert parts.bytes_per_token > 0 and parts.with_mtp


@pytest.mark.parametrize("folder_too", [False, True])
def test_what_cannot_fit_is_refused_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_too: bool
) -> None:
    made = symmetric(tmp_path / "model")
    config = ModelConfig.from_folder(made)
    for name in ("read_weights", "random_weights"):
        monkeypatch.setattr(loading, name, lambda *_, **__: pytest.fail("weights were made"))
    monkeypatch.setattr(loading, "allocatable_bytes", lambda device: 60 << 20)
    with pytest.raises(InvalidSettingError, match=r"max_len \d+ needs .*(fits is \d+|no context)"):
        load(made if folder_too else None, config, max_len=config.max_position_embeddings)
