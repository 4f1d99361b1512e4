"""Matrices that a folder stores in 4 bits: found in the file headers, read, and turned to weights.

Whether ``X`` is packed is decided module by module from what the files hold (E16, E28, E35)::

    plain            X.weight
    pack-quantized   X.weight_packed  int32 [N, ceil(K / 8)]   codes of a row side by side
                     X.weight_scale   float [N, K / G]
                     X.weight_shape   int   [2]                N, K
                     X.weight_zero_point int32 [ceil(N / 8), K / G]   codes of a column, asymmetric
                     X.weight_g_idx   int32 [K]                only where the config says reordered
    gptq, gptq_v2    X.qweight        int32 [K / 8, N]         codes of a column one below the other
                     X.qzeros         int32 [ceil(K / G), N / 8]  v1 stores each zero point minus 1
                     X.scales         float [ceil(K / G), N]
                     X.g_idx          int32 [K]                group of each column; may be absent
    awq              X.qweight        int32 [K, N / 8]         eight outputs a word, in AWQ_ORDER
                     X.qzeros         int32 [K / G, N / 8]     in the same order
                     X.scales         float [K / G, N]

``W`` is [N, K] as everywhere, N outputs, G columns to a group. A module with parts of both kinds,
or not all parts of one, is an error that names it. ``packing.py`` has the formula. Shapes are
checked from the headers, before any weight is read; what cannot be divided so is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from bytebound.errors import CheckpointError, UnsupportedModelError
from bytebound.packing import CODES_PER_WORD, HIGHEST, MIDDLE, dequantize, unpack, unpack_awq, words
from bytebound.scheme_readers import scheme_from_config
from bytebound.shards import FLOATS, StoredTensor, read_tensor, some
from bytebound.stored_scheme import FORMAT_VERSION, Layout, StoredGroup, StoredScheme
from bytebound.tensor_names import Shape

__all__ = [
    "FORMAT_VERSION",
    "MatrixScheme",
    "PackedMatrix",
    "StoredGroup",
    "StoredMatrix",
    "StoredScheme",
    "dequantize",
    "find_packed",
    "read_matrix",
    "scheme_from_config",
]

WEIGHT = ".weight"
_REQUIRED: dict[Layout, tuple[str, ...]] = {
    "pack-quantized": ("weight_packed", "weight_scale", "weight_shape"),
    "gptq": ("qweight", "qzeros", "scales"),
    "gptq_v2": ("qweight", "qzeros", "scales"),
    "awq": ("qweight", "qzeros", "scales"),
}
_OPTIONAL: dict[Layout, tuple[str, ...]] = {
    "pack-quantized": ("weight_zero_point", "weight_g_idx"),
    "gptq": ("g_idx",),
    "gptq_v2": ("g_idx",),
    "awq": (),
}
PACKED_TAILS = frozenset(
    tail for table in (_REQUIRED, _OPTIONAL) for tails in table.values() for tail in tails
)
_INTEGERS = ("I32",)
_SHAPE_INTEGERS = ("I64", "I32")


@dataclass(frozen=True, slots=True)
class MatrixScheme:
    """How one matrix is stored."""

    layout: Layout
    group_size: int  # columns that share a scale
    symmetric: bool
    reordered: bool = False


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """One packed matrix in memory: its stored tensors, and what they mean."""

    name: str  # of the weight it stands for, "….q_proj.weight"
    scheme: MatrixScheme
    shape: tuple[int, int]  # N, K
    tensors: Mapping[str, torch.Tensor]  # by the last part of their names

    def codes(self) -> torch.Tensor:
        """Unsigned codes, uint8 [N, K]."""
        layout = self.scheme.layout
        if layout == "pack-quantized":
            return unpack(self.tensors["weight_packed"], self.shape[1])
        if layout == "awq":
            return unpack_awq(self.tensors["qweight"]).T
        return unpack(self.tensors["qweight"].T, self.shape[1])

    def scales(self) -> torch.Tensor:
        """Scale of each group, float32 [N, groups of a row]."""
        if self.scheme.layout == "pack-quantized":
            return self.tensors["weight_scale"].float()
        return self.tensors["scales"].T.float()

    def zeros(self) -> torch.Tensor:
        """The code that stands for 0 in each group, uint8 [N, groups of a row]."""
        layout, rows = self.scheme.layout, self.shape[0]
        if layout == "pack-quantized":
            packed = self.tensors.get("weight_zero_point")
            if packed is None:
                return torch.full_like(self.tensors["weight_scale"], MIDDLE, dtype=torch.uint8)
            return unpack(packed.T, rows).T
        if layout == "awq":
            return unpack_awq(self.tensors["qzeros"]).T
        stored = unpack(self.tensors["qzeros"], rows).T
        return stored + 1 if layout == "gptq" else stored

    def groups(self) -> torch.Tensor:
        """The group that each column belongs to, int64 [K]."""
        order = self.tensors.get("weight_g_idx", self.tensors.get("g_idx"))
        if order is not None:
            return order.long()
        device = next(iter(self.tensors.values())).device
        return torch.arange(self.shape[1], device=device) // self.scheme.group_size

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weights [N, K]: ``(codes - zeros) * scales`` in float32, rounded to ``dtype``."""
        return dequantize(self.codes(), self.scales(), self.zeros(), self.groups(), dtype)

    def to(self, device: torch.device) -> "StoredMatrix":
        """Return the same matrix on ``device``."""
        moved = {tail: tensor.to(device) for tail, tensor in self.tensors.items()}
        return StoredMatrix(self.name, self.scheme, self.shape, moved)

    def check(self, source: str = "") -> None:
        """Check every value that the headers could not show.

        Raises:
            CheckpointError: a shape, scale, zero point or group index that cannot be meant.
        """
        where = f"{source}: {self.name}" if source else self.name
        stated = self.tensors.get("weight_shape")
        if stated is not None and tuple(stated.tolist()) != self.shape:
            raise CheckpointError(
                f"{where}: weight_shape says {stated.tolist()}, the config asks for "
                f"{list(self.shape)}"
            )
        if not bool(torch.isfinite(self.scales()).all()):
            raise CheckpointError(
                f"{where}: its scales hold NaN or infinite values; the file is damaged"
            )
        self._check_groups(where)
        if self.scheme.layout in ("gptq", "gptq_v2"):
            self._check_gptq_zeros(where)

    def _check_groups(self, where: str) -> None:
        groups, count = self.groups(), self.scales().shape[1]
        low, high = int(groups.min()), int(groups.max())
        if low < 0 or high >= count:
            raise CheckpointError(
                f"{where}: its g_idx holds {low if low < 0 else high}, expected 0 to {count - 1}"
            )
        if self.scheme.layout == "pack-quantized":
            # The package sorts the columns by group and then cuts every G: the same thing only
            # where every group has G of them.
            sizes = torch.bincount(groups, minlength=count)
            if not bool((sizes == self.scheme.group_size).all()):
                raise CheckpointError(
                    f"{where}: weight_g_idx gives groups of {int(sizes.min())} to "
                    f"{int(sizes.max())} columns, the config says {self.scheme.group_size}"
                )

    def _check_gptq_zeros(self, where: str) -> None:
        zeros = self.zeros()
        if bool((zeros > HIGHEST).any()):
            raise UnsupportedModelError(
                f"{where}: a zero point is stored as 15, which in checkpoint_format 'gptq' writers "
                "use for 16 and for 0; convert the folder to 'gptq_v2', where they differ"
            )
        if self.scheme.symmetric and not bool((zeros == MIDDLE).all()):
            raise CheckpointError(
                f"{where}: the config says sym true, yet its qzeros are not all {MIDDLE}"
            )


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Where one packed matrix lies in the files; its shapes are checked, nothing of it is read."""

    name: str  # of the weight it stands for
    scheme: MatrixScheme
    shape: tuple[int, int]  # N, K
    parts: Mapping[str, StoredTensor]  # by the last part of their names

    @property
    def num_bytes(self) -> int:
        """Bytes of all its parts, the two numbers of ``weight_shape`` apart."""
        return sum(one.num_bytes for tail, one in self.parts.items() if tail != "weight_shape")

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per weight, scales, zero points and column order included."""
        return 8 * self.num_bytes / (self.shape[0] * self.shape[1])

    def matrix(self, tensors: Mapping[str, torch.Tensor]) -> StoredMatrix:
        """Build the matrix from its parts as they were read, by the last part of their names."""
        result = StoredMatrix(self.name, self.scheme, self.shape, dict(tensors))
        result.check(str(next(iter(self.parts.values())).file))
        return result


