"""The second moment of a matrix's inputs, which says how much an error of each weight costs.

For y = W x over n calibration rows, the mean squared error of the output of one row of W that is
off by d is ``d H d^T / 2`` with ``H = 2/n * sum of x^T x``, the Hessian of GPTQ (Frantar et al.,
2022).
"""

import torch
from torch import Tensor

from bytebound_quant.errors import CalibrationError

STEP = 4096  # rows multiplied at a time: bounds the float32 copy of the inputs


class Hessian:
    """Running ``2/n * X^T X``, float32 [K, K], over all rows added so far.

    The running mean keeps the entries of one magnitude however many rows there are. How the rows
    are cut into calls matters to rounding only. The same calls give the same bits. On CUDA it
    expects float32 products in full precision, which is torch's default.
    """

    def __init__(self, features: int, device: torch.device | str = "cpu") -> None:
        if features < 1:
            raise CalibrationError(f"features: got {features}, expected at least 1")
        self.matrix = torch.zeros((features, features), dtype=torch.float32, device=device)
        self.rows = 0

    @property
    def features(self) -> int:
        """The width K of an input row."""
        return self.matrix.shape[0]

    @torch.no_grad()
    def add(self, x: Tensor) -> None:
        """Take the inputs ``x`` [..., K] of any float dtype in.

        Values that are not finite are not looked for here: ``gptq`` refuses the matrix that they
        leave. Raises CalibrationError for another width or dtype.
        """
        if x.dim() < 1 or x.shape[-1] != self.features or not x.is_floating_point():
            raise CalibrationError(
                f"calibration inputs: got {list(x.shape)} {x.dtype}, "
                f"expected floating point rows of {self.features} features"
            )
        for rows in torch.split(x.reshape(-1, self.features), STEP):
            seen, self.rows = self.rows, self.rows + rows.shape[0]
            if self.rows > seen:
                part = rows.to(self.matrix.device, torch.float32)
                self.matrix.addmm_(part.T, part, beta=seen / self.rows, alpha=2 / self.rows)
