"""Recorded step times split into what a step's state explains and noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gates.statistics.blocks import Counts, Floats

ROBUST_SDS = 5.0
"""Beyond so many robust standard deviations a step's noise is cut off: it is a stall, not noise."""
_MAD_TO_SD = 1.4826
"""Of a normal distribution: 1 / its upper quartile."""
_FITS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimes:
    """The recorded steps of one run."""

    log_factors: Floats
    """[steps] log of measured over modelled step time."""
    features: Floats
    """[steps, effects] 4 to 10 columns that a step's state gives, linearly independent; a log factor is features @ effects + noise."""
    requests: Counts
    """[steps] place in the order of the requests, 0..n-1, of the one that a step belongs to in time."""
    cells: Counts
    """[steps] 0..: finer classes of steps than the features tell apart, in which the arms' residuals are compared."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """What is left of one arm's log factors without its effects and stalls."""

    arm: Literal["baseline", "candidate"]
    """Whose: only the replay knows how the arm's steps match those of a replay, by place or by time."""
    log_factors: Floats
    """[steps of that arm]"""

    def none(self) -> Noise:
        """Return the same steps without noise."""
        return Noise(arm=self.arm, log_factors=np.zeros_like(self.log_factors))


Replay = Callable[[Floats, Noise], Floats]
"""Given effects [effects] and noise, return the latencies [n], in the order of the requests, of a replay in which each step takes
its modelled time x exp(features @ effects + noise)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedSteps:
    """Step times split into effects and noise."""

    effects: Floats
    """[effects]"""
    noise: Floats
    """[steps]"""
    stalls: NDArray[np.bool_]
    """[steps] whether a step took longer than noise explains."""
    loadings: Floats
    """[steps, effects] by how much one unit of a step's noise moves each effect."""


def fit_steps(steps: StepTimes) -> FittedSteps:
    """Return effects by least squares and the noise around them, cut off at 5 robust standard deviations.

    Each fit sees what the one before cut off, so that stalls do not pull the effects.
    """
    features = steps.features
    inverse = np.linalg.pinv(features.T @ features, hermitian=True)
    clipped = steps.log_factors
    for _ in range(_FITS):
        explained = features @ (inverse @ (features.T @ clipped))
        residuals = steps.log_factors - explained
        middle = float(np.median(residuals))
        reach = ROBUST_SDS * _MAD_TO_SD * float(np.median(np.abs(residuals - middle)))
        clipped = explained + np.clip(residuals, middle - reach, middle + reach)
    effects = inverse @ (features.T @ clipped)
    noise = clipped - features @ effects
    return FittedSteps(effects=effects, noise=noise, stalls=residuals > middle + reach, loadings=features @ inverse)
