"""Round to nearest over a whole checkpoint: every matrix by itself, no data needed."""

from collections.abc import Mapping
from typing import Any

import torch

from bytebound_quant.job import ReadPacked, Tick
from bytebound_quant.matrices import Quantized, block_rows, round_matrix
from bytebound_quant.plan import Plan, Unit
from bytebound_quant.source import Source


class RtnMethod:
    """Rounds each matrix; ``mse`` searches the range of each group first."""

    name = "rtn"
    calibration: Mapping[str, Any] | None = None

    def __init__(self, source: Source, plan: Plan, *, mse: bool, device: torch.device) -> None:
        self.device = device
        self.options: Mapping[str, Any] = {"mse": mse}
        self._source = source
        self._scheme = plan.options.scheme
        self._mse = mse

    def quantize(self, unit: Unit, tick: Tick) -> dict[str, Quantized]:
        """Each planned matrix, in blocks of rows."""
        results = {}
        for one in unit.tensors:
            if one.quantized:
                tick(0, f"{unit.name}: {one.module.rpartition('.')[2]}")
                blocks = self._source.rows(one.name, block_rows(one.stored.shape[1]))
                results[one.name] = round_matrix(
                    blocks, self._scheme, mse=self._mse, device=self.device
                )
                tick(one.stored.num_bytes, unit.name)
        return results

    def replay(self, unit: Unit, read: ReadPacked) -> None:
        """Nothing: no matrix depends on another."""
