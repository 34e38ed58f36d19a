"""The noise of a pair's step times, priced by replay and taken out of the observed ratio.

A tail percentile is noisy mostly because the queue amplifies the noise of step times. Where those are recorded, each arm is replayed
with its own noise and with the other arm's, and what the exchange changes is subtracted. What systematically differs between the
arms stays, for it is in the effects and not in the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gates.statistics.blocks import Floats
from gates.statistics.estimate import Estimate, Fallback, from_t
from gates.statistics.influence import batch_error, batches_for, log_ratio_influence, tail_influence
from gates.statistics.noise_fit import FittedSteps, Noise, Replay, StepTimes, fit_steps
from gates.statistics.noise_guards import Reproduction, p_more_stalls, p_residuals_differ, reproduce_tail
from gates.statistics.pairs import bootstrap_pair
from replay.assembly.percentile import percentile

_MOVED = 0.02
"""How far an effect is moved, up and down, to see what it does to the percentile."""
STALL_LEVEL, RESIDUAL_LEVEL = 0.05, 0.01
"""Chance that equal arms fail the guard on stalls, and the one on residuals."""
FEWEST_REQUESTS = 10_000
"""With 2,000 it releases 4 to 16 % of candidates at the margin (simulated by the design study, which advises it from 10,000 on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSwap:
    """One pair by noise swap, or by what stands in for it."""

    found: Estimate
    correction: float | None
    """What the exchange of noise explains of the observed log ratio; None where it was not replayed."""
    amplification: float | None
    """Log percentile per log step time, all effects moved together: what turns a run's effect on step times into one on the tail."""
    reproduction: Reproduction
    stalls: tuple[int, int]
    """Steps of the baseline and of the candidate that no noise explains."""
    p_more_stalls: float
    p_residuals_differ: float


def noise_swap(
    arms: tuple[Floats, Floats],
    steps: tuple[StepTimes, StepTimes],
    percent: float,
    replay: Replay,
    *,
    alpha: float,
    generator: np.random.Generator,
) -> NoiseSwap:
    """Return the estimate of one pair (baseline, candidate; [n] latencies of the same requests in the same order) with step times.

    log(Q_c / Q_b) - C, C = 1/2 sum over both arms' effects a of log[Q(a, e_c) / Q(a, e_b)]; the standard error is that of batch
    means of the influence of the observed ratio, less that of C, plus that of the effects. Where a guard fails the block bootstrap
    stands in, and `found.fallback` names the guard; more stalls in the candidate also veto a release.

    Says nothing of what differs from run to run: `with_run_effect` adds it. Errors as `tail_influence`.
    """
    fits = (fit_steps(steps[0]), fit_steps(steps[1]))
    pair = _Pair(arms=arms, steps=steps, fits=fits, percent=percent, replay=replay)
    own = pair.replayed(0, 0)
    same = reproduce_tail(arms[0], own, percent)
    stalls = (int(fits[0].stalls.sum()), int(fits[1].stalls.sum()))
    p_stalls = p_more_stalls(stalls, (len(fits[0].stalls), len(fits[1].stalls)))
    p_residuals = p_residuals_differ(steps, fits, len(arms[0]))
    guards: list[tuple[Fallback, bool]] = [
        ("too_few_requests", len(arms[0]) < FEWEST_REQUESTS),
        ("tail_not_reproduced", not same.holds),
        ("more_stalls", p_stalls <= STALL_LEVEL),
        ("residuals_differ", p_residuals <= RESIDUAL_LEVEL),
    ]
    failed = next((name for name, fails in guards if fails), None)
    swapped = None if failed is not None else pair.swap(own)
    if swapped is None:
        found = replace(bootstrap_pair(*arms, percent, alpha=alpha, generator=generator), fallback=failed)
    else:
        batches = batches_for(len(arms[0]))
        found = from_t("noise_swap", swapped.estimate, batch_error(swapped.influence, batches), batches - 1, alpha)
    return NoiseSwap(
        found=replace(found, release_vetoed=p_stalls <= STALL_LEVEL),
        correction=None if swapped is None else swapped.correction,
        amplification=None if swapped is None else swapped.amplification,
        reproduction=same,
        stalls=stalls,
        p_more_stalls=p_stalls,
        p_residuals_differ=p_residuals,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Swapped:
    estimate: float
    correction: float
    influence: Floats
    amplification: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pair:
    arms: tuple[Floats, Floats]
    steps: tuple[StepTimes, StepTimes]
    fits: tuple[FittedSteps, FittedSteps]
    percent: float
    replay: Replay

    def replayed(self, effects: int, noise: int) -> Floats:
        """Return the latencies of one arm's effects with one arm's noise."""
        return self.replay(self.fits[effects].effects, self.noise(noise))

    def noise(self, arm: int) -> Noise:
        return Noise(arm="candidate" if arm else "baseline", log_factors=self.fits[arm].noise)

    def swap(self, own: Floats) -> _Swapped:
        """Return the corrected log ratio and its influence [n]; `own` is the baseline's replay with its own noise."""
        n, percent = len(own), self.percent
        runs = [(own, self.replayed(0, 1)), (self.replayed(1, 0), self.replayed(1, 1))]
        correction = 0.5 * sum(_log(swapped, percent) - _log(plain, percent) for plain, swapped in runs)
        influence = log_ratio_influence(*self.arms, percent)
        for plain, swapped in runs:
            influence = influence - 0.5 * (tail_influence(swapped, percent) - tail_influence(plain, percent))
        slopes = [self.slopes(arm) for arm in (0, 1)]
        for sign, steps, fit, slope in zip((-1.0, 1.0), self.steps, self.fits, slopes, strict=True):
            per_step = sign * n * (fit.loadings @ slope) * fit.noise
            influence = influence + np.bincount(steps.requests, weights=per_step, minlength=n)
        return _Swapped(
            estimate=_log(self.arms[1], percent) - _log(self.arms[0], percent) - correction,
            correction=correction,
            influence=influence,
            amplification=0.5 * (amplification_of(slopes[0], self.steps[0]) + amplification_of(slopes[1], self.steps[1])),
        )

    def slopes(self, arm: int) -> Floats:
        """Return [effects] the derivatives of the arm's log percentile."""
        effects, noise = self.fits[arm].effects, self.noise(arm)
        return effect_slopes(effects, noise, self.percent, self.replay)


def effect_slopes(effects: Floats, noise: Noise, percent: float, replay: Replay) -> Floats:
    """Return [effects] the derivatives of the replayed log percentile by each effect, from replays 2 % up and 2 % down."""
    moves = np.eye(len(effects)) * _MOVED
    ups = [_log(replay(effects + move, noise), percent) for move in moves]
    downs = [_log(replay(effects - move, noise), percent) for move in moves]
    slopes: Floats = (np.array(ups) - np.array(downs)) / (2 * _MOVED)
    return slopes


def amplification_of(slopes: Floats, steps: StepTimes) -> float:
    """Return the change of the log percentile if every log step time grows by 1: effects that add 1 to each step, times their slopes."""
    features = steps.features
    together = np.linalg.pinv(features.T @ features, hermitian=True) @ features.sum(axis=0)
    return float(slopes @ together)


def denoised_log_percentiles(runs: Sequence[tuple[Floats, StepTimes, Replay]], percent: float) -> tuple[Floats, tuple[Reproduction, ...]]:
    """Return [runs] log Q - log[Q(effects, noise) / Q(effects, 0)] of one arm's runs, and how well each tail is reproduced.

    What is left differs between runs by their effects alone; `runs.pooled` compares it. Where a reproduction does not hold, the
    plain log percentiles are to be used for every run. Errors as `tail_influence`.
    """
    logs, reproductions = [], []
    for latencies, steps, replay in runs:
        fit = fit_steps(steps)
        noise = Noise(arm="baseline", log_factors=fit.noise)
        own, quiet = replay(fit.effects, noise), replay(fit.effects, noise.none())
        logs.append(_log(latencies, percent) - _log(own, percent) + _log(quiet, percent))
        reproductions.append(reproduce_tail(latencies, own, percent))
    return np.array(logs), tuple(reproductions)


def _log(latencies: Floats, percent: float) -> float:
    return math.log(percentile(latencies, percent))
