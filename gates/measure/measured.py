"""Measured: the figures of one claim in both arms, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from gates.plan import METHOD, PlannedCell
from gates.statistics.blocks import BlockDraw, Floats, block_length, draw_blocks
from replay.errors import InvariantError
from replay.seeds import stream

if TYPE_CHECKING:
    from gates.statistics.estimate import Estimate

ProblemCode = Literal[
    "unpaired_arms",
    "stratum_absent",
    "metric_absent",
    "one_sided_values",
    "too_few_samples",
    "too_few_windows",
    "undefined_resamples",
    "model_error_too_large",
    "margin_not_shown",
    "summary_only",
]
Problem = tuple[ProblemCode, str]
"""Why a claim cannot be decided whatever its figures are: a code and a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """The figures of one claim; whatever is missing is None, never NaN."""

    n: int = 0
    """Requests with the metric in both arms, or windows."""
    n_beyond: int | None = None
    baseline: float | None = None
    candidate: float | None = None
    replicates: tuple[Floats, Floats] | None = None
    """[replicates] of the baseline and of the candidate, from the same resamples."""
    warnings: tuple[str, ...] = ()
    problem: Problem | None = None
    n_needed: int | None = None
    estimate: Estimate | None = None
    """What takes the place of replicates where runs were measured."""
    method: str = METHOD
    """How the replicates came to be."""
    flip_ratio: float | None = None
    """Share of the replicates that lie on the other side of the margin's end than the runs themselves; None where it is not worked out."""
    doubt: Problem | None = None
    """What keeps the claim from a decision, where that is known better than from its interval."""
    runs_count: int | None = None
    """Measured runs per arm; None where a claim is about a replay, which has no run effect."""

    @property
    def is_resampled(self) -> bool:
        """Whether resamples are behind its interval, if it has one."""
        return self.estimate is None or self.estimate.degrees is None


def draw_units(cell: PlannedCell, n: int, name: str) -> BlockDraw:
    """Return the cell's resamples of n >= 1 units: requests in arrival order, or windows."""
    policy = cell.policy
    length = block_length(n, policy.blocks)
    return draw_blocks(n, length=length, replicates=policy.replicates, generator=stream(cell.seed, name))


def divide(numerators: Floats, denominators: Floats) -> Floats:
    """Return the quotients, NaN where a denominator is 0."""
    quotients = np.full(len(numerators), np.nan)
    np.divide(numerators, denominators, out=quotients, where=denominators > 0)
    return quotients


def usable(replicates: tuple[Floats, Floats]) -> bool:
    """Return whether every resample gives a figure in both arms."""
    return not any(bool(np.isnan(arm).any()) for arm in replicates)


def read_column(table: pa.Table, name: str) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return a column's values [n] (0 where missing) and which of them are present [n].

    Raises:
        InvariantError: a value is NaN or infinite.
    """
    column = table[name].combine_chunks()
    present = column.is_valid().to_numpy(zero_copy_only=False).astype(np.bool_)
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    if not bool(np.isfinite(values).all()):
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InvariantError(f"column {name} of a run holds {values[row]} in row {row}; a missing value must be null")
    return values, present
