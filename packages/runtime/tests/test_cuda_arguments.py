"""Every call of the CUDA backend passes the checks of the real ops; no launch is made.

Shapes, dtypes, strides, alignments and overlaps are so checked without a GPU. The results mean
nothing.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import bytebound_kernels as bk
import pytest
import torch
from bytebound.checkpoint import read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.decoder import CudaDecoder
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.loading import load_weights
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.weights import ModelWeights
from bytebound.loading import find_model
from bytebound.names import resolve_model
from bytebound.sampling import Sampler, SamplingParams
from bytebound_kernels import _device, _native, _stream, _tensor, prefill

from .cuda_models import FOLDERS, WrongDraft, mtp_draft

CPU = torch.device("cpu")
OPS = (
    "rms_norm", "rms_norm_project", "embedding_gather", "dense_matvec", "w4_matvec", "w4_pack",
    "w4_matmul", "w4_unpack", "gdn_step", "attention_decode", "argmax", "logit_adjust", "sample",
    "speculative_accept", "speculative_sample", "history_append", "logprobs",
)  # fmt: skip


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Pretend that the CPU's tensors are on a card, and count what would be launched there."""
    counts: Counter[str] = Counter()

    def instead_of(op: str) -> Any:
        return lambda *args, **options: counts.update([op])

    for op in OPS:
        monkeypatch.setattr(_native, op, instead_of(op))
    card = bk.DeviceInfo(0, "card", (9, 0), 132, 50 << 20, 80 << 30)
    found = _device._Availability("", (card,), {})
    monkeypatch.setattr(_device, "_availability", lambda: found)
    monkeypatch.setattr(_stream, "_current_stream", lambda tensor, device: 0)
    monkeypatch.setattr(_tensor.TensorView, "resolve_device", lambda view: 0)
    monkeypatch.setattr(prefill, "attention_prefill", instead_of_attention)
    monkeypatch.setattr(
        prefill, "gdn_prefill", lambda qkv, z, *args, **options: torch.zeros_like(z)
    )
    return counts


def instead_of_attention(q_gate: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    return q_gate.new_zeros(q_gate.shape[0], q_gate.shape[1] // 2)


def instead_of_gated_delta_net(
    qkv: torch.Tensor, z: torch.Tensor, *args: Any, **options: Any
) -> torch.Tensor:
    return torch.zeros_like(z)


@torch.inference_mode()
def call_everything(
    weights: ModelWeights, config: ModelConfig, kv_dtype: torch.dtype | None = None
) -> None:
    executor = CudaExecutor(weights, config, max_len=400, kv_dtype=kv_dtype)
    draft = mtp_draft(executor, kv_dtype)
    for few_rows in (0, 30):
        executor.few_rows = few_rows
        executor.prefill([1] * 30, draft)
    for rows in range(1, 9):
        executor.verify([1] * rows)
        executor.commit(rows)
        draft.observe([1] * rows, executor.last_hidden)
        assert draft.last_out is not None
    run_cycles(CudaDecoder(executor, draft, 7), executor)
    run_cycles(CudaDecoder(executor, WrongDraft(), 3), executor)
    executor.prefill([1, 2, 3])
    executor.score([1] * 20)


def run_cycles(decoder: CudaDecoder, executor: CudaExecutor) -> None:
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, logprobs=2, repetition_penalty=1.1)
        sampler = Sampler(params, [1], executor.vocab_size, frozenset(), seed=1)
        decoder.begin([1, 1, 1], sampler, 30)
        decoder.advance([1])
        decoder.advance([1])


def from_folder(folder: Path) -> tuple[ModelWeights, ModelConfig]:
    config = ModelConfig.from_folder(folder)
    return load_weights(folder, config, read_headers(folder, config), device=CPU), config


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_a_folder_in_16_bits(launches: Counter[str], kv_dtype: torch.dtype) -> None:
    call_everything(*from_folder(resolve_model("tiny")), kv_dtype)
    assert set(launches) == {op for op in OPS if not op.startswith("w4")}


@pytest.mark.parametrize("kind", FOLDERS)
def test_folders_in_4_bits(
    launches: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    monkeypatch.setattr("bytebound.cuda.matrices.UNPACK_ROWS", 25)
    call_everything(*from_folder(FOLDERS[kind](tmp_path / "model")))
    # Gates are in 16 bits, but multiplied beside a packed in_proj, or else with the norm.
    beside, all_packed = {"rms_norm_project"}, {"rms_norm_project", "dense_matvec"}
    unused = {
        "symmetric": all_packed,
        "asymmetric": all_packed,
        "gptq": beside,
        "gptq reordered": {op for op in OPS if op.startswith("w4")},
    }.get(kind, set())
    assert set(launches) == set(OPS) - unused


def test_layers_of_the_flagship(launches: Counter[str], tmp_path: Path) -> None:
    config = find_model("random:qwen3.5-27b")[1]
    fields = {name: getattr(config, name) for name in config.__slots__}
    kinds = ("linear_attention", "full_attention")
    small = ModelConfig(
        **{**fields, "num_hidden_layers": 2, "layer_types": kinds, "vocab_size": 1000}
    )
    weights = random_weights(small, dtype=torch.float16, device=CPU)
    call_everything(weights, small, torch.float8_e4m3fn)
    assert set(launches) == set(OPS) - {"w4_unpack", "dense_matvec", "rms_norm_project"}
