"""What the replicates of a re-simulation say beyond their bounds: flips, two modes, whether the model's error forbids a decision."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from gates.measure.compared import compare_claim
from gates.measure.measured import Measured, Problem
from gates.plan import RESIMULATION_METHOD, PlannedCell
from gates.resimulation.errors import KernelError
from gates.resimulation.replicates import Resimulated
from gates.statistics.blocks import Floats
from gates.statistics.compare import Comparison
from gates.statistics.power import detectable_effect, needed_count

LEAST_MODE_RATIO = 0.05
"""Smaller groups of replicates are a tail, not a second mode."""
LEAST_SHARE_RATIO = 0.02
"""Share of the variance by kernels' own errors below which timing a kernel changes nothing."""
MODE_GAP = 4.0
"""Distance of two modes over the larger of their own spreads, from which nothing lies between them."""


def with_resimulated(cell: PlannedCell, index: int, measured: Measured, resimulated: Resimulated) -> Measured:
    """Return a claim's figures with the replicates of a re-simulation in place of resamples, and what they say beside their bounds."""
    replicates = resimulated.of_claim(index)
    if measured.problem is not None and measured.problem[0] != "undefined_resamples":
        return measured
    if replicates is None and measured.replicates is not None and np.isnan(resimulated.baseline[:, index]).all():
        return measured  # the replays keep no windows for claims that only advise
    if replicates is None:
        sentence = "some replays of resampled traffic have no such figure"
        return replace(measured, replicates=None, problem=("undefined_resamples", sentence), method=RESIMULATION_METHOD)
    found = replace(measured, replicates=replicates, problem=None, n_needed=None, method=RESIMULATION_METHOD)
    comparison = compare_claim(cell, cell.claims[index], found)
    if comparison is None:
        return found
    effects = _effects(comparison, replicates)
    warnings = (*found.warnings, *_two_modes(effects))
    doubt = _model_doubt(comparison, effects, resimulated, found.n, cell.policy.alpha)
    return replace(found, flip_ratio=_flips(comparison, replicates), warnings=warnings, doubt=doubt)


def doubtful_kernels(cell: PlannedCell, measured: list[Measured], resimulated: Resimulated) -> tuple[str, ...]:
    """Return the changed kernels whose own errors keep blocking claims from a decision, those that bring most of it first."""
    found: dict[str, float] = {}
    for index, (claim, one) in enumerate(zip(cell.claims, measured, strict=True)):
        figures = with_resimulated(cell, index, one, resimulated) if claim.spec.blocking else one
        comparison = (
            compare_claim(cell, claim, figures) if figures.doubt is not None and figures.doubt[0] == "model_error_too_large" else None
        )
        split = _Split.of(_effects(comparison, figures.replicates), resimulated) if comparison and figures.replicates else None
        if split is not None:
            total = sum(sd**2 for sd in split.by_kernel.values())
            found |= {name: max(found.get(name, 0.0), sd**2 / total) for name, sd in split.by_kernel.items()}
    return tuple(sorted((name for name, share in found.items() if share >= LEAST_SHARE_RATIO), key=lambda name: -found[name]))


def settled(cell: PlannedCell, measured: list[Measured], resimulated: Resimulated) -> bool:
    """Return whether more replicates could hardly change the cell's decision.

    They could where the sampling error of a blocking claim's bound reaches a value that it is compared with, unless another blocking
    claim is disproved beyond that error; and where claims are worse beyond it, but the smallest p-value misses Holm's level, as that of a
    clearly worse claim does by a few replicates at most.
    """
    close = surely_worse = False
    p_values = []
    for index, (claim, one) in enumerate(zip(cell.claims, measured, strict=True)):
        found = with_resimulated(cell, index, one, resimulated) if claim.spec.blocking else one
        comparison = compare_claim(cell, claim, found) if claim.spec.blocking and found.problem is None else None
        if claim.spec.blocking:
            p_values.append(1.0 if comparison is None else comparison.p_no_worse)
        if comparison is None or found.replicates is None:
            continue
        reach = _Reach.of(comparison, found.replicates, cell.policy.alpha)
        surely_worse = surely_worse or (reach.surely_worse and not reach.near_limit)
        close = close or reach.near_limit or (reach.near_no_change and not comparison.inside_margin)
    if not surely_worse:
        return not close
    return len(p_values) * min(p_values) <= cell.policy.alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """How far the bounds of a claim are known: two standard errors of their places among the replicates."""

    near_limit: bool
    near_no_change: bool
    surely_worse: bool

    @classmethod
    def of(cls, comparison: Comparison, replicates: tuple[Floats, Floats], alpha: float) -> _Reach:
        sign = _sign(comparison)
        effects = np.sort(sign * _raw_effects(comparison, replicates))
        count, limit, no_change = len(effects), sign * comparison.limit, sign * comparison.no_change
        spread = 2.0 * math.sqrt(count * alpha * (1.0 - alpha))
        nearest, farthest = (int(np.clip(alpha * count + step, 0, count - 1)) for step in (-spread, spread))
        good, bad = (effects[nearest], effects[farthest]), (effects[-1 - farthest], effects[-1 - nearest])
        return cls(
            near_limit=bool(bad[0] <= limit <= bad[1] and bad[0] < bad[1]),
            near_no_change=bool(good[0] <= no_change <= good[1] and good[0] < good[1]),
            surely_worse=bool(good[0] > no_change and bad[0] > limit),
        )


