"""When a replay may price the noise of a pair: it gives the baseline's own tail, and the arms' noise is alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gates.statistics.blocks import Counts, Floats
from gates.statistics.influence import batches_for, block_means, tail_influence
from gates.statistics.noise_fit import FittedSteps, StepTimes
from gates.statistics.student import incomplete_beta, t_tail
from replay.assembly.percentile import percentile

EXPLAINED_FROM = 0.8
"""Least share of the variance of block influences (proposed by the design study on which the method rests)."""
LOG_ERROR_TO = 0.05
"""Largest log error of the replayed percentile."""
NEGLIGIBLE = 1e-3
"""Of step time: amplified threefold it moves a percentile by a tenth of a 3 % margin, if every step had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """How well the replay of a run with its own effects and noise gives the run's tail."""

    explained_ratio: float
    """Share of the variance of the observed block influences that the replayed ones explain; below 0 where they add to it."""
    log_error: float
    """Of the percentile."""

    @property
    def holds(self) -> bool:
        """Whether the replay may price noise."""
        return self.explained_ratio >= EXPLAINED_FROM and abs(self.log_error) <= LOG_ERROR_TO


def reproduce_tail(observed: Floats, replayed: Floats, percent: float) -> Reproduction:
    """Return how well replayed latencies [n] give the observed tail, by the blocks' mean influence; errors as `tail_influence`."""
    blocks = batches_for(len(observed))
    wanted, found = (block_means(tail_influence(arm, percent), blocks) for arm in (observed, replayed))
    total = float(((wanted - wanted.mean()) ** 2).sum())
    missed = float(((wanted - found) ** 2).sum())
    log_error = math.log(percentile(replayed, percent) / percentile(observed, percent))
    return Reproduction(explained_ratio=1.0 - missed / total if total > 0 else float(missed == 0), log_error=log_error)


def p_more_stalls(stalls: tuple[int, int], steps: tuple[int, int]) -> float:
    """Return the exact binomial p-value of the candidate's stalls among both arms' (baseline, candidate), one-sided."""
    if stalls[1] == 0:
        return 1.0
    return incomplete_beta(stalls[1], stalls[0] + 1, steps[1] / sum(steps))


def p_residuals_differ(steps: tuple[StepTimes, StepTimes], fits: tuple[FittedSteps, FittedSteps], n: int) -> float:
    """Return the p-value of the cell in which the arms' mean residuals differ most, times the number of cells (Bonferroni).

    Per cell a t test of batch means over the requests' order, so that drift within a run counts as one. Cells that differ by less
    than 0.1 % of step time count as equal.
    """
    blocks = batches_for(n)
    cells = 1 + max(int(arm.cells.max()) for arm in steps)
    sums = [_cell_sums(arm, fit.noise, n, (cells, blocks)) for arm, fit in zip(steps, fits, strict=True)]
    differences = blocks * (sums[1] - sums[0])
    errors = differences.std(axis=1, ddof=1) / math.sqrt(blocks)
    means = np.abs(differences.mean(axis=1))
    seen = means > NEGLIGIBLE
    if not seen.any():
        return 1.0
    certain = float(np.min(errors[seen] / means[seen]))
    return min(1.0, 2.0 * cells * t_tail(1.0 / max(certain, 1e-9), blocks - 1))


def _cell_sums(steps: StepTimes, noise: Floats, n: int, shape: tuple[int, int]) -> Floats:
    """Return [cells, blocks] the noise that each block adds to the mean of each cell."""
    cells, blocks = shape
    block: Counts = steps.requests * blocks // n
    sums = np.bincount(steps.cells * blocks + block, weights=noise, minlength=cells * blocks).reshape(shape)
    counts = np.bincount(steps.cells, minlength=cells)
    added: Floats = sums / np.maximum(1, counts)[:, None]
    return added
