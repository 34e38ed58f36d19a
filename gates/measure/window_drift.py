"""Drift: how much slower the last third of a run is than its first third, in one arm against the other.

What is compared. A run is cut into time windows (`Run.windows`); both arms have as many as the one that ended first. The cost of a third
is a ratio of sums over its windows: busy seconds per token (`throughput_tokens_per_s`), the mean time per output token of the requests that
arrived in it (`tpot_s`), or 1 / clock, weighted by busy time (`clock_hz`). An arm's drift is the cost of its last third over that of its
first: 1.1 = 10 % slower in the end, so lower is better whatever it is of. The claim compares the candidate's drift with the baseline's by
ratio, so that what the trace itself does over time cancels. What is slow from its first minutes on drifts little: that is what the other
claims are about.

When it is undefined. Fewer than FEWEST_IN_THIRD windows in a third, no such figure in a third of an arm, no clock because the accelerator's
description states no power.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from gates.claim import DriftOf
from gates.measure.measured import Measured, Problem, divide, read_column, usable
from gates.statistics.blocks import BlockDraw, Floats, block_length, block_sums, draw_blocks
from replay.assembly.layers import ALL_LAYERS
from replay.seeds import stream

if TYPE_CHECKING:
    from gates.plan import PlannedCell
    from replay.assembly.headline import Headline
    from replay.assembly.run import Run

    Timed = Run | Headline
    """A run, or the headline of a whole one."""

FEWEST_IN_THIRD = 8
"""Windows in a third: of 8 a bootstrap's percentile bounds are a fifth narrower than Student's t of 7 degrees of freedom, of fewer more."""
_STEADY_WINDOWS = 75  # 25 in each third, from which on the bounds of a bootstrap are steady
Cost = tuple[Floats, Floats]


def drift_figures(cell: PlannedCell, of: DriftOf, arms: tuple[Timed, Timed]) -> Measured:
    """Return both arms' drifts, with replicates of whole windows of each third, the same ones in both arms."""
    n = _shared_windows(arms)
    third = n // 3
    if third < FEWEST_IN_THIRD:
        needed = 3 * FEWEST_IN_THIRD
        sentence = f"both arms run in {n} windows and {needed} are needed, {FEWEST_IN_THIRD} in each third: replay a longer trace"
        return Measured(n=n, problem=("too_few_windows", sentence), n_needed=needed)
    costs = [_costs(arm, of, n) for arm in arms]
    figures = [math.nan if cost is None else _drift(cost, third) for cost in costs]
    if not all(map(math.isfinite, figures)):
        lacking = [name for name, value in zip(("the baseline", "the candidate"), figures, strict=True) if not math.isfinite(value)]
        return Measured(
            n=n, problem=("metric_absent", f"{' and '.join(lacking)} has no {of} in the first or the last third of its windows")
        )
    draws = [_draw(cell, third, name) for name in ("first", "last")]
    replicates = [_replicates(cost, draws, third) for cost in costs if cost is not None]
    pair = (replicates[0], replicates[1])
    problem: Problem | None = None
    if not usable(pair):
        problem = ("undefined_resamples", "so few windows are busy that some resamples hold none of them")
    warnings = (
        ()
        if n >= _STEADY_WINDOWS or problem
        else (f"only {third} windows in a third; from {_STEADY_WINDOWS // 3} on the bounds are steady",)
    )
    return Measured(
        n=n, baseline=figures[0], candidate=figures[1], replicates=None if problem else pair, warnings=warnings, problem=problem
    )


def drift_point(of: DriftOf, baseline: Timed, candidate: Timed) -> tuple[float, float]:
    """Return both arms' drifts; NaN where one has none."""
    if baseline.windows is None or candidate.windows is None:
        return math.nan, math.nan
    n = _shared_windows((baseline, candidate))
    costs = [_costs(arm, of, n) for arm in (baseline, candidate)]
    values = [math.nan if cost is None or n // 3 < FEWEST_IN_THIRD else _drift(cost, n // 3) for cost in costs]
    return values[0], values[1]


def _shared_windows(arms: Sequence[Timed]) -> int:
    counts = [0 if arm.windows is None or not arm.windows.num_rows else int(pc.max(arm.windows["window"]).as_py()) + 1 for arm in arms]
    return min(counts)


def _drift(cost: Cost, third: int) -> float:
    first, last = (divide(*(part[where].sum(keepdims=True) for part in cost)) for where in (slice(0, third), slice(-third, None)))
    return float(divide(last, first)[0])


def _draw(cell: PlannedCell, third: int, name: str) -> BlockDraw:
    policy = cell.policy
    generator = stream(cell.seed, f"bootstrap.drift.{name}")
    return draw_blocks(third, length=block_length(third, policy.blocks), replicates=policy.replicates, generator=generator)


def _replicates(cost: Cost, draws: Sequence[BlockDraw], third: int) -> Floats:
    first, last = (
        divide(*(block_sums(draw, part[where]) for part in cost))
        for draw, where in zip(draws, (slice(0, third), slice(-third, None)), strict=True)
    )
    return divide(last, np.nan_to_num(first))


def _costs(arm: Timed, of: DriftOf, n: int) -> Cost | None:
    """Return what the cost of the first `n` windows is the ratio of [n], or None where the arm does not have it."""
    if of == "tpot_s":
        return _per_token(arm, n)
    assert arm.windows is not None
    rows = arm.windows.filter(pc.equal(arm.windows["layer_type"], ALL_LAYERS))
    index = rows["window"].to_numpy()
    busy_s, _ = read_column(rows, "time_s")
    values, present = read_column(rows, "tokens" if of == "throughput_tokens_per_s" else of)
    if of == "clock_hz":
        values = values * busy_s
    inside = (index < n) & present
    above, below = (np.bincount(index[inside], weights=part[inside], minlength=n).astype(np.float64) for part in (busy_s, values))
    return above, below


def _per_token(arm: Timed, n: int) -> Cost:
    values, present = read_column(arm.requests, "tpot_s")
    arrival_s, known = read_column(arm.requests, "arrival_s")
    index = (arrival_s / arm.window_s).astype(np.int64)
    inside = present & known & (index < n)
    return (
        np.bincount(index[inside], weights=values[inside], minlength=n).astype(np.float64),
        np.bincount(index[inside], minlength=n).astype(np.float64),
    )
