"""Estimate: what every method for measured runs returns, the log ratio of a candidate's figure to a baseline's, or their difference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gates.statistics.blocks import Floats
from gates.statistics.power import detectable_effect
from gates.statistics.student import t_bound, t_tail

Method = Literal[
    "block_bootstrap",
    "unpaired_bootstrap",
    "batch_means",
    "noise_swap",
    "welch_t",
    "denoised_t",
    "moderated_t",
    "paired_score",
    "sign_test",
    "cluster_bootstrap",
    "clustered_t",
    "reported_errors",
]
Scale = Literal["ratio", "difference"]
Fallback = Literal["too_few_requests", "tail_not_reproduced", "more_stalls", "residuals_differ"]

SMALLEST = 1e-150
"""A baseline below counts as 0: dividing by it could overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The log of candidate / baseline, or candidate - baseline, and its one-sided bounds; no field is NaN or infinite.

    `compare.judged` reads it by direction.
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
    p_no_increase: float
    """One-sided, of 0 or less."""
    p_no_decrease: float
    """One-sided, of 0 or more."""
    minimum_detectable_effect: float
    """Found with 80 % power at `alpha`."""
    scale: Scale = "ratio"
    """Of what the figures are: a log ratio, or a difference."""
    release_vetoed: bool = False
    """The candidate has more stalls than chance explains: its interval must not show it safe."""

    @property
    def ratio(self) -> float:
        """Candidate over baseline, where the scale is one of ratios."""
        return math.exp(self.estimate)


def from_t(method: Method, estimate: float, standard_error: float, degrees: float, alpha: float) -> Estimate:
    """Return the estimate with t bounds; a standard error of 0 gives bounds without width."""
    half = t_bound(alpha, degrees) * standard_error
    p_no_increase, p_no_decrease = _t_p_values(estimate, standard_error, degrees)
    return Estimate(
        method=method,
        estimate=estimate,
        standard_error=standard_error,
        degrees=degrees,
        lower=estimate - half,
        upper=estimate + half,
        alpha=alpha,
        p_no_increase=p_no_increase,
        p_no_decrease=p_no_decrease,
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
    p_values = [(1 + int(against.sum())) / (len(replicates) + 1) for against in (replicates <= 0, replicates >= 0)]
    spread = float(np.std(replicates, ddof=1)) * stretch
    return Estimate(
        method=method,
        estimate=estimate,
        standard_error=spread,
        degrees=None,
        lower=float(ordered[k - 1]),
        upper=float(ordered[-k]),
        alpha=alpha,
        p_no_increase=_stretched_p(p_values[0], stretch, degrees),
        p_no_decrease=_stretched_p(p_values[1], stretch, degrees),
        minimum_detectable_effect=detectable_effect(spread, alpha, degrees),
    )


def from_arms(
    method: Method, figures: tuple[float, float], replicates: tuple[Floats, Floats], degrees: float, alpha: float, *, by_ratio: bool
) -> Estimate:
    """Return the estimate of (baseline, candidate) figures >= 0 and their replicates [replicates], by ratio or by difference.

    By difference also where the baseline is 0 or reaches it in a replicate: the choice looks at the baseline alone, so that a worse
    candidate is never judged on another scale.
    """
    if by_ratio and figures[0] > SMALLEST and bool((replicates[0] > SMALLEST).all()):
        logs = [np.log(np.maximum(arm, SMALLEST)) for arm in replicates]
        return from_replicates(method, math.log(max(figures[1], SMALLEST) / figures[0]), logs[1] - logs[0], degrees, alpha)
    found = from_replicates(method, figures[1] - figures[0], replicates[1] - replicates[0], degrees, alpha)
    return replace(found, scale="difference")


def with_run_effect(found: Estimate, run_effect_sd: float) -> Estimate:
    """Return a single pair's estimate widened by a run effect that one pair cannot show.

    `run_effect_sd` is the standard deviation between runs of the log percentile (the amplification by the queue times that of
    the step time), or of the figure itself where the estimate is a difference. Each arm carries one such effect; its half-width and
    each bound's distance add up in squares (Zou & Donner 2008).
    """
    between = math.sqrt(2.0) * run_effect_sd
    if between == 0.0:
        return found
    total = math.hypot(found.standard_error, between)
    normal = t_bound(found.alpha, 1e9) * between
    degrees = 1e9 if found.degrees is None else found.degrees
    p_no_increase, p_no_decrease = _t_p_values(found.estimate, total, degrees)
    return replace(
        found,
        standard_error=total,
        lower=found.estimate - math.hypot(found.estimate - found.lower, normal),
        upper=found.estimate + math.hypot(found.upper - found.estimate, normal),
        p_no_increase=max(found.p_no_increase, p_no_increase) if found.estimate > 0 else p_no_increase,
        p_no_decrease=max(found.p_no_decrease, p_no_decrease) if found.estimate < 0 else p_no_decrease,
        minimum_detectable_effect=detectable_effect(total, found.alpha, degrees),
    )


def _t_p_values(estimate: float, standard_error: float, degrees: float) -> tuple[float, float]:
    """Return the one-sided p-values of no increase and of no decrease; without any error, whether the estimate contradicts them."""
    if standard_error > 0:
        return t_tail(estimate / standard_error, degrees), t_tail(-estimate / standard_error, degrees)
    return float(estimate <= 0), float(estimate >= 0)


def _stretched_p(raw: float, stretch: float, degrees: float) -> float:
    """Return the p-value of the t distribution that matches the expanded percentile bounds: below alpha where they exclude 0."""
    if not 0.0 < raw < 0.5:
        return raw
    return t_tail(t_bound(raw, 1e9) / stretch, degrees)
