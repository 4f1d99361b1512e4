"""What a weight stream asks of its ops together: who may read what another one writes.

There is no barrier between ops, so that a result is either handed over or read by nobody else.
"""

from collections.abc import Sequence

from bytebound_kernels._check import overlap
from bytebound_kernels._tensor import TensorView
from bytebound_kernels.errors import (
    InvalidArgumentError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)
from bytebound_kernels.ops.weight_stream.checks import OP, CheckedOp
from bytebound_kernels.ops.weight_stream.records import (
    StreamAttention,
    StreamNorm,
    StreamProduct,
    StreamReplay,
)

__all__ = ["check_order"]


def check_order(ops: Sequence[CheckedOp]) -> None:
    """Check the ops of a launch, each of which is sound by itself.

    Raises:
        InvalidArgumentError: symmetric and asymmetric weights, or an op that comes too early.
        UnsupportedShapeError: a matrix does not fit the norm before it.
        UnsupportedLayoutError: tensors overlap that nobody hands over.
    """
    _check_schemes(ops)
    _check_normed_rows(ops)
    for index, op in enumerate(ops):
        for result in op.results:
            _check_readers(ops, index, result)
    _check_states(ops)
    _check_attention(ops)


def _check_schemes(ops: Sequence[CheckedOp]) -> None:
    seen: dict[bool, str] = {}
    for op in ops:
        if isinstance(op.record, StreamProduct):
            seen.setdefault(op.record.weight.asymmetric, op.name)
    if len(seen) > 1:
        raise InvalidArgumentError(
            f"{OP}: the weight of {seen[True]} is asymmetric and that of {seen[False]} is not; "
            f"expected one of the two in all of a launch"
        )


def _check_normed_rows(ops: Sequence[CheckedOp]) -> None:
    normed: TensorView | None = None
    for op in ops:
        if isinstance(op.record, StreamNorm):
            normed = op.reads[0]
        elif isinstance(op.record, StreamAttention):
            normed = None
        elif op.multiplies is not None:
            if normed is None:
                raise InvalidArgumentError(
                    f"{OP}: {op.name} multiplies the rows of a norm, and there is none before it, "
                    f"or attention in between; expected a StreamNorm first"
                )
            if normed.shape[1] != op.multiplies:
                raise UnsupportedShapeError(
                    f"{OP}: {op.name} multiplies rows of {op.multiplies} elements; expected "
                    f"{normed.shape[1]}, the D of {normed.name}, of the norm before it"
                )


def _meet(one: TensorView, other: TensorView) -> bool:
    # Rows at one distance may be column ranges of one wider tensor.
    is_beside = len(one.shape) == len(other.shape) == 2 and (
        one.strides[0] * one.itemsize == other.strides[0] * other.itemsize
    )
    return overlap(one, other, common_row_stride=one.strides[0] if is_beside else 0)


def _refuse(result: TensorView, other: TensorView, expected: str) -> None:
    if _meet(result, other):
        raise UnsupportedLayoutError(
            f"{OP}: {result.name} overlaps {other.name} in memory; expected {expected}"
        )


def _check_readers(ops: Sequence[CheckedOp], writer: int, result: TensorView) -> None:
    for index, op in enumerate(ops):
        for other in op.results:
            if index <= writer and other is not result:
                _refuse(result, other, "a place of its own for each result")
        for tensor in (*op.constants, *op.kept):
            _refuse(result, tensor, "separate tensors")
        for own in (op.state, op.workspace):
            if own is not None:
                _refuse(result, own, "separate tensors")
        for tensor in op.reads:
            if index <= writer:
                _refuse(result, tensor, "that no op reads what a later one, or itself, writes")
            elif isinstance(ops[writer].record, StreamNorm):
                _refuse(result, tensor, "the out of a norm to be read behind the launch only")
        if op.residual is not None:
            if index <= writer:
                _refuse(result, op.residual, "a residual that is there before the op")
            elif not _is_normed(ops[writer + 1 : index], result):
                _refuse(result, op.residual, "a StreamNorm of this residual in between")


def _is_normed(ops: Sequence[CheckedOp], result: TensorView) -> bool:
    """Whether a norm has waited for all of a result."""
    return any(isinstance(op.record, StreamNorm) and _is_same(op.reads[0], result) for op in ops)


def _check_states(ops: Sequence[CheckedOp]) -> None:
    """A replay comes once, and before the very step that it belongs to."""
    users = [op for op in ops if op.state is not None]
    for i, op in enumerate(users):
        if op.state is None or not isinstance(op.record, StreamReplay):
            continue
        for tensor in (one for other in ops for one in (*other.reads, *other.constants)):
            _refuse(op.state, tensor, "separate tensors")
        for other in ops:
            if other.residual is not None:
                _refuse(op.state, other.residual, "separate tensors")
        for j, other in enumerate(users):
            if i == j or other.state is None or not _meet(op.state, other.state):
                continue
            same = {**other.arguments, "replay": True} == op.arguments
            if isinstance(other.record, StreamReplay) or j < i or not same:
                raise InvalidArgumentError(
                    f"{OP}: {op.name} and {other.name} have the same state; expected one "
                    f"StreamReplay of it, before the step of which it is the replay"
                )


def _check_attention(ops: Sequence[CheckedOp]) -> None:
    """What attention keeps is its own; a workspace goes on behind all that is read of it."""
    users = [(i, op) for i, op in enumerate(ops) if op.workspace is not None]
    others = [
        tensor
        for op in ops
        for tensor in (*op.reads, *op.constants, op.residual, op.state)
        if tensor is not None
    ]
    for at, (index, op) in enumerate(users):
        for own in (*op.kept, op.workspace):
            for tensor in others:
                _refuse_kept(own, tensor)
        for later, other in users[at + 1 :]:
            for own in op.kept:
                for tensor in other.kept:
                    _refuse_kept(own, tensor)
            if _share(op.workspace, other.workspace) and not _is_settled(ops, index, later):
                raise InvalidArgumentError(
                    f"{OP}: {op.name} and {other.name} have the same workspace; expected a "
                    f"StreamProduct of the first one's out and a StreamNorm of its result between "
                    f"them"
                )


def _share(one: TensorView | None, other: TensorView | None) -> bool:
    return one is not None and other is not None and overlap(one, other)


def _refuse_kept(own: TensorView | None, other: TensorView) -> None:
    if own is not None and _meet(own, other):
        raise UnsupportedLayoutError(
            f"{OP}: {own.name} overlaps {other.name} in memory; expected separate tensors"
        )


def _is_settled(ops: Sequence[CheckedOp], attention: int, end: int) -> bool:
    """Whether a norm has waited for what follows from all of an attention's out."""
    (attended,) = ops[attention].results
    for index in range(attention + 1, end):
        op = ops[index]
        if isinstance(op.record, StreamProduct) and op.reads and _is_same(op.reads[0], attended):
            return _is_normed(ops[index + 1 : end], op.results[0])
    return False


def _is_same(one: TensorView, other: TensorView) -> bool:
    return (one.pointer, one.shape, one.strides) == (
        other.pointer,
        other.shape,
        other.strides,
    )
