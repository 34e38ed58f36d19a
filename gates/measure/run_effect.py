"""What differs from one measured run to the next beside the requests: assumed for a single pair, measured over repeated runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from gates.measure.measured import Measured
from gates.statistics.blocks import Floats
from replay.seeds import stream

if TYPE_CHECKING:
    from gates.plan import PlannedCell

_HALVINGS = 60  # of an interval of doubles: nothing is left between its ends
_FARTHEST_LOG = 100.0  # of two runs per arm the outermost replicates lie hundreds of deviations away: far enough to decide nothing
NO_RUN_EFFECT = "one run per arm cannot show how much runs differ: the interval assumes a run effect with a standard deviation of {sd:g} %"


def run_effects(cell: PlannedCell) -> Floats:
    """Return [replicates] the log of candidate over baseline that two runs of one build are assumed to differ by.

    The quantiles of a normal distribution with the policy's standard deviation times sqrt(2), in an order drawn from the seed: the spread
    is exact whatever the number of replicates.
    """
    quantiles = [NormalDist().inv_cdf(float(share)) for share in _middles(cell.policy.replicates)]
    drawn: Floats = stream(cell.seed, "run_effect").permutation(quantiles)
    return drawn * (cell.policy.run_effect_sd * math.sqrt(2.0))


def with_assumed_effect(cell: PlannedCell, measured: Measured, effects: Floats, slope: float | None = None) -> Measured:
    """Return the figures of a single pair with the assumed run effects [replicates] in the candidate's replicates.

    `slope` is the change of a fraction per unit of log latency; without it the figure itself is multiplied.
    """
    warnings = (*measured.warnings, NO_RUN_EFFECT.format(sd=100 * cell.policy.run_effect_sd))
    measured = replace(measured, warnings=warnings, runs_count=1)
    if measured.replicates is None:
        return measured
    baseline, candidate = measured.replicates
    moved = candidate * np.exp(effects) if slope is None else np.clip(candidate + slope * effects, 0.0, 1.0)
    return replace(measured, replicates=(baseline, moved))


def over_runs(cell: PlannedCell, measured: Measured, figures: tuple[Sequence[float], Sequence[float]], *, by_ratio: bool) -> Measured:
    """Return the figures with replicates that spread as Welch's t over runs says (Welch 1947): at least two figures per arm.

    On logs where claims are by ratio and no figure is 0. Degrees of freedom are rounded down, which widens the bounds.
    """
    baseline, candidate = (np.asarray(arm, dtype=np.float64) for arm in figures)
    logs = by_ratio and bool((baseline > 0).all() and (candidate > 0).all())
    scaled = [np.log(arm) if logs else arm for arm in (baseline, candidate)]
    variances = [float(arm.var(ddof=1)) / len(arm) for arm in scaled]
    total = sum(variances)
    shape = sum(variance**2 / (len(arm) - 1) for variance, arm in zip(variances, scaled, strict=True))
    freedom = max(1, math.floor(total**2 / shape)) if shape > 0 else min(len(baseline), len(candidate)) - 1
    count = cell.policy.replicates
    spread = math.sqrt(total) * student_quantiles(_middles(count), freedom)
    before, after = (float(np.exp(arm.mean())) if logs else float(arm.mean()) for arm in scaled)
    level = np.full(count, before)
    moved = after * np.exp(np.clip(spread, -_FARTHEST_LOG, _FARTHEST_LOG)) if logs else after + spread
    runs_count = min(len(baseline), len(candidate))
    return replace(measured, baseline=before, candidate=after, replicates=(level, moved), runs_count=runs_count)


def student_quantiles(shares: Floats, freedom: int) -> Floats:
    """Return the quantiles of Student's t with whole degrees of freedom, by bisection of its distribution; shares lie inside 0..1."""
    upper = np.maximum(shares, 1.0 - shares)
    low, high = np.zeros_like(upper), np.ones_like(upper)
    while bool((short := student_distribution(high, freedom) < upper).any()):
        high[short] *= 2.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        below = student_distribution(middle, freedom) < upper
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(shares < 0.5, -high, high)


def student_distribution(t: Floats, freedom: int) -> Floats:
    """Return the share of Student's t that lies below each `t` >= 0 (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = np.arctan(t / math.sqrt(freedom))
    is_odd = freedom % 2 == 1
    term = np.cos(angle) if is_odd else np.ones_like(angle)
    total = np.zeros_like(angle)
    for step in range((freedom - 1) // 2 if is_odd else freedom // 2):
        total += term
        term = term * np.cos(angle) ** 2 * ((2 * step + 2) / (2 * step + 3) if is_odd else (2 * step + 1) / (2 * step + 2))
    inside = 2.0 / math.pi * (angle + np.sin(angle) * total) if is_odd else np.sin(angle) * total
    share: Floats = 0.5 + inside / 2.0
    return share


def _middles(count: int) -> Floats:
    """Return the middles of `count` equal shares of 0..1."""
    return (np.arange(count) + 0.5) / count
