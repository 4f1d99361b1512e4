"""Byte budget and memory plan against figures worked out by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bytebound.checkpoint import load_checkpoint
from bytebound.config import ModelConfig
from bytebound.errors import InvalidSettingError
from bytebound.memory import (
    GIB,
    MemoryPlan,
    MemorySettings,
    PlanOf,
    byte_budget,
    check_fits,
    largest_context,
    memory_plan,
)
from bytebound.weights import iter_tensors

from .checkpoints import SHAPES, random_checkpoint
from .test_config import FLAGSHIP

CONFIG = ModelConfig.from_dict(FLAGSHIP)
FOUR_BIT = MemorySettings(bits_per_weight=4.125, mtp=True)
LONGEST = CONFIG.max_position_embeddings


def plan_of(settings: MemorySettings) -> PlanOf:
    return lambda max_len: memory_plan(CONFIG, max_len=max_len, settings=settings)


def test_flagship_budget() -> None:
    budget = byte_budget(CONFIG, bits_per_weight=4.125, context=1024)
    assert budget.decoder / 1e9 == pytest.approx(12.557, rel=2e-3)
    assert budget.head / 1e9 == pytest.approx(0.656, rel=2e-3)
    assert budget.state / 1e9 == pytest.approx(0.302, rel=2e-3)
    assert budget.total / 1e9 == pytest.approx(13.59, rel=2e-3)
    # KV, norms, convolution, embedding row; the windows of the convolution come on top.
    assert (budget.kv + budget.small) / 1e9 == pytest.approx(0.074, abs=2e-3)
    assert budget.as_dict()["total"] == budget.total


def test_flagship_limits() -> None:
    budget = byte_budget(CONFIG)
    assert budget.tokens_per_second_limit(1692) == pytest.approx(124.5, rel=1e-3)
    assert budget.tokens_per_second_limit(4550) == pytest.approx(335, rel=1e-3)
    assert budget.percent_of_limit(200, 4550) == pytest.approx(59.7, abs=0.1)
    for wrong in (0, -1, math.nan):
        with pytest.raises(InvalidSettingError, match="read_gb_s"):
            budget.tokens_per_second_limit(wrong)


def test_only_kv_grows_with_context() -> None:
    short, long = byte_budget(CONFIG, context=0), byte_budget(CONFIG, context=32768)
    assert short.kv == 0
    assert long.total - short.total == 32768 * 16 * 2 * 4 * 256 * 2


def fits(limit: int, max_len: int, settings: MemorySettings = FOUR_BIT) -> MemoryPlan:
    return check_fits(plan_of(settings), limit, max_len=max_len, longest=LONGEST)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("tied", [False, True])
def test_plan_equals_what_is_loaded(tmp_path: Path, name: str, tied: bool) -> None:
    """E43: the rows for weights are those that a load takes, to the byte."""
    random_checkpoint(tmp_path, tied=tied, **SHAPES[name])
    config = ModelConfig.from_folder(tmp_path)
    loaded = load_checkpoint(
        tmp_path, config, dtype=torch.float32, device=torch.device("cpu")
    ).weights
    sizes = {t.data_ptr(): t.numel() * 4 for _, t in iter_tensors(loaded)}
    settings = MemorySettings(
        bits_per_weight=32, embedding_bits=32, mtp_bits=32, small_bits=32, mtp=True
    )
    plan = memory_plan(config, max_len=10, settings=settings)
    assert plan.weights + plan.embedding + plan.mtp_weights == sum(sizes.values())
    assert (plan.embedding == 0) == tied


def test_plan_rows() -> None:
    plan = memory_plan(CONFIG, max_len=1000, settings=FOUR_BIT)
    assert plan.kv == 1000 * 16 * 2 * 4 * 256 * 2
    assert plan.mtp_kv == plan.kv // 16
    assert plan.gdn_state == 48 * 48 * 128 * 128 * 4
    assert plan.conv_windows == 48 * 10240 * 3 * 4
    assert plan.embedding == 248320 * 5120 * 2
    assert plan.total == sum(size for _, size in plan.rows())
    assert json.loads(json.dumps(plan.as_dict())) == plan.as_dict()
    without = memory_plan(CONFIG, max_len=1000, settings=replace(FOUR_BIT, mtp=False))
    assert without.mtp_weights == without.mtp_kv == 0


def test_a_tied_head_of_another_width_is_held_apart() -> None:
    """E35: one table at two widths takes both."""
    tied = replace(CONFIG, tie_word_embeddings=True)
    assert memory_plan(tied, max_len=1, settings=FOUR_BIT).embedding == 248320 * 5120 * 2
    assert memory_plan(tied, max_len=1, settings=replace(FOUR_BIT, head_bits=16)).embedding == 0


@pytest.mark.parametrize("max_len", [0, -5, 262145])
def test_context_beyond_native_is_refused(max_len: int) -> None:
    """E41: no scaling is applied, so nothing above the native context is admitted."""
    with pytest.raises(InvalidSettingError, match=f"max_len is {max_len}.*262144"):
        memory_plan(CONFIG, max_len=max_len)


def test_full_window_on_a_32_gib_card() -> None:
    fp8 = replace(FOUR_BIT, kv_bytes=1.0)
    assert largest_context(plan_of(fp8), 32 * GIB, LONGEST) == 262144
    assert fits(32 * GIB, 262144, fp8).total < 32 * GIB


def test_refusal_names_the_largest_context() -> None:
    """E43: an impossible setting fails before loading and says what would fit."""
    best = largest_context(plan_of(FOUR_BIT), 24 * GIB, LONGEST)
    assert 0 < best < 262144
    with pytest.raises(InvalidSettingError, match=f"max_len 262144.*fits is {best}$"):
        fits(24 * GIB, 262144)
    assert fits(24 * GIB, best).total <= 24 * GIB
    with pytest.raises(InvalidSettingError):
        fits(24 * GIB, best + 1)


def test_refusal_when_nothing_fits() -> None:
    assert largest_context(plan_of(FOUR_BIT), 4 * GIB, LONGEST) == 0
    with pytest.raises(InvalidSettingError, match="no context fits; weights"):
        fits(4 * GIB, 1)
