"""Shows the products of a pass of the CUDA backend to somebody, without a hook in the pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

from bytebound.cuda.executor import CudaExecutor
from bytebound.cuda.matrices import Matrix, Workspaces
from bytebound.cuda.weights import ModelWeights
from bytebound.taps import HEAD, Place, Product, Tap

RecordT = TypeVar("RecordT")


class TappedMatrix:
    """Implements ``Matrix``: does what ``matrix`` does, and shows every product to ``tap``.

    The tensors shown may be those of the pass: whoever wants to keep one copies it.
    """

    def __init__(self, matrix: Matrix, place: Place, tap: Tap) -> None:
        self.matrix = matrix
        self.place = place
        self.tap = tap

    @property
    def n(self) -> int:
        """Output features."""
        return self.matrix.n

    @property
    def num_bytes(self) -> int:
        """Device memory that it takes."""
        return self.matrix.num_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.matrix, name)

    def matvec(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """See Matrix."""
        before = None if residual is None else residual.clone()  # out is mostly the same memory
        self.matrix.matvec(x, out, workspaces, residual, scale)
        self._show(x, before, out, scale)

    def norm_matvec(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        y: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        *,
        eps: float,
    ) -> None:
        """See Matrix."""
        self.matrix.norm_matvec(x, norm, y, out, workspaces, eps=eps)
        self._show(y, None, out, 1.0)

    def norm_matvec_beside(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        y: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        *,
        small: Matrix,
        small_out: torch.Tensor,
        eps: float,
    ) -> None:
        """See Matrix."""
        own = small.matrix if isinstance(small, TappedMatrix) else small
        self.matrix.norm_matvec_beside(
            x, norm, y, out, workspaces, small=own, small_out=small_out, eps=eps
        )
        if isinstance(small, TappedMatrix):
            small._show(y, None, small_out, 1.0)
        self._show(y, None, out, 1.0)

    def matmul(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """See Matrix."""
        before = None if residual is None else residual.clone()
        self.matrix.matmul(x, out, workspaces, residual, scale)
        self._show(x, before, out, scale)

    def _show(
        self, x: torch.Tensor, before: torch.Tensor | None, out: torch.Tensor, scale: float
    ) -> None:
        """Show the product as it were without a scale: SwiGLU's result is kept times one."""
        if scale != 1 and before is None:
            out = out.float() / scale
        elif scale != 1:
            x = x.float() * scale
        self.tap(Product(self.place, x, before, out))


@contextmanager
def tapping(executor: CudaExecutor, tap: Tap) -> Iterator[None]:
    """Show the products of every pass of ``executor`` to ``tap`` until the block ends."""
    weights, step, few_rows = executor.weights, executor.step, executor.few_rows
    executor.weights = tapped(weights, tap)
    # A weight stream reads the packed matrices themselves, and so does a recording: there is
    # nothing to tap.
    executor.step, executor.few_rows = executor.op_by_op, 0
    try:
        yield
    finally:
        executor.weights, executor.step, executor.few_rows = weights, step, few_rows


def tapped(weights: ModelWeights, tap: Tap) -> ModelWeights:
    """The same weights, whose products are shown to ``tap``; those of the MTP head are not."""
    return replace(
        weights,
        layers=tuple(_tapped(layer, index, tap) for index, layer in enumerate(weights.layers)),
        lm_head=TappedMatrix(weights.lm_head, Place(None, HEAD), tap),
    )


def matrix_at(weights: ModelWeights, place: Place) -> Matrix | None:
    """The matrix of that name; None where the op has none."""
    if place.layer is None:
        return weights.lm_head if place.op == HEAD else None
    layer = weights.layers[place.layer]
    for record in (layer.mixer, layer.mlp):
        found = getattr(record, place.op, None)
        if hasattr(found, "matvec"):
            return found
    return None


def _tapped(record: RecordT, layer: int, tap: Tap) -> RecordT:
    """A record of one layer with its matrices wrapped."""
    changes: dict[str, Any] = {}
    for field in fields(record) if is_dataclass(record) else ():
        value = getattr(record, field.name)
        if hasattr(value, "matvec"):
            changes[field.name] = TappedMatrix(value, Place(layer, field.name), tap)
        elif is_dataclass(value):
            changes[field.name] = _tapped(value, layer, tap)
    return replace(record, **changes) if changes else record  # type: ignore[type-var]
