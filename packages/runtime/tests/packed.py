"""Folders with 4-bit matrices, packed here from the layouts' descriptions, not by the package.

``quantize`` rounds a matrix to codes, scales and zero points; one function for each layout writes
them down as that layout does. ``packed_folder`` stores chosen matrices of a random checkpoint so
and remembers what they stand for, computed in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .checkpoints import RandomCheckpoint, random_checkpoint, write_json, write_tensors

Parts = dict[str, torch.Tensor]
GROUP = 32  # divides every K of the base shape


@dataclass(frozen=True)
class Rounded:
    """One matrix in numbers: codes 0 to 15 [N, K], per group [N, S], and the group of a column."""

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    groups: torch.Tensor

    @property
    def weight(self) -> torch.Tensor:
        offsets = self.codes.double() - self.zeros.double()[:, self.groups]
        return (offsets * self.scales.double()[:, self.groups]).float()


def quantize(
    weight: torch.Tensor,
    group_size: int = GROUP,
    *,
    symmetric: bool = True,
    scale_dtype: torch.dtype = torch.float16,
    shuffled: bool = False,
) -> Rounded:
    """Round to the nearest code; ``shuffled`` deals the columns to groups in a random order."""
    columns = weight.shape[1]
    groups = torch.arange(columns) // group_size
    if shuffled:
        order = torch.randperm(columns, generator=torch.Generator().manual_seed(columns))
        groups = groups[order]
    zeros, scales = [], []
    for index in range(int(groups.max()) + 1):
        part = weight[:, groups == index].double()
        if symmetric:
            scale = part.abs().amax(1) / 7.5
            zero = torch.full_like(scale, 8)
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scale = (high - low) / 15
            zero = (-low / scale).round().clamp(1, 14)
        scales.append(scale.to(scale_dtype))
        zeros.append(zero.to(torch.uint8))
    scales, zeros = torch.stack(scales, 1), torch.stack(zeros, 1)
    codes = (weight.double() / scales.double()[:, groups]).round() + zeros.double()[:, groups]
    return Rounded(codes.clamp(0, 15).to(torch.uint8), zeros, scales, groups)


def words(codes: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Pack [R, C] to int32 [R, C / 8]: nibble i of a word is column ``order[i]`` of its eight."""
    rows, columns = codes.shape
    filled = np.zeros((rows, -(-columns // 8), 8), dtype=np.uint32)
    filled.reshape(rows, -1)[:, :columns] = codes.numpy()
    word = np.zeros(filled.shape[:2], dtype=np.uint32)
    for nibble, column in enumerate(order):
        word |= filled[:, :, column] << np.uint32(4 * nibble)
    return torch.from_numpy(word.view(np.int32))


def pack_quantized(rounded: Rounded, *, symmetric: bool = True, ordered: bool = True) -> Parts:
    parts = {
        "weight_packed": words(rounded.codes),
        "weight_scale": rounded.scales.clone(),
        "weight_shape": torch.tensor(rounded.codes.shape),
    }
    if not symmetric:
        parts["weight_zero_point"] = words(rounded.zeros.T).T.contiguous()
    if not ordered:
        parts["weight_g_idx"] = rounded.groups.int()
    return parts


def gptq(rounded: Rounded, *, v2: bool = False) -> Parts:
    return {
        "qweight": words(rounded.codes).T.contiguous(),
        "qzeros": words((rounded.zeros if v2 else rounded.zeros - 1).T.contiguous()),
        "scales": rounded.scales.T.contiguous(),
        "g_idx": rounded.groups.int(),
    }


def awq(rounded: Rounded) -> Parts:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        "qweight": words(rounded.codes.T.contiguous(), order),
        "qzeros": words(rounded.zeros.T.contiguous(), order),
        "scales": rounded.scales.T.contiguous(),
    }


def compressed_config(group_size: int = GROUP, *, symmetric: bool = True, **more: Any) -> Any:
    """A ``quantization_config`` with every field that the compressed-tensors package writes."""
    return {
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": symmetric,
                    "group_size": group_size,
                    "strategy": "group",
                    "dynamic": False,
                },
                "input_activations": None,
                "output_activations": None,
                "format": "pack-quantized",
            }
        },
        "quant_method": "compressed-tensors",
        "kv_cache_scheme": None,
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "ignore": [],
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.14.0",
        **more,
    }