def find_packed(
    folder: Path,
    stored: Mapping[str, StoredTensor],
    scheme: StoredScheme | None,
    shapes: Mapping[str, Shape],
) -> dict[str, PackedMatrix]:
    """Every packed matrix among the stored tensors, by the name of the weight it stands for.

    ``shapes`` has the shape of every weight that may be stored. Tensors that are no part of a
    packed matrix are not looked at.

    Raises:
        CheckpointError: parts missing, too many or of the wrong shape; config and files disagree.
    """
    modules: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        module, _, tail = name.rpartition(".")
        if tail in PACKED_TAILS:
            modules.setdefault(module, {})[tail] = tensor
    if scheme is None:
        if modules:
            module, parts = next(iter(modules.items()))
            raise CheckpointError(
                f"{folder}: the files hold {some([f'{module}.{tail}' for tail in sorted(parts)])}, "
                "packed weights, yet config.json has no quantization_config; fetch the config that "
                "goes with them"
            )
        return {}
    if not modules:
        raise CheckpointError(
            f"{folder}: quantization_config says {scheme.layout}, yet no tensor in the files is "
            "packed; remove the block if the weights are plain"
        )
    found: dict[str, PackedMatrix] = {}
    for module, parts in modules.items():
        name = module + WEIGHT
        _check_parts(folder, module, parts, name in stored, scheme)
        shape = shapes.get(name)
        if shape is None:
            raise CheckpointError(
                f"{folder}: the files hold {module}.{min(parts)}, which this config has no place "
                "for; config and weights are not of one model"
            )
        if len(shape) != 2:
            raise CheckpointError(
                f"{folder}: {module} is stored packed; its weight has shape {list(shape)}, only a "
                "matrix can be"
            )
        found[name] = _packed_matrix(module, parts, scheme, (shape[0], shape[1]))
    return found


