"""Several runs per arm: what differs between runs shows in no single pair, so each run counts as one observation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gates.statistics.blocks import Floats
from gates.statistics.estimate import Estimate, from_t
from gates.statistics.student import digamma, inverse_trigamma, trigamma

_CERTAIN_DEGREES = 1e6
"""Of a prior whose archived variances scatter no more than chance explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariancePrior:
    """What an archive says about the variance between runs before the runs are seen."""

    variance: float
    """s0^2, of the log percentile between runs."""
    degrees: float
    """d0"""


def fit_prior(variances: Sequence[float], degrees: float) -> VariancePrior:
    """Return the prior of archived variances above 0, each with `degrees` of freedom, by moments of their logs (Smyth 2004, 6.2).

    Raises:
        ValueError: fewer than two variances, or one that is not above 0.
    """
    if len(variances) < 2 or min(variances) <= 0:
        raise ValueError(f"{len(variances)} archived variances; want two or more, all above 0")
    logs = np.log(np.asarray(variances)) - digamma(degrees / 2) + math.log(degrees / 2)
    excess = float(np.var(logs, ddof=1)) - trigamma(degrees / 2)
    if excess <= 0:
        return VariancePrior(variance=math.exp(float(logs.mean())), degrees=_CERTAIN_DEGREES)
    prior = 2.0 * inverse_trigamma(excess)
    return VariancePrior(
        variance=math.exp(float(logs.mean()) + digamma(prior / 2) - math.log(prior / 2)), degrees=min(prior, _CERTAIN_DEGREES)
    )


def welch(baseline: Floats, candidate: Floats, *, alpha: float) -> Estimate:
    """Return the estimate of log percentiles of two or more runs per arm [runs] without assuming equal variances (Welch 1947)."""
    parts = [float(np.var(arm, ddof=1)) / len(arm) for arm in (baseline, candidate)]
    total = sum(parts)
    weights = sum(part**2 / (len(arm) - 1) for part, arm in zip(parts, (baseline, candidate), strict=True))
    degrees = total**2 / weights if weights > 0 else float(len(baseline) + len(candidate) - 2)
    return from_t("welch_t", float(candidate.mean() - baseline.mean()), math.sqrt(total), degrees, alpha)


def denoised(own: Floats, replayed: Floats, quiet: Floats) -> Floats:
    """Return [runs] log Q - log[Q(effects, noise) / Q(effects, 0)]: log percentiles without the noise within each run.

    `own` are the runs' log percentiles, `replayed` those of their replays with their own effects and noise, `quiet` those of the
    replays with their effects alone.
    """
    return own - (replayed - quiet)


def pooled(baseline: Floats, candidate: Floats, *, alpha: float, prior: VariancePrior | None = None) -> Estimate:
    """Return the estimate of (denoised) log percentiles [runs], with one variance for both arms, moderated by `prior` if given.

    (d0 s0^2 + d s^2) / (d0 + d) with d0 + d degrees of freedom (Smyth 2004, 4.2). With a prior, one run per arm is enough.

    Raises:
        ValueError: one run per arm and no prior.
    """
    degrees = float(len(baseline) + len(candidate) - 2)
    if degrees == 0 and prior is None:
        raise ValueError("one run per arm and no archive: nothing tells how much runs differ")
    squares = sum(float(((arm - arm.mean()) ** 2).sum()) for arm in (baseline, candidate))
    if prior is not None:
        squares += prior.degrees * prior.variance
        degrees += prior.degrees
    error = math.sqrt(squares / degrees * (1 / len(baseline) + 1 / len(candidate)))
    return from_t("denoised_t" if prior is None else "moderated_t", float(candidate.mean() - baseline.mean()), error, degrees, alpha)


def run_effect_sd(prior: VariancePrior, pair_error: float) -> float:
    """Return the standard deviation between runs that the noise within a run does not explain; 0 where it explains all.

    `pair_error` is the standard error of one pair's log ratio, two runs' worth of noise. For `estimate.with_run_effect`.
    """
    return math.sqrt(max(0.0, prior.variance - 0.5 * pair_error**2))