def _raw_effects(comparison: Comparison, replicates: tuple[Floats, Floats]) -> Floats:
    baseline, candidate = replicates
    return candidate / baseline if comparison.scale == "ratio" else candidate - baseline


def _effects(comparison: Comparison, replicates: tuple[Floats, Floats]) -> Floats:
    """Return the effects [replicates] on a scale where no change is 0 and worse is above."""
    effects = _raw_effects(comparison, replicates)
    return _sign(comparison) * (np.log(np.maximum(effects, np.finfo(float).tiny)) if comparison.scale == "ratio" else effects)


def _sign(comparison: Comparison) -> float:
    return 1.0 if comparison.limit > comparison.no_change else -1.0


def _flips(comparison: Comparison, replicates: tuple[Floats, Floats]) -> float:
    effects, sign = _raw_effects(comparison, replicates), _sign(comparison)
    beyond = sign * (effects - comparison.limit) > 0
    return float(np.mean(beyond != (sign * (comparison.estimate - comparison.limit) > 0)))


def _two_modes(effects: Floats) -> tuple[str, ...]:
    """Return a warning where the replicates fall into two groups with nothing between: which one happens is chance."""
    ordered = np.sort(effects)
    least = math.ceil(LEAST_MODE_RATIO * len(ordered))
    gaps = np.diff(ordered)[least - 1 : len(ordered) - least]
    if not len(gaps):
        return ()
    cut = least + int(np.argmax(gaps))
    groups = ordered[:cut], ordered[cut:]
    distance, widest = float(groups[1].mean() - groups[0].mean()), max(float(np.std(group)) for group in groups)
    if float(gaps.max()) <= widest or distance <= MODE_GAP * widest:
        return ()
    share = len(groups[1]) / len(ordered)
    return (f"bistable: {share:.0%} of the replays are about {math.expm1(distance):+.0%} worse than the others, with nothing between",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A claim's spread, divided by what it comes from; on the scale of `_effects`."""

    centre: float
    traffic_sd: float
    """Of the traffic drawn, and of whatever else the kernels' own errors do not explain."""
    by_kernel: dict[str, float]
    """Standard deviation that each changed kernel's own error brings."""

    @classmethod
    def of(cls, effects: Floats, resimulated: Resimulated) -> _Split | None:
        changed = [place for place, error in enumerate(resimulated.errors) if error.specific_sd > 0.0]
        if not changed or len(effects) < 4 * (len(changed) + 1):
            return None
        design = np.column_stack([np.ones(len(effects)), resimulated.specific[:, changed]])
        slopes, *_ = np.linalg.lstsq(design, effects, rcond=None)
        rest = effects - design @ slopes
        traffic_sd = math.sqrt(float(rest @ rest) / (len(effects) - len(slopes)))
        names = [resimulated.errors[place].kernel for place in changed]
        return cls(centre=float(slopes[0]), traffic_sd=traffic_sd, by_kernel=dict(zip(names, np.abs(slopes[1:]).tolist(), strict=True)))


def _model_doubt(comparison: Comparison, effects: Floats, resimulated: Resimulated, n: int, alpha: float) -> Problem | None:
    """Return why a claim is undecided where exact kernel times would decide it: which kernels must be known, and how well."""
    if comparison.inside_margin or comparison.beyond_no_change:
        return None
    split = _Split.of(effects, resimulated)
    if split is None:
        return None
    end = _sign(comparison) * (math.log(comparison.limit) if comparison.scale == "ratio" else comparison.limit - comparison.no_change)
    distance = max(end - split.centre, split.centre)
    allowed_sd, own_sd = distance / NormalDist().inv_cdf(1.0 - alpha), math.sqrt(sum(sd**2 for sd in split.by_kernel.values()))
    if own_sd == 0.0:
        return None
    if allowed_sd <= split.traffic_sd:
        n_needed = needed_count(n, detectable_effect(split.traffic_sd, alpha), to_limit=end - split.centre, to_no_change=split.centre)
        more = "" if n_needed is None else f"; with exact kernel times about {n_needed} requests instead of {n} would decide it"
        interval = f"{comparison.lower:.4g} to {comparison.upper:.4g}"
        return "margin_not_shown", f"the interval {interval} leaves it open, whatever is known of the kernels{more}"
    factor = math.sqrt(allowed_sd**2 - split.traffic_sd**2) / own_sd
    if factor >= 1.0:
        return None
    errors = {error.kernel: error for error in resimulated.errors}
    worst = sorted(split.by_kernel, key=lambda name: -split.by_kernel[name])[:3]
    wanted = ", ".join(f"{name} to {_percent(factor, errors[name])} instead of {_percent(1.0, errors[name])}" for name in worst)
    sentence = (
        f"the error of the kernels' model alone forbids a decision: with the time of {wanted} (one standard deviation) it would be decided"
    )
    return "model_error_too_large", sentence


def _percent(factor: float, error: KernelError) -> str:
    return f"{100.0 * math.expm1(factor * error.specific_sd):.2g} %"