def read_matrix(packed: PackedMatrix) -> StoredMatrix:
    """Read one packed matrix from its files.

    Raises:
        CheckpointError: a part cannot be read, or holds values that cannot be meant.
    """
    tensors = {}
    for tail, part in packed.parts.items():
        try:
            file = part.file.open("rb", buffering=0)
        except OSError as error:
            raise CheckpointError(
                f"{part.file} cannot be read: {error.strerror or error}"
            ) from error
        with file:
            tensors[tail] = read_tensor(part, file)
    return packed.matrix(tensors)


def _check_parts(
    folder: Path,
    module: str,
    parts: Mapping[str, StoredTensor],
    with_plain: bool,
    scheme: StoredScheme,
) -> None:
    required = _REQUIRED[scheme.layout]
    foreign = [tail for tail in parts if tail not in (*required, *_OPTIONAL[scheme.layout])]
    if foreign:
        raise CheckpointError(
            f"{folder}: {module} has {some(sorted(foreign))}, no part of {scheme.layout}, which "
            "quantization_config says"
        )
    if with_plain:
        raise CheckpointError(
            f"{folder}: {module} has weight and also {some(sorted(parts))}; which of them counts "
            "is not said"
        )
    missing = [tail for tail in required if tail not in parts]
    group = scheme.group_of(module)
    if scheme.layout == "pack-quantized":
        if not group.symmetric and "weight_zero_point" not in parts:
            missing.append("weight_zero_point")
        if group.reordered and "weight_g_idx" not in parts:
            missing.append("weight_g_idx")
    elif group.reordered and "g_idx" not in parts:
        missing.append("g_idx")
    if missing:
        raise CheckpointError(
            f"{folder}: {module} has {some(sorted(parts))} but no {some(missing)}; the matrix is "
            "not complete"
        )
    if scheme.layout == "pack-quantized":
        extra = {"weight_zero_point": not group.symmetric, "weight_g_idx": group.reordered}
        for tail, meant in extra.items():
            if tail in parts and not meant:
                raise CheckpointError(
                    f"{folder}: {module} has {tail}, which its group of config_groups does not "
                    "ask for; config and weights are not of one set"
                )
    if scheme.ignores(module):
        raise CheckpointError(
            f"{folder}: {module} is stored packed, yet quantization_config lists it as ignored"
        )