def gptq_config(group_size: int = GROUP, **more: Any) -> Any:
    return {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": group_size,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
        "damp_percent": 0.01,
        "true_sequential": True,
        "checkpoint_format": "gptq",
        "pack_dtype": "int32",
        "meta": {"quantizer": ["gptqmodel:2.2.0"]},
        **more,
    }


def awq_config(group_size: int = GROUP, **more: Any) -> Any:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
        **more,
    }


@dataclass(frozen=True)
class PackedFolder:
    """What was written, and the weights that it stands for."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]  # as stored
    weights: dict[str, torch.Tensor]  # by their plain names, float32
    packed: tuple[str, ...]  # modules

    def write(self) -> None:
        write_json(self.folder / "config.json", self.config)
        write_tensors(self.folder, self.tensors)

    def plain_twin(self, folder: Path) -> Path:
        """Write the same model with no packed matrix."""
        folder.mkdir()
        config = {name: value for name, value in self.config.items() if "quant" not in name}
        write_json(folder / "config.json", config)
        write_tensors(folder, self.weights)
        return folder


def projections(module: str) -> bool:
    """What a quantization tool packs by default: no embedding, no head, no narrow projection."""
    return module.endswith(("proj", "mtp.fc", "in_proj_qkv", "in_proj_z"))


def packed_folder(
    folder: Path,
    block: dict[str, Any],
    store: Callable[[torch.Tensor], tuple[Rounded, Parts]],
    *,
    pack: Callable[[str], bool] = projections,
    made: RandomCheckpoint | None = None,
    **checkpoint: Any,
) -> PackedFolder:
    """Write a checkpoint with the matrices that ``pack`` chooses stored by ``store``.

    It is ``made``, or without it a random one.
    """
    made = made or random_checkpoint(folder, **checkpoint)
    tensors: dict[str, torch.Tensor] = {}
    weights: dict[str, torch.Tensor] = {}
    packed = []
    for name, tensor in made.tensors.items():
        module = name.removesuffix(".weight")
        if tensor.ndim != 2 or not pack(module) or "visual" in name:
            tensors[name] = weights[name] = tensor
            continue
        rounded, parts = store(tensor.float())
        weights[name] = rounded.weight
        tensors.update({f"{module}.{tail}": part for tail, part in parts.items()})
        packed.append(module)
    result = PackedFolder(
        folder, {**made.config, "quantization_config": block}, tensors, weights, tuple(packed)
    )
    result.write()
    return result


def compressed_folder(
    folder: Path,
    *,
    group_size: int = GROUP,
    symmetric: bool = True,
    scale_dtype: torch.dtype = torch.float16,
    block: dict[str, Any] | None = None,
    pack: Callable[[str], bool] = projections,
    **checkpoint: Any,
) -> PackedFolder:
    """A pack-quantized folder."""

    def store(weight: torch.Tensor) -> tuple[Rounded, Parts]:
        rounded = quantize(weight, group_size, symmetric=symmetric, scale_dtype=scale_dtype)
        return rounded, pack_quantized(rounded, symmetric=symmetric)

    block = compressed_config(group_size, symmetric=symmetric) if block is None else block
    return packed_folder(folder, block, store, pack=pack, **checkpoint)


def gptq_folder(
    folder: Path,
    *,
    group_size: int = GROUP,
    v2: bool = False,
    shuffled: bool = False,
    symmetric: bool = True,
    **checkpoint: Any,
) -> PackedFolder:
    """A GPTQ folder; ``shuffled`` is activation order."""

    def store(weight: torch.Tensor) -> tuple[Rounded, Parts]:
        rounded = quantize(weight, group_size, symmetric=symmetric, shuffled=shuffled)
        return rounded, gptq(rounded, v2=v2)

    block = gptq_config(
        group_size,
        checkpoint_format="gptq_v2" if v2 else "gptq",
        desc_act=shuffled,
        sym=symmetric,
    )
    return packed_folder(folder, block, store, **checkpoint)


def awq_folder(folder: Path, *, group_size: int = GROUP, **checkpoint: Any) -> PackedFolder:
    """An AWQ folder."""

    def store(weight: torch.Tensor) -> tuple[Rounded, Parts]:
        rounded = quantize(weight, group_size, symmetric=False)
        return rounded, awq(rounded)

    return packed_folder(folder, awq_config(group_size), store, **checkpoint)
