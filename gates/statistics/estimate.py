"""Estimate: what every method for measured runs returns, the log ratio of a candidate's percentile to a baseline's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gates.statistics.blocks import Floats
from gates.statistics.power import detectable_effect
from gates.statistics.student import t_bound, t_tail

Method = Literal["block_bootstrap", "unpaired_bootstrap", "batch_means", "noise_swap", "welch_t", "denoised_t", "moderated_t"]
Fallback = Literal["too_few_requests", "tail_not_reproduced", "more_stalls", "residuals_differ"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The log of candidate / baseline and its one-sided bounds; no field is NaN or infinite.

    Where higher is better, hand the arms over in turn: a claim is safe if `upper` is below the margin's log, and worse if `lower`
    is above 0.
    """

    method: Method
    fallback: Fallback | None = None
    """The guard that failed, where another method was asked for and this one stands in."""
    estimate: float
    standard_error: float
    degrees: float | None
    """Of freedom of the t distribution; None for resamples."""
    lower: float
    upper: float
    """Each at `alpha`, one-sided."""
    alpha: float
    p_no_worse: float
    """One-sided, of a log ratio of 0 or less."""
    minimum_detectable_effect: float
    """Found with 80 % power at `alpha`, as a log ratio."""
    release_vetoed: bool = False
    """The candidate has more stalls than chance explains: its interval must not show it safe."""

    @property
    def ratio(self) -> float:
        """Candidate over baseline."""
        return math.exp(self.estimate)


def from_t(method: Method, estimate: float, standard_error: float, degrees: float, alpha: float) -> Estimate:
    """Return the estimate with t bounds; a standard error of 0 gives bounds without width."""
    half = t_bound(alpha, degrees) * standard_error
    certain = 0.0 if estimate > 0 else 1.0
    return Estimate(
        method=method,
        estimate=estimate,
        standard_error=standard_error,
        degrees=degrees,
        lower=estimate - half,
        upper=estimate + half,
        alpha=alpha,
        p_no_worse=t_tail(estimate / standard_error, degrees) if standard_error > 0 else certain,
        minimum_detectable_effect=detectable_effect(standard_error, alpha, degrees),
    )


def from_replicates(method: Method, estimate: float, replicates: Floats, degrees: float, alpha: float) -> Estimate:
    """Return the estimate with expanded percentile bounds (Hesterberg 2015, section 3.3), from log ratios [replicates].

    The share cut off at each end is that of a normal distribution beyond sqrt(B / (B - 1)) t(B - 1), so that few blocks B =
    `degrees` + 1 widen the interval as they widen a t interval; p counts replicates not above 0 on the same scale.
    """
    stretch = math.sqrt((degrees + 1) / degrees)
    share = t_tail(stretch * t_bound(alpha, degrees), 1e9)
    ordered = np.sort(replicates)
    k = max(1, math.floor(share * (len(ordered) + 1)))
    raw = (1 + int((replicates <= 0).sum())) / (len(replicates) + 1)
    spread = float(np.std(replicates, ddof=1)) * stretch
    return Estimate(
        method=method,
        estimate=estimate,
        standard_error=spread,
        degrees=None,
        lower=float(ordered[k - 1]),
        upper=float(ordered[-k]),
        alpha=alpha,
        p_no_worse=_stretched_p(raw, stretch, degrees),
        minimum_detectable_effect=detectable_effect(spread, alpha, degrees),
    )


def with_run_effect(found: Estimate, run_effect_sd: float) -> Estimate:
    """Return a single pair's estimate widened by a run effect that one pair cannot show.

    `run_effect_sd` is the standard deviation between runs of the log percentile: the amplification by the queue times that of
    the step time. Each arm carries one such effect; its half-width and each bound's distance add up in squares (Zou & Donner 2008).
    """
    between = math.sqrt(2.0) * run_effect_sd
    if between == 0.0:
        return found
    total = math.hypot(found.standard_error, between)
    normal = t_bound(found.alpha, 1e9) * between
    return replace(
        found,
        standard_error=total,
        lower=found.estimate - math.hypot(found.estimate - found.lower, normal),
        upper=found.estimate + math.hypot(found.upper - found.estimate, normal),
        p_no_worse=max(found.p_no_worse, t_tail(found.estimate / total, 1e9 if found.degrees is None else found.degrees)),
        minimum_detectable_effect=detectable_effect(total, found.alpha, 1e9 if found.degrees is None else found.degrees),
    )


def _stretched_p(raw: float, stretch: float, degrees: float) -> float:
    """Return the p-value of the t distribution that matches the expanded percentile bounds: below alpha where they exclude 0."""
    if not 0.0 < raw < 0.5:
        return raw
    return t_tail(t_bound(raw, 1e9) / stretch, degrees)
