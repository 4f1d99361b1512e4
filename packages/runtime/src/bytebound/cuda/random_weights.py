"""Random weights of any shape, in 4 bits, made on the GPU: for measuring speed. They say nothing.

The values keep activations finite and of ordinary size, so that no kernel takes a path that a
trained model would not take. The same seed gives the same weights on the same device.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from bytebound import tensor_names as names
from bytebound.config import ModelConfig
from bytebound.cuda import fusion
from bytebound.cuda.assembly import GROUP, PackableMatrix, pack
from bytebound.cuda.fusion import Fusion
from bytebound.cuda.matrices import DenseMatrix, GatedDenseMatrix, Matrix
from bytebound.cuda.weights import ModelWeights, model_weights
from bytebound.packing import CODES_PER_WORD

_CODE_SPREAD = math.sqrt((16**2 - 1) / 12)  # standard deviation of a code from 0 to 15


def random_weights(
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
    draft_ids: torch.Tensor | None = None,
) -> ModelWeights:
    """Build every weight; matrices in 4 bits where their inputs are whole groups.

    ``draft_ids`` int32 [N] asks for a draft head of so many rows, which are random as well.
    """
    source = torch.Generator(device).manual_seed(seed)
    prefix, with_mtp = names.TEXT_PREFIX, bool(config.mtp_num_hidden_layers)
    shapes = {**names.model_shapes(config, prefix=prefix), **names.head_shape(config)}
    if with_mtp:
        shapes |= names.mtp_shapes(config)
    fusions = fusion.plan(config, prefix, with_mtp=with_mtp)
    parts: dict[str, Matrix | torch.Tensor] = {
        one.name: _matrix(one, shapes, dtype, source) for one in fusions
    }
    fused = {name for one in fusions for name in one.members}
    for name, shape in shapes.items():
        if name not in fused and name != names.HEAD:
            parts[name] = _tensor(name, shape, dtype, source)
    if config.tie_word_embeddings:
        table = parts[prefix + names.EMBEDDING]
        if isinstance(table, torch.Tensor):
            parts[fusion.HEAD] = DenseMatrix(table)
    weights = model_weights(config, parts, prefix, with_mtp=with_mtp)
    if draft_ids is None or weights.mtp is None:
        return weights
    rows = Fusion(fusion.HEAD, (names.HEAD,))
    shapes = {names.HEAD: (draft_ids.numel(), config.hidden_size)}
    draft_head = _matrix(rows, shapes, dtype, source)
    mtp = replace(weights.mtp, draft_head=draft_head, draft_ids=draft_ids.to(device))
    return replace(weights, mtp=mtp)


def _matrix(
    one: Fusion, shapes: Mapping[str, names.Shape], dtype: torch.dtype, source: torch.Generator
) -> Matrix:
    gated = one.form == "gated"
    columns = shapes[one.members[0]][1]
    rows = sum(shapes[name][0] for name in one.members[: 1 if gated else None])
    if one.form != "dense" and columns % GROUP == 0:
        parts = [_packable(rows, columns, source) for _ in one.members[: 2 if gated else 1]]
        return pack(parts, gated=gated)
    dense = [_normal((rows, columns), columns**-0.5, dtype, source) for _ in "gu"[: 1 + gated]]
    return GatedDenseMatrix(*dense) if gated else DenseMatrix(dense[0])


def _packable(rows: int, columns: int, source: torch.Generator) -> PackableMatrix:
    words = torch.randint(
        -(1 << 31),
        1 << 31,
        (rows, columns // CODES_PER_WORD),
        dtype=torch.int32,
        device=source.device,
        generator=source,
    )
    spread = torch.rand(rows, columns // GROUP, device=source.device, generator=source)
    scale = (0.5 + spread) * (columns**-0.5 / _CODE_SPREAD)
    return PackableMatrix(words, scale.half(), None)


def _tensor(
    name: str, shape: names.Shape, dtype: torch.dtype, source: torch.Generator
) -> torch.Tensor:
    if name.endswith(names.EMBEDDING):
        return _normal(shape, 1.0, dtype, source)
    if name.endswith(names.GATED_DELTA["conv1d"]):
        return _normal(shape, 0.5, dtype, source)
    uniform = torch.rand(shape, device=source.device, generator=source)
    if name.endswith(names.GATED_DELTA["A_log"]):
        return torch.log(1 + 15 * uniform)
    if name.endswith(names.GATED_DELTA["dt_bias"]):
        return -4 + 3 * uniform
    if name.endswith(names.GATED_DELTA["norm"]):
        return 0.5 + uniform
    return 0.2 * uniform - 0.1  # of a norm that adds 1


def _normal(
    shape: names.Shape, spread: float, dtype: torch.dtype, source: torch.Generator
) -> torch.Tensor:
    values = torch.empty(shape, dtype=dtype, device=source.device)
    return values.normal_(0, spread, generator=source)
