"""The memory plan of the CUDA backend against what it allocates, and against what must fit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.buffers import Buffers
from bytebound.cuda.executor import PREFILL_CHUNK, CudaExecutor
from bytebound.cuda.loading import load_weights
from bytebound.cuda.memory import Card, CudaMemory, Stored, taken
from bytebound.cuda.sampling import DeviceSampler
from bytebound.cuda.shapes import MAX_CONTEXT
from bytebound.cuda.state import KvCache, SequenceState, cache_positions
from bytebound.cuda.weights import iter_matrices
from bytebound.errors import InvalidSettingError
from bytebound.loading import find_model
from bytebound.memory import GIB, MemoryPlan
from bytebound.settings import FP8_KV_ABOVE, activations_dtype, check_cuda_kv_dtype
from bytebound.vram import MIB

from .cuda_models import FOLDERS, gated_delta_states
from .emulated_kernels import emulate

CPU = torch.device("cpu")
MAX_LEN = 256
CARD = Card(product_bytes=2048, context_bytes=0)
FLAGSHIP = find_model("random:qwen3.5-27b")[1]


def flagship(kv_dtype: str, **more: int) -> CudaMemory:
    stored = Stored.of(FLAGSHIP, None, "model.", with_mtp=True, random=True)
    return CudaMemory(FLAGSHIP, stored, Card.nominal(), kv_dtype, num_draft_tokens=4, **more)


@pytest.mark.parametrize("in_one_piece", [False, True])
@pytest.mark.parametrize("kind", FOLDERS)
def test_weights_and_state_are_counted_to_the_byte(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, in_one_piece: bool
) -> None:
    emulate(monkeypatch)
    folder = FOLDERS[kind](tmp_path / kind)
    config = ModelConfig.from_folder(folder)
    stored = read_headers(folder, config)
    weights = load_weights(folder, config, stored, device=CPU)
    executor = CudaExecutor(weights, config, max_len=MAX_LEN)
    of_folder = Stored.of(
        config, stored.packed, stored.prefix, with_mtp=True, in_one_piece=in_one_piece
    )
    plan = CudaMemory(config, of_folder, CARD).plan(MAX_LEN)
    kv = executor.state.layers[1]
    assert weights.mtp is not None and isinstance(kv, KvCache)
    held = sum(one.num_bytes for one in iter_matrices((weights.layers, weights.lm_head)))
    assert 0 <= plan.weights - held < 40_000, kind  # norms, convolutions
    assert 0 <= plan.mtp_weights - sum(m.num_bytes for m in iter_matrices(weights.mtp)) < 20_000
    assert plan.embedding == weights.embed_tokens.nbytes
    assert plan.kv == kv.k.nbytes + kv.v.nbytes == plan.mtp_kv
    check_state(plan, executor.state)
    assert plan.scratch > executor.step.workspaces.attention.nbytes
    assert (plan.backend, plan.kv_dtype, plan.random_weights) == ("cuda", "bfloat16", False)


def check_state(plan: MemoryPlan, state: SequenceState) -> None:
    deltas = gated_delta_states(state)
    assert plan.gdn_state == sum(one.settled.recurrent.nbytes for one in deltas)
    assert plan.conv_windows == sum(one.settled.conv_window.nbytes for one in deltas)
    rows = (state._projected, state._gates, state._pending_qkv, state._pending_updates)
    assert plan.verify_rows == sum(one.nbytes for one in rows)


def test_scratch_of_the_flagship_holds_what_is_allocated() -> None:
    """Buffers and the sampler as they are made, on a device that has sizes and no memory."""
    meta = torch.device("meta")
    buffers = Buffers.empty(FLAGSHIP, torch.bfloat16, meta)
    sampler = vars_of(DeviceSampler, FLAGSHIP.vocab_size, meta)
    allocated = 2 * sum(getattr(buffers, name).nbytes for name in buffers.__slots__) + sampler
    memory = flagship("bfloat16")
    plan = memory.plan(8192)
    unpacked = 2 * FLAGSHIP.intermediate_size * FLAGSHIP.hidden_size * 2
    prompt = PREFILL_CHUNK * memory._chunk_row_bytes()
    rest = plan.scratch - allocated - unpacked - prompt
    # The workspaces of the kernels, of the library and the allocator's rounding.
    assert 50 * MIB < rest < 120 * MIB


def vars_of(kind: type[DeviceSampler], vocab: int, device: torch.device) -> int:
    values = vars(kind(vocab, device)).values()
    tensors = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return sum(one.nbytes for one in tensors if isinstance(one, torch.Tensor))


def test_the_longest_context_fits_a_32_gib_card_in_fp8() -> None:
    longest = FLAGSHIP.max_position_embeddings
    assert longest == 262_144
    memory = flagship("auto")
    plan = memory.plan(longest)
    # 17 layers of 2 * 4 * (256 values and a scale of 4 bytes) a position, each rounded to 2 MiB.
    assert plan.kv + plan.mtp_kv == pytest.approx(17 * 2 * 4 * 260 * longest, rel=0.01)
    assert plan.kv_dtype == "fp8" and plan.total < 29 * GIB
    assert memory.check_fits(32 * GIB, longest) == plan
    assert memory.largest_context(32 * GIB) == longest
    with pytest.raises(InvalidSettingError, match="largest max_len that fits is"):
        flagship("bfloat16").check_fits(32 * GIB, longest)


def test_the_context_that_is_named_fits_with_the_dtype_that_it_then_has() -> None:
    """Auto: longer contexts in fp8 may fit where shorter ones in bfloat16 do not."""
    memory = flagship("auto")
    at_step = memory.plan(FP8_KV_ABOVE)
    limits = [at_step.total - at_step.snapshots - MIB, 20 * GIB, 18 * GIB]
    found = [memory.largest_context(limit) for limit in limits]
    assert found[0] > FP8_KV_ABOVE > found[2] > 0
    for limit, length in zip(limits, found, strict=True):
        assert memory.check_fits(limit, length).total <= limit
        with pytest.raises(InvalidSettingError, match=f"fits is {length}$"):
            memory.check_fits(limit, length + 8)


def test_no_context_is_longer_than_the_kernels_take() -> None:
    config = replace(FLAGSHIP, max_position_embeddings=4 << 20)
    stored = Stored.of(config, None, "model.", with_mtp=True, random=True)
    memory = CudaMemory(config, stored, Card.nominal(), "fp8")
    assert memory.largest_context(1 << 50) == MAX_CONTEXT
    assert memory.plan(MAX_CONTEXT).max_len == MAX_CONTEXT
    assert cache_positions(MAX_CONTEXT) <= 1 << 20 < cache_positions(MAX_CONTEXT + 1)
    with pytest.raises(InvalidSettingError, match=f"expected at most {MAX_CONTEXT} with backend"):
        memory.check_fits(1 << 50, MAX_CONTEXT + 1)


def test_what_the_flagship_holds() -> None:
    plan = flagship("auto").plan(8192)
    # 24.35e9 weights of the layers and 1.27e9 of the head, at 4.125 bits.
    assert plan.weights == pytest.approx(25.62e9 * 4.125 / 8, rel=0.03)
    assert plan.embedding == pytest.approx(248_320 * 5120 * 2, abs=2 * MIB)
    assert plan.gdn_state == 48 * 48 * 128 * 128 * 4
    assert plan.snapshots == 6 * (plan.gdn_state + plan.conv_windows + 2 * 5120) < GIB
    assert plan.random_weights and plan.kv_dtype == "bfloat16"
    assert plan.draft_head == 0
    with_vocabulary = flagship("auto", draft_ids=32_768).plan(8192)
    assert with_vocabulary.draft_head == taken(32_768 * 5120 * 4.125 / 8) + 32_768 * 4


def test_a_head_that_does_not_draft_has_weights_alone() -> None:
    memory = flagship("bfloat16")
    plan, without = memory.plan(8192), replace(memory, by_mtp=False).plan(8192)
    assert without.mtp_weights == plan.mtp_weights > 0 == without.mtp_kv
    assert plan.scratch - without.scratch > 8 * FLAGSHIP.vocab_size * 4


def test_a_cache_takes_no_more_than_its_bytes() -> None:
    memory = flagship("auto")
    cached = replace(memory, stored=replace(memory.stored, in_one_piece=True)).plan(8192)
    apart = memory.plan(8192)
    # 320 matrices, each rounded up to 2 MiB where it is not alone in one allocation.
    assert 100 * MIB < apart.weights - cached.weights < 640 * MIB
    assert cached.loading == 0


def test_snapshots_give_way_before_anything_is_refused() -> None:
    memory = flagship("auto")
    plan = memory.plan(8192)

    def within(limit: int) -> MemoryPlan:
        return memory.check_fits(limit, 8192)

    assert within(plan.total).snapshots == plan.snapshots
    assert within(plan.total - 7).snapshots == plan.snapshots - 7
    least = plan.total - plan.snapshots
    assert within(least).snapshots == 0
    with pytest.raises(InvalidSettingError, match=r"max_len 8192 needs .*fits is 8\d\d\d$"):
        within(least - 64)


@pytest.mark.parametrize(
    ("asked", "max_len", "expected"),
    [
        ("auto", FP8_KV_ABOVE, torch.bfloat16),
        ("auto", FP8_KV_ABOVE + 1, torch.float8_e4m3fn),
        ("bfloat16", 262_144, torch.bfloat16),
        ("auto", 5, torch.bfloat16),
        ("fp8", 10, torch.float8_e4m3fn),
    ],
)
def test_the_dtype_of_keys_and_values(asked: str, max_len: int, expected: torch.dtype) -> None:
    assert check_cuda_kv_dtype(asked, max_len) == expected


@pytest.mark.parametrize("asked", ["int4", "int8", "nf4"])
def test_no_cache_has_fewer_bits_than_fp8(asked: str) -> None:
    """E39: of low-bit caches the one that loses next to nothing."""
    with pytest.raises(InvalidSettingError, match=rf"^kv_dtype='{asked}': .*fp8"):
        check_cuda_kv_dtype(asked, 10)


def test_keys_and_values_in_16_bits_have_the_dtype_of_the_activations() -> None:
    half = torch.float16
    assert activations_dtype(None, "auto", packed=True) == half
    assert activations_dtype(None, "auto", packed=False) == torch.bfloat16
    assert activations_dtype(None, "bfloat16", packed=True) == torch.bfloat16
    assert activations_dtype("float16", "auto", packed=False) == half
    assert check_cuda_kv_dtype("auto", 10, half) == check_cuda_kv_dtype("float16", 10, half) == half
    with pytest.raises(InvalidSettingError, match="kv_dtype='bfloat16' with dtype='float16'"):
        check_cuda_kv_dtype("bfloat16", 10, half)


def test_an_unknown_dtype_of_keys_and_values() -> None:
    with pytest.raises(
        InvalidSettingError, match=r"^kv_dtype='int4'.*auto, float16, bfloat16, fp8"
    ):
        check_cuda_kv_dtype("int4", 10)


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(1, 512), (512, 512), (MIB, MIB), (9 * MIB + 1, 9 * MIB + 512), (10 * MIB + 1, 12 * MIB)],
)
def test_the_allocators_rounding(num_bytes: int, expected: int) -> None:
    assert taken(num_bytes) == expected