def _packed_matrix(
    module: str, parts: Mapping[str, StoredTensor], scheme: StoredScheme, shape: tuple[int, int]
) -> PackedMatrix:
    group = scheme.group_of(module)
    layout = scheme.layout
    size = shape[1] if group.group_size is None else group.group_size
    own = MatrixScheme(layout, size, group.symmetric, group.reordered)
    _check_divisible(parts, module, own, shape)
    for tail, (dtypes, expected) in _expected_parts(own, shape).items():
        part = parts.get(tail)
        if part is None:
            continue
        if part.shape != expected:
            raise CheckpointError(
                f"{part.file}: {part.name} has shape {list(part.shape)}, a matrix "
                f"{list(shape)} in groups of {size} needs {list(expected)}"
            )
        if part.dtype not in dtypes:
            raise CheckpointError(
                f"{part.file}: {part.name} is stored as {part.dtype}, expected "
                f"{' or '.join(dtypes)}"
            )
    return PackedMatrix(module + WEIGHT, own, shape, parts)


def _check_divisible(
    parts: Mapping[str, StoredTensor], module: str, scheme: MatrixScheme, shape: tuple[int, int]
) -> None:
    """Refuse what the layout cannot hold without padding that no two tools agree on (E29)."""
    rows, columns = shape
    problem = None
    if scheme.layout in ("pack-quantized", "awq") and columns % scheme.group_size:
        problem = f"{columns} inputs, no multiple of the group size {scheme.group_size}"
    elif scheme.layout != "pack-quantized" and rows % CODES_PER_WORD:
        problem = f"{rows} outputs, no multiple of {CODES_PER_WORD}"
    elif scheme.layout in ("gptq", "gptq_v2") and columns % CODES_PER_WORD:
        problem = f"{columns} inputs, no multiple of {CODES_PER_WORD}"
    if problem is not None:
        raise UnsupportedModelError(
            f"{next(iter(parts.values())).file}: {module} is stored as {scheme.layout} and has "
            f"{problem}; such a matrix must stay unpacked"
        )


def _expected_parts(
    scheme: MatrixScheme, shape: tuple[int, int]
) -> dict[str, tuple[tuple[str, ...], Shape]]:
    """Dtypes and shape of every part that the matrix may have."""
    rows, columns = shape
    groups = -(-columns // scheme.group_size)
    floats = tuple(FLOATS)
    if scheme.layout == "pack-quantized":
        return {
            "weight_packed": (_INTEGERS, (rows, words(columns))),
            "weight_scale": (floats, (rows, groups)),
            "weight_shape": (_SHAPE_INTEGERS, (2,)),
            "weight_zero_point": (_INTEGERS, (words(rows), groups)),
            "weight_g_idx": (_INTEGERS, (columns,)),
        }
    awq = scheme.layout == "awq"
    return {
        "qweight": (_INTEGERS, (columns, words(rows)) if awq else (words(columns), rows)),
        "qzeros": (_INTEGERS, (groups, words(rows))),
        "scales": (floats, (groups, rows)),
        "g_idx": (_INTEGERS, (columns,)),
    }
