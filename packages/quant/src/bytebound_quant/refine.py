"""Coordinate descent on a matrix that is already quantized: a lower output error, no new format.

With ``r = (w - q) H`` of a row, H the damped Hessian, the best value of one free number, all
others held, is closed:

    scale of group g   s += (r_g . c_g) / (c_g H_gg c_g^T),  rounded to float16; c = code - zero
    code of column j   round((q_j + r_j / H_jj) / s) + zero,  clamped to the range

The least squares for scales is common practice; the sweep over codes is the cyclic form of Nair and
Suggala, "CDQuant", 2024. After GPTQ with range search two rounds took another 8 % off the
calibration output error of the shipped model's matrices and 4.5 % off that of other inputs, where
the calibration had many more rows than the matrix columns.
"""

from functools import partial

import torch
from torch import Tensor

from bytebound_quant.grid import QuantizedMatrix, decode
from bytebound_quant.replay import Replayed

BLOCK = 128  # columns swept before the rest of the gradient follows


@torch.no_grad()
def refined(
    weight: Tensor, matrix: QuantizedMatrix, moment: Tensor, *, rounds: int
) -> QuantizedMatrix:
    """``matrix`` after ``rounds`` of: every scale once, then every code once. Zero points stay.

    ``weight`` [N, K] float32, the original; ``moment`` [K, K] float32, its diagonal above 0. Each
    round costs about twice what GPTQ does. The same input gives the same bits.
    """
    if rounds < 1:
        return matrix
    scheme = matrix.scheme
    off = weight - decode(matrix.codes, matrix.scale, matrix.zero_point, scheme)
    gradient = moment @ off.T  # [K, N]
    del off
    steps = matrix.codes.T.float()  # [K, N]: code - zero, as it multiplies the scale
    zero = None
    if matrix.zero_point is not None:
        zero = matrix.zero_point.T.float()  # [K/G, N]
        steps -= zero.repeat_interleave(scheme.group_size, 0)
    scale = matrix.scale.T.float().contiguous()  # [K/G, N]
    sweep = Replayed(partial(_sweep_block, code_range=scheme.code_range), changed=2)
    for _ in range(rounds):
        _sweep_scales(scale, steps, gradient, moment, scheme.largest_scale)
        _sweep_codes(scale, steps, gradient, moment, zero, sweep)
    if zero is not None:
        steps += zero.repeat_interleave(scheme.group_size, 0)
    return QuantizedMatrix(
        steps.T.to(torch.int8).contiguous(),
        scale.T.to(matrix.scale.dtype).contiguous(),
        matrix.zero_point,
        scheme,
    )


def _sweep_scales(
    scale: Tensor, steps: Tensor, gradient: Tensor, moment: Tensor, largest: float
) -> None:
    """Every group's scale to its least-squares value as float16; stays where that is no scale.

    The value may at most double or halve: a group whose codes hardly matter does not run away.
    """
    size = steps.shape[0] // scale.shape[0]
    for group in range(scale.shape[0]):
        span = slice(group * size, group * size + size)
        pull = moment[:, span] @ steps[span]  # [K, N]
        curve = (pull[span] * steps[span]).sum(0)
        old = scale[group]
        new = old + (gradient[span] * steps[span]).sum(0) / curve
        new = new.to(torch.float16).float()
        sound = (new >= old / 2) & (
            new <= (old * 2).clamp(max=largest)
        )  # false for NaN: no code but zero
        new = torch.where(sound, new, old)
        gradient -= pull.mul_(new - old)
        scale[group] = new


def _sweep_codes(
    scale: Tensor,
    steps: Tensor,
    gradient: Tensor,
    moment: Tensor,
    zero: Tensor | None,
    sweep: Replayed[None],
) -> None:
    """Every column's code to its best value, in the order of storage."""
    columns = steps.shape[0]
    size = columns // scale.shape[0]
    curve = moment.diagonal()
    for start in range(0, columns, BLOCK):
        span = slice(start, min(start + BLOCK, columns))
        before = steps[span].clone()
        groups = torch.arange(span.start, span.stop, device=steps.device) // size
        corner = moment[span, span]
        shifts = () if zero is None else (zero[groups],)
        sweep(steps[span], gradient[span], corner, curve[span], scale[groups], *shifts)
        moved = steps[span] - before
        moved *= scale[groups]
        gradient[:start].addmm_(moment[:start, span], moved, alpha=-1)
        gradient[span.stop :].addmm_(moment[span.stop :, span], moved, alpha=-1)


def _sweep_block(
    steps: Tensor,
    gradient: Tensor,
    corner: Tensor,
    curve: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    code_range: tuple[int, int],
) -> None:
    """The columns of one block, [m, N], one after the other; changes the first two arguments.

    ``corner`` [m, m] and ``curve`` [m] are the block's part of the Hessian and its diagonal;
    ``scale`` and ``zero`` are [m, N].
    """
    low, high = code_range
    for j in range(steps.shape[0]):
        best = steps[j] + gradient[j] / (curve[j] * scale[j])
        if zero is None:
            best.clamp_(low, high).round_()
        else:
            best.add_(zero[j]).clamp_(low, high).round_().sub_(zero[j])
        gradient.addr_(corner[:, j], (best - steps[j]) * scale[j], alpha=-1)
        steps[j] = best
