"""Circular block resampling: runs of consecutive units drawn whole, so that their dependence survives.

Kuensch 1989, Liu & Singh 1992 (moving blocks), Politis & Romano 1992 (circular). A draw is made once and used for both arms
and for every statistic, which keeps the pairing between arms and the dependence between metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockDraw:
    """Which blocks each replicate consists of; the last one is cut so that a replicate has `n` units again."""

    n: int
    starts: Counts
    """[replicates, blocks] first unit of each block, in 0..n-1; a block that passes the end goes on at the start."""
    lengths: Counts
    """[blocks] units in each block."""

    @property
    def replicates(self) -> int:
        """Number of resamples."""
        return int(self.starts.shape[0])


def block_length(n: int, blocks: int) -> int:
    """Return ceil(n / blocks), at least 1."""
    return max(1, -(-n // blocks))


def draw_blocks(n: int, *, length: int, replicates: int, generator: np.random.Generator) -> BlockDraw:
    """Return `replicates` resamples of 0..n-1 (n >= 1) in blocks of `length` <= n units."""
    blocks_count = -(-n // length)
    lengths = np.full(blocks_count, length, dtype=np.int64)
    lengths[-1] = n - length * (blocks_count - 1)
    starts = generator.integers(0, n, size=(replicates, blocks_count), dtype=np.int64)
    return BlockDraw(n=n, starts=starts, lengths=lengths)


def block_sums(draw: BlockDraw, values: Floats) -> Floats:
    """Return [replicates]: the sum of `values` [n] over each resample."""
    longest = int(draw.lengths.max())
    running = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[:longest]]))])
    sums: Floats = (running[draw.starts + draw.lengths] - running[draw.starts]).sum(axis=1)
    return sums


def block_counts(draw: BlockDraw, members: NDArray[np.bool_]) -> Counts:
    """Return [replicates]: how many `members` [n] each resample holds, exactly."""
    return np.rint(block_sums(draw, members.astype(np.float64))).astype(np.int64)
