"""A matrix of the model in the form that a kernel reads, and its two products.

``matvec`` serves a step: one to sixteen rows, each with the bits that it has alone. ``matmul``
serves a prompt: any number of rows, whose bits may follow their number. Both write ``scale * (x
W^T)``, or ``residual + scale * (x W^T)``, into ``out``; a gated pair writes ``scale * silu(x
gate^T) * (x up^T)``.
"""

from dataclasses import dataclass
from typing import Protocol

import bytebound_kernels as bk
import torch
from torch.nn.functional import silu

MATVEC_ROWS = 16  # of one call of a matvec op
# A product of two activations may go beyond float16. So gate and up leave it times a power of two,
# which the next product takes off again, exactly: up to four million fits, and what is below 0.004
# still has an error of two millionths at most.
SWIGLU_SCALE = {torch.float16: 2.0**-6, torch.bfloat16: 1.0}
MATMUL_ROWS = (1, 33, 65)  # where w4_matmul goes over to another kernel
BESIDE_COLUMNS = 8192  # of a small matrix that w4_matvec takes beside its own, at most
UNPACK_ROWS = 128  # from here on a library's product pays for unpacking the matrix first


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Scratch that the ops share; everything runs on one stream."""

    matvec: torch.Tensor  # uint8, all bits set between calls
    attention: torch.Tensor  # uint8
    matmul: torch.Tensor  # uint8, all bits set between calls
    unpacked: torch.Tensor  # as the activations: the largest packed matrix in 16 bits

    @classmethod
    def empty(
        cls,
        *,
        num_heads: int,
        max_rows: int,
        positions: int,
        unpacked: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "Workspaces":
        """Allocate for passes of up to ``max_rows`` rows over caches of ``positions``.

        ``unpacked`` counts the elements of the largest packed matrix, 0 where there is none.
        """
        attention = bk.attention_decode_workspace_bytes(max_rows, num_heads, positions)
        matmul = bk.w4_matmul_workspace_bytes(device.index or 0) if unpacked else 0

        def set_bits(count: int) -> torch.Tensor:
            return torch.full((count,), 0xFF, dtype=torch.uint8, device=device)

        return cls(
            set_bits(bk.matvec_workspace_bytes(device.index or 0)),
            torch.empty(attention, dtype=torch.uint8, device=device),
            set_bits(matmul),
            torch.empty(unpacked, dtype=dtype, device=device),
        )


class Matrix(Protocol):
    """[N, K], or gate and up of that shape."""

    @property
    def n(self) -> int:
        """Output features."""

    @property
    def num_bytes(self) -> int:
        """Device memory that it takes."""

    def matvec(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """``x`` [R, K] with R from 1 to 16; ``out`` [R, N] like x or float32."""

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
        """``y`` is RMSNorm of ``x`` float32 [R, K] with ``norm``, ``out`` the product of y."""

    def norm_matvec_beside(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        y: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        *,
        small: "Matrix",
        small_out: torch.Tensor,
        eps: float,
    ) -> None:
        """As ``norm_matvec``; ``small_out`` is y's product with ``small``, as of its own."""

    def matmul(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """``x`` [T, K]; ``out`` [T, N] like x, or float32 with a residual."""


class SmallFirst:
    """``Matrix.norm_matvec_beside`` as the norm with the small product, and the other product."""

    __slots__ = ()

    def norm_matvec_beside(
        self: Matrix,
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
        small.norm_matvec(x, norm, y, small_out, workspaces, eps=eps)
        self.matvec(y, out, workspaces)


class NormFirst:
    """``Matrix.norm_matvec`` as two ops."""

    __slots__ = ()

    def norm_matvec(
        self: Matrix,
        x: torch.Tensor,
        norm: torch.Tensor,
        y: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        *,
        eps: float,
    ) -> None:
        """See Matrix."""
        bk.rms_norm(x, norm, eps=eps, out=y)
        self.matvec(y, out, workspaces)


@dataclass(frozen=True, slots=True)
class DenseMatrix(SmallFirst):
    """A matrix in 16 bits."""

    weight: torch.Tensor  # [N, K]

    @property
    def n(self) -> int:
        """Output features."""
        return self.weight.shape[0]

    @property
    def num_bytes(self) -> int:
        """Device memory that it takes."""
        return self.weight.nbytes

    def matvec(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """See Matrix."""
        bk.dense_matvec(
            x,
            self.weight,
            out=out,
            workspace=workspaces.matvec,
            residual=residual,
            scale=scale,
        )

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
        """See Matrix: one launch, in whose order each row is added, too."""
        bk.rms_norm_project(x, norm, self.weight, out=y, projected=out, eps=eps)

    def matmul(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """See Matrix."""
        if residual is not None:
            torch.add(residual, torch.mm(x, self.weight.T), alpha=scale, out=out)
            return
        torch.mm(x, self.weight.T, out=out)
        if scale != 1:
            out.mul_(scale)


@dataclass(frozen=True, slots=True)
class GatedDenseMatrix(NormFirst, SmallFirst):
    """Gate and up of an MLP in 16 bits."""

    gate: torch.Tensor  # [N, K]
    up: torch.Tensor  # [N, K]

    @property
    def n(self) -> int:
        """Output features."""
        return self.gate.shape[0]

    @property
    def num_bytes(self) -> int:
        """Device memory that it takes."""
        return self.gate.nbytes + self.up.nbytes

    def matvec(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """See Matrix; there is no residual."""
        bk.dense_matvec(
            x,
            self.gate,
            up=self.up,
            out=out,
            workspace=workspaces.matvec,
            residual=residual,
            scale=scale,
        )

    def matmul(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """See Matrix; there is no residual."""
        up = torch.mm(x, self.up.T)
        if scale != 1:
            up.mul_(scale)
        torch.mul(silu(torch.mm(x, self.gate.T)), up, out=out)


@dataclass(frozen=True, slots=True)
class PackedMatrix(NormFirst, SmallFirst):
    """A matrix, or an interleaved gate and up, in 4 bits."""

    weight: bk.PackedW4

    @property
    def n(self) -> int:
        """Output features."""
        return self.weight.n

    @property
    def num_bytes(self) -> int:
        """Device memory that it takes."""
        return int(self.weight.data.nbytes)

    @property
    def elements(self) -> int:
        """Weights of the matrix, or of gate and up together."""
        return self.weight.n * self.weight.k * (1 + self.weight.interleaved)

    def matvec(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        *,
        small: DenseMatrix | None = None,
        small_out: torch.Tensor | None = None,
    ) -> None:
        """See Matrix; ``small_out`` is the product with ``small``, in the same launch."""
        bk.w4_matvec(
            x,
            self.weight,
            out=out,
            workspace=workspaces.matvec,
            residual=residual,
            scale=scale,
            beside_weight=None if small is None else small.weight,
            beside_out=small_out,
        )

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
        """See Matrix: a small matrix in 16 bits is multiplied beside this one."""
        if not isinstance(small, DenseMatrix) or self.weight.k > BESIDE_COLUMNS:
            SmallFirst.norm_matvec_beside(
                self, x, norm, y, out, workspaces, small=small, small_out=small_out, eps=eps
            )
            return
        bk.rms_norm(x, norm, eps=eps, out=y)
        self.matvec(y, out, workspaces, small=small, small_out=small_out)

    def matmul(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        workspaces: Workspaces,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """See Matrix."""
        packed = self.weight
        if x.shape[0] < UNPACK_ROWS:
            bk.w4_matmul(
                x,
                packed,
                out=out,
                workspace=workspaces.matmul,
                residual=residual,
                scale=scale,
            )
            return
        weight = workspaces.unpacked[: self.elements].view(-1, packed.k)
        bk.w4_unpack(packed, out=weight)
        dense = GatedDenseMatrix(*weight.chunk(2)) if packed.interleaved else DenseMatrix(weight)
        dense.matmul(x, out, workspaces, residual, scale)
