"""The second moment of a matrix's inputs, which says how much an error of each weight costs.

For y = W x over n calibration rows, the mean squared error of the output of one row of W that is
off by d is ``d H d^T / 2`` with ``H = 2/n * sum of x^T x``, the Hessian of GPTQ (Frantar et al.,
2022).

Where layers before the matrix are quantized already, x is not what the 16-bit model has there. With
x' the 16-bit model's input and a what the sum behind the matrix lacks already (r' - r of a residual
stream), the output that would make up for both is ``W x' + a``. Beside H this takes two cross
moments, as in GPTAQ (Li et al., arXiv 2504.02692), whose objective has no a:

    drift = 2/n * sum of (x' - x)^T x   [K, K]        lack = 2/n * sum of a^T x   [N, K]
"""

import torch
from torch import Tensor

from bytebound_quant.errors import CalibrationError

STEP = 4096  # rows multiplied at a time: bounds the float32 copy of the inputs
WIDE_STEP = 16384  # the same where the inputs are multiplied as they are


class Hessian:
    """Running ``2/n * X^T X``, float32 [K, K], over all rows added so far.

    ``drift`` and ``lack`` are the cross moments of the module's head, float32 on the same device,
    and None where they were not asked for: ``drift=True`` keeps one, ``outputs=N`` the other.

    The running mean keeps the entries of one magnitude however many rows there are. How the rows
    are cut into calls matters to rounding only. The same calls give the same bits. On CUDA it
    expects float32 products in full precision, which is torch's default. There bfloat16 inputs are
    multiplied as they are and summed in float32, which loses nothing, since such a product is exact
    in float32, and is many times faster; the float32 side of a cross moment goes as two of them.
    """

    def __init__(
        self,
        features: int,
        device: torch.device | str = "cpu",
        *,
        drift: bool = False,
        outputs: int = 0,
    ) -> None:
        if features < 1:
            raise CalibrationError(f"features: got {features}, expected at least 1")
        self.matrix = torch.zeros((features, features), dtype=torch.float32, device=device)
        self.drift = torch.zeros_like(self.matrix) if drift else None
        self.lack = self.matrix.new_zeros((outputs, features)) if outputs else None
        self.rows = 0

    @property
    def features(self) -> int:
        """The width K of an input row."""
        return self.matrix.shape[0]

    @torch.no_grad()
    def add(self, x: Tensor, ideal: Tensor | None = None, lack: Tensor | None = None) -> None:
        """Take the inputs ``x`` [..., K] of any float dtype in.

        ``ideal`` [..., K] is what the 16-bit model has in place of ``x``, ``lack`` [..., N] what
        the sum behind the matrix lacks; each is given exactly where its moment is kept.

        Values that are not finite are not looked for here: ``gptq`` refuses the matrix that they
        leave. Raises CalibrationError for another width, dtype or number of rows.
        """
        self._check(x, self.features)
        beside = ((ideal, self.drift), (lack, self.lack))
        for given, moment in beside:
            if (given is None) != (moment is None):
                raise CalibrationError(
                    "calibration inputs: the 16-bit side is given for all rows or for none"
                )
            if given is not None and moment is not None:
                self._check(given, moment.shape[0], x.shape[:-1])
        exact = x.dtype == torch.bfloat16 and self.matrix.is_cuda
        step = WIDE_STEP if exact else STEP
        for start in range(0, x.numel() // self.features, step):
            span = slice(start, start + step)
            part = self._rows(x, span)
            own = self._rows(x, span, torch.bfloat16) if exact else part
            seen, self.rows = self.rows, self.rows + part.shape[0]
            keep, scale = seen / self.rows, 2 / self.rows
            _accumulate(self.matrix, own, own, keep, scale)
            if self.drift is not None and ideal is not None:
                _accumulate(self.drift, self._rows(ideal, span) - part, own, keep, scale)
            if self.lack is not None and lack is not None:
                _accumulate(self.lack, self._rows(lack, span), own, keep, scale)

    def _rows(self, x: Tensor, span: slice, dtype: torch.dtype = torch.float32) -> Tensor:
        return x.reshape(-1, x.shape[-1])[span].to(self.matrix.device, dtype)

    def _check(self, x: Tensor, features: int, leading: torch.Size | None = None) -> None:
        fits = x.dim() >= 1 and x.shape[-1] == features and x.is_floating_point()
        if not fits or (leading is not None and x.shape[:-1] != leading):
            rows = "rows" if leading is None else f"{leading.numel()} rows"
            raise CalibrationError(
                f"calibration inputs: got {list(x.shape)} {x.dtype}, "
                f"expected floating point {rows} of {features} features"
            )


def halves(x: Tensor) -> list[Tensor]:
    """Float32 ``x`` as the sum of two bfloat16 tensors: 16 of its 24 significant bits and more."""
    high = x.bfloat16()
    return [high, (x - high).bfloat16()]


def _accumulate(moment: Tensor, left: Tensor, right: Tensor, keep: float, scale: float) -> None:
    """``moment <- keep * moment + scale * left^T right``; ``moment`` float32.

    ``right`` is float32 as well, or bfloat16 on CUDA; ``left`` as it is, or float32.
    """
    if right.dtype == moment.dtype:
        moment.addmm_(left.T, right, beta=keep, alpha=scale)
        return
    moment.mul_(keep)
    for part in [left] if left.dtype == right.dtype else halves(left):
        product: Tensor = torch.mm(part.T, right, out_dtype=torch.float32)
        moment.add_(product, alpha=scale)
