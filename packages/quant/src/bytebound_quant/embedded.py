"""The embedding rows of the calibration ids: only those rows are ever held, each once."""

import torch

from bytebound_quant.source import BLOCK_BYTES, Source


class EmbeddedWindows:
    """Windows of ids with the embedding row of each."""

    def __init__(self, source: Source, name: str, ids: torch.Tensor) -> None:
        used, self._places = torch.unique(ids, return_inverse=True)
        stored = source.stored.tensors[name]
        height = max(1, BLOCK_BYTES * stored.shape[0] // stored.num_bytes)
        parts, start = [], 0
        for block in source.rows(name, height):
            inside = used[(used >= start) & (used < start + len(block))]
            parts.append(block[inside - start])
            start += len(block)
        self._table = torch.cat(parts)

    def rows(self, index: int) -> torch.Tensor:
        """The rows of one window, [T, D] as stored."""
        return self._table[self._places[index]]

    def states(self, dtype: torch.dtype) -> torch.Tensor:
        """The hidden states before the first layer, [n, T, D]."""
        count, length = self._places.shape
        states = torch.empty((count, length, self._table.shape[1]), dtype=dtype)
        for index in range(count):
            states[index] = self.rows(index)
        return states
