"""Blocks of a matrix in which nothing varies: what a lost or zeroed part of a weight looks like.

A block is one row by ``columns`` columns; one that is zero or holds one value throughout carries no
weight. Single such rows exist in sound models (a dead neuron), so runs of them are looked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Region:
    """Rows and columns in which every block is constant; both ends are in it."""

    first_row: int
    last_row: int
    first_column: int
    last_column: int

    def describe(self, weight: torch.Tensor) -> str:
        """Where it lies and what it holds, for a message."""
        rows = f"rows {self.first_row}-{self.last_row} of {weight.shape[0]}"
        part = weight[self.first_row : self.last_row + 1, self.first_column : self.last_column + 1]
        if self.first_column > 0 or self.last_column < weight.shape[1] - 1:
            rows += f", columns {self.first_column}-{self.last_column}"
        return f"{rows} are {'constant in each block' if bool(part.any()) else 'all zero'}"


def constant_blocks(weight: torch.Tensor, columns: int) -> torch.Tensor:
    """Which blocks of ``weight`` [N, K] hold one value only, bool [N, K // columns or 1].

    The last block takes the columns that are left over.
    """
    count = max(1, weight.shape[1] // columns)
    constant = torch.empty(weight.shape[0], count, dtype=torch.bool)
    for start in range(0, weight.shape[0], ROWS_AT_ONCE):
        part = weight[start : start + ROWS_AT_ONCE]
        for block in range(count):
            end = None if block == count - 1 else (block + 1) * columns
            low, high = torch.aminmax(part[:, block * columns : end], dim=1)
            constant[start : start + ROWS_AT_ONCE, block] = low == high
    return constant


def constant_regions(
    constant: torch.Tensor, columns: int, width: int, least_rows: int
) -> list[Region]:
    """Runs of at least ``least_rows`` constant rows; equal runs of adjacent blocks are one region.

    ``constant`` is what ``constant_blocks`` gave, ``width`` the matrix's K.
    """
    last = constant.shape[1] - 1
    regions: list[Region] = []
    for block in range(last + 1):
        for first, final in row_runs(constant[:, block], least_rows):
            begin = block * columns
            end = width - 1 if block == last else begin + columns - 1
            joined = next(
                (
                    at
                    for at, one in enumerate(regions)
                    if (one.first_row, one.last_row, one.last_column) == (first, final, begin - 1)
                ),
                None,
            )
            if joined is None:
                regions.append(Region(first, final, begin, end))
            else:
                regions[joined] = Region(first, final, regions[joined].first_column, end)
    return regions


def row_runs(marked: torch.Tensor, least: int) -> Iterator[tuple[int, int]]:
    """First and last index of each run of at least ``least`` true values of ``marked`` [N]."""
    edges = torch.diff(
        marked.to(torch.int8),
        prepend=torch.zeros(1, dtype=torch.int8),
        append=torch.zeros(1, dtype=torch.int8),
    )
    starts = torch.nonzero(edges == 1).flatten().tolist()
    ends = torch.nonzero(edges == -1).flatten().tolist()
    for start, end in zip(starts, ends, strict=True):
        if end - start >= least:
            yield start, end - 1
