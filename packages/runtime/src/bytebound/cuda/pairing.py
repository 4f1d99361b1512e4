"""The reference with the very weights that the CUDA backend multiplies by: what it is held against.

In float32, since the reference must not round where the kernels round; but with the values of
weights that the kernels have, which are those of the folder in the dtype of the activations.
"""

from pathlib import Path

import bytebound_kernels as bk
import torch

from bytebound import weights as plain
from bytebound.checkpoint import load_checkpoint, read_headers
from bytebound.config import ModelConfig
from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.loading import load_weights
from bytebound.cuda.matrices import DenseMatrix, GatedDenseMatrix, Matrix, PackedMatrix
from bytebound.cuda.random_weights import random_weights
from bytebound.cuda.taps import TappedMatrix
from bytebound.cuda.weights import (
    AttentionWeights,
    GatedDeltaWeights,
    LayerWeights,
    ModelWeights,
)
from bytebound.reference.executor import ReferenceExecutor
from bytebound.settings import activations_dtype, check_cuda_kv_dtype


def load_pair(
    folder: Path | None,
    config: ModelConfig,
    *,
    max_len: int,
    kv_dtype: str,
    device: torch.device,
    reference_device: torch.device,
) -> tuple[ReferenceExecutor, CudaExecutor]:
    """Load a model twice, for ``run_diff``; ``folder`` None stands for random weights.

    Raises:
        CheckpointError: see ``load_checkpoint``.
        InvalidSettingError: ``kv_dtype`` is none of this backend's; before a weight is read.
    """
    stored = None if folder is None else read_headers(folder, config)
    dtype = activations_dtype(None, kv_dtype, packed=stored is None or bool(stored.packed))
    kind = check_cuda_kv_dtype(kv_dtype, max_len, dtype)
    if folder is None or stored is None:
        weights = random_weights(config, dtype=dtype, device=device)
        reference = reference_of(weights, config, max_len=max_len)
    else:
        weights = load_weights(folder, config, stored, device=device, dtype=dtype)
        reference = load_reference(
            folder, config, max_len=max_len, dtype=dtype, device=reference_device
        )
    return reference, CudaExecutor(weights, config, max_len=max_len, kv_dtype=kind)


def load_reference(
    folder: Path,
    config: ModelConfig,
    *,
    max_len: int,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
) -> ReferenceExecutor:
    """Read the folder by the reference's own path, which shares nothing with that of the kernels.

    Raises:
        CheckpointError: see ``load_checkpoint``.
    """
    weights = load_checkpoint(folder, config, dtype=dtype, device=device).weights
    for _, tensor in plain.iter_tensors(weights):
        tensor.data = tensor.float()
    return ReferenceExecutor(weights, config, max_len=max_len)


def reference_of(weights: ModelWeights, config: ModelConfig, *, max_len: int) -> ReferenceExecutor:
    """Take weights that no folder holds, random ones, back out of the matrices of the kernels."""
    embedding = weights.embed_tokens.float()
    tied = config.tie_word_embeddings
    return ReferenceExecutor(
        plain.ModelWeights(
            embed_tokens=embedding,
            layers=tuple(_layer(one, config) for one in weights.layers),
            norm=weights.norm.float(),
            lm_head=embedding if tied else values_of(weights.lm_head)[0],
            mtp=None,
        ),
        config,
        max_len=max_len,
    )


def values_of(matrix: Matrix) -> list[torch.Tensor]:
    """The weights of a matrix in float32: one [N, K], or gate and up."""
    match matrix:
        case TappedMatrix():
            return values_of(matrix.matrix)
        case DenseMatrix():
            return [matrix.weight.float()]
        case GatedDenseMatrix():
            return [matrix.gate.float(), matrix.up.float()]
        case PackedMatrix():
            packed = matrix.weight
            count = 1 + packed.interleaved
            shape, device = (count * packed.n, packed.k), packed.data.device
            out = torch.empty(shape, dtype=torch.float16, device=device)
            values = bk.w4_unpack(packed, out=out)
            return list(values.float().chunk(count))
    raise TypeError(f"{type(matrix).__name__} is no matrix of this package")


def _layer(weights: LayerWeights, config: ModelConfig) -> plain.LayerWeights:
    mixer = weights.mixer
    gate, up = values_of(weights.mlp.gate_up)
    return plain.LayerWeights(
        input_layernorm=weights.input_layernorm.float(),
        mixer=(
            _attention(mixer, config)
            if isinstance(mixer, AttentionWeights)
            else _gated_delta(mixer, config)
        ),
        post_attention_layernorm=weights.post_attention_layernorm.float(),
        mlp=plain.MlpWeights(gate, up, *values_of(weights.mlp.down_proj)),
    )


def _attention(weights: AttentionWeights, config: ModelConfig) -> plain.AttentionWeights:
    keys = config.num_key_value_heads * config.head_dim
    rows = [2 * config.num_attention_heads * config.head_dim, keys, keys]
    q, k, v = torch.split(values_of(weights.qkv)[0], rows)
    (o,) = values_of(weights.o_proj)
    return plain.AttentionWeights(q, k, v, o, weights.q_norm.float(), weights.k_norm.float())


def _gated_delta(weights: GatedDeltaWeights, config: ModelConfig) -> plain.GatedDeltaWeights:
    rows = [config.conv_channels, config.value_dim]
    qkv, z = torch.split(values_of(weights.in_proj)[0], rows)
    a, b = values_of(weights.gates)[0].chunk(2)
    (out,) = values_of(weights.out_proj)
    fixed = weights.constants
    return plain.GatedDeltaWeights(
        in_proj_qkv=qkv,
        in_proj_z=z,
        in_proj_b=b,
        in_proj_a=a,
        conv1d=fixed.conv.float(),
        dt_bias=fixed.dt_bias.float(),
        A_log=fixed.a_log.float(),
        norm=fixed.norm.float(),
        out_proj=out,
    )
