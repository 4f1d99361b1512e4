"""Sizes as people write them, and a cap that leaves room for what it does not rule."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from bytebound import Engine, InvalidSettingError
from bytebound.vram import (
    GIB,
    LATER_BYTES,
    MAX_CONTEXT_BYTES,
    MIB,
    allocatable_bytes,
    cap_process,
    measured_peak,
    outside_bytes,
    parse_size,
)

DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32GiB", 32 << 30),
        ("32 gib", 32 << 30),
        ("24GB", 24 * 10**9),
        (" 1.5 GiB ", 3 << 29),
        ("500MB", 500 * 10**6),
        ("2TiB", 2 << 40),
        ("1024", 1024),
        ("7 B", 7),
        (12345, 12345),
    ],
)
def test_sizes(text: int | str, expected: int) -> None:
    assert parse_size("vram_limit", text) == expected


@pytest.mark.parametrize(
    "wrong", ["", "GiB", "32G", "-1GiB", "1e9", "0", 0, -5, True, 1.5, None, "32GiB!", "٣GB"]
)
def test_what_is_no_size(wrong: Any) -> None:
    with pytest.raises(InvalidSettingError, match=r"^vram_limit=.*'32GiB'"):
        parse_size("vram_limit", wrong)


@dataclass
class Card:
    """PyTorch's view of a card of 80 GiB with 500 MiB of context."""

    total: int = 80 * GIB
    others: int = 0
    context: int = 500 * MIB
    reserved: int = 0
    allocated: int = 0
    fraction: float = 1.0

    @property
    def free(self) -> int:
        return self.total - self.others - self.context - self.reserved


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()

    def set_fraction(fraction: float, device: object) -> None:
        card.fraction = fraction

    for name, value in {
        "mem_get_info": lambda device: (card.free, card.total),
        "memory_reserved": lambda device: card.reserved,
        "max_memory_reserved": lambda device: card.reserved + GIB,
        "memory_allocated": lambda device: card.allocated,
        "get_per_process_memory_fraction": lambda device: card.fraction,
        "set_per_process_memory_fraction": set_fraction,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return card


def test_a_cap_takes_off_what_is_outside_the_allocator(card: Card) -> None:
    card.reserved = card.allocated = 3 * GIB
    cap_process(32 * GIB, DEVICE)
    outside = 500 * MIB + LATER_BYTES
    assert outside_bytes(DEVICE) == outside
    assert card.fraction * card.total == pytest.approx(32 * GIB - outside)
    left = allocatable_bytes(DEVICE)
    assert left + outside + card.allocated == pytest.approx(32 * GIB, abs=2)


def test_a_cap_above_the_card_caps_nothing(card: Card) -> None:
    cap_process(200 * GIB, DEVICE)
    assert card.fraction == 1
    assert allocatable_bytes(DEVICE) == card.free - LATER_BYTES


def test_a_cap_below_the_context_is_refused(card: Card) -> None:
    with pytest.raises(InvalidSettingError, match=r"CUDA itself takes 0\.68 GiB"):
        cap_process(512 * MIB, DEVICE)
    assert card.fraction == 1


def test_what_the_allocator_keeps_can_be_taken(card: Card) -> None:
    card.reserved, card.allocated = 10 * GIB, 4 * GIB
    assert allocatable_bytes(DEVICE) == card.free - LATER_BYTES + 6 * GIB


def test_others_count_as_context_only_so_far(card: Card) -> None:
    card.others = 40 * GIB
    assert outside_bytes(DEVICE) == MAX_CONTEXT_BYTES + LATER_BYTES
    assert allocatable_bytes(DEVICE) == card.free - LATER_BYTES


def test_the_peak_is_that_of_the_allocator_and_the_context(card: Card) -> None:
    card.reserved = 7 * GIB
    assert measured_peak(DEVICE) == 8 * GIB + 500 * MIB


def test_the_cpu_has_no_cap(tiny_on_cpu: dict[str, Any]) -> None:
    from bytebound.loading import limit_vram, load_engine_parts

    with pytest.raises(InvalidSettingError, match=r"^vram_limit='8GiB': the model runs on the CPU"):
        load_engine_parts(**tiny_on_cpu, vram_limit="8GiB")
    with pytest.raises(InvalidSettingError, match=r"^vram_limit='8Gib!'"):
        limit_vram("8Gib!", "cpu")


@pytest.fixture
def tiny_on_cpu() -> dict[str, Any]:
    return {
        "path_or_name": "tiny", "backend": "reference", "device": "cpu", "dtype": None,
        "max_len": 64, "kv_dtype": "auto", "draft": "none", "num_draft_tokens": 1,
        "draft_vocab": None,
    }  # fmt: skip


@pytest.mark.gpu
def test_a_cap_holds_on_a_card() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.empty_cache()
    try:
        limit = torch.cuda.memory_reserved(device) + outside_bytes(device) + 512 * MIB
        cap_process(limit, device)
        kept = torch.empty(400 * MIB, dtype=torch.uint8, device=device)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(200 * MIB, dtype=torch.uint8, device=device)
        del kept
        with pytest.raises(InvalidSettingError, match=r"largest max_len that fits|no context fits"):
            Engine.from_pretrained("random:qwen3.5-27b", backend="cuda", max_len=8192)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()
