"""Compare two arms from their replicates: bounds, p-value and detectable effect, by ratio or by difference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gates.statistics.blocks import Floats
from gates.statistics.estimate import Estimate
from gates.statistics.power import detectable_effect

_SMALLEST = 1e-150  # a baseline below counts as 0: dividing by it could overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The worsening of a candidate, on the scale it is compared on; no field is NaN or infinite."""

    scale: Literal["ratio", "difference"]
    estimate: float
    """candidate / baseline, or candidate - baseline, on the trace itself."""
    lower: float
    upper: float
    """One-sided bounds of the same, each at alpha."""
    no_change: float
    """1 or 0."""
    limit: float
    """The margin's end: what the bad-side bound may reach."""
    margin: float
    """A fraction for a ratio, absolute for a difference."""
    inside_margin: bool
    """The bad-side bound is inside the margin."""
    beyond_no_change: bool
    """The good-side bound is on the bad side of no change: the worsening is real."""
    improved: bool
    """The bad-side bound is on the good side of no change."""
    p_no_worse: float
    """One-sided: (1 + replicates without a worsening) / (replicates + 1); a replicate without change counts as no worsening."""
    minimum_detectable_effect: float


def compare(
    baseline: float,
    candidate: float,
    baseline_replicates: Floats,
    candidate_replicates: Floats,
    *,
    lower_is_better: bool,
    by_ratio: bool,
    margin: float,
    alpha: float,
) -> Comparison:
    """Return the comparison of finite, non-negative figures and their paired replicates [replicates].

    A ratio is used where `by_ratio` asks for it and the baseline is above 0 in itself and in every replicate; otherwise the
    difference, against ``margin x baseline`` if `margin` is a fraction. The choice looks at the baseline alone, so that a
    worse candidate is never judged on another scale. Bounds are the k-th smallest and k-th largest replicate with
    k = floor(alpha (replicates + 1)) (Davison & Hinkley 1997, section 5.3).
    """
    ratio = by_ratio and baseline > _SMALLEST and bool((baseline_replicates > _SMALLEST).all())
    if ratio:
        effects, estimate, no_change = candidate_replicates / baseline_replicates, candidate / baseline, 1.0
    else:
        effects, estimate, no_change = candidate_replicates - baseline_replicates, candidate - baseline, 0.0
        margin = margin * baseline if by_ratio else margin
    lower, upper = _bounds(effects, alpha)
    limit = no_change + margin if lower_is_better else no_change - margin
    not_worse = effects <= no_change if lower_is_better else effects >= no_change
    return Comparison(
        scale="ratio" if ratio else "difference",
        estimate=estimate,
        lower=lower,
        upper=upper,
        no_change=no_change,
        limit=limit,
        margin=margin,
        inside_margin=upper <= limit if lower_is_better else lower >= limit,
        beyond_no_change=lower > no_change if lower_is_better else upper < no_change,
        improved=upper < no_change if lower_is_better else lower > no_change,
        p_no_worse=(1 + int(not_worse.sum())) / (len(effects) + 1),
        minimum_detectable_effect=detectable_effect(_spread(effects, ratio), alpha),
    )


def judged(found: Estimate, *, lower_is_better: bool, margin: float) -> Comparison:
    """Return the comparison that an estimate of measured runs gives, by ratio; a veto leaves it outside the margin.

    `margin` is a fraction. An improvement is not claimed under a veto either.
    """
    lower, upper = math.exp(found.lower), math.exp(found.upper)
    limit = 1.0 + margin if lower_is_better else 1.0 - margin
    safe = not found.release_vetoed
    return Comparison(
        scale="ratio",
        estimate=found.ratio,
        lower=lower,
        upper=upper,
        no_change=1.0,
        limit=limit,
        margin=margin,
        inside_margin=safe and (upper <= limit if lower_is_better else lower >= limit),
        beyond_no_change=lower > 1.0 if lower_is_better else upper < 1.0,
        improved=safe and (upper < 1.0 if lower_is_better else lower > 1.0),
        p_no_worse=found.p_no_increase if lower_is_better else found.p_no_decrease,
        minimum_detectable_effect=found.minimum_detectable_effect,
    )


def _bounds(effects: Floats, alpha: float) -> tuple[float, float]:
    k = max(1, math.floor(alpha * (len(effects) + 1)))
    ordered = np.sort(effects)
    return float(ordered[k - 1]), float(ordered[-k])


def _spread(effects: Floats, ratio: bool) -> float:
    """Return the standard deviation: of the log ratios, or of the effects themselves where a candidate's figure is 0."""
    scaled = np.log(effects) if ratio and bool((effects > 0).all()) else effects
    return float(np.std(scaled, ddof=1)) if float(np.ptp(scaled)) > 0 else 0.0
