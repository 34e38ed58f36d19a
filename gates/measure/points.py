"""The figures of claims on a pair of runs, without resampling: what each replicate of a re-simulation contributes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gates.claim import ClaimSpec
from gates.measure.requests import pair_key, pair_requests
from gates.policy import SloLimits
from replay.assembly.headline import Headline
from replay.assembly.layers import ALL_LAYERS
from replay.assembly.percentile import percentile

Point = tuple[float, float]
"""The baseline's and the candidate's figure; NaN where one has none."""
NO_POINT: Point = (math.nan, math.nan)


def measure_points(specs: Sequence[ClaimSpec], slo: SloLimits | None, baseline: Headline, candidate: Headline) -> list[Point]:
    """Return the figures of each claim on two replays; a metric over requests is over those that have it in both arms."""
    pairs = {
        pair_key(spec): pair_requests(spec, slo, baseline.requests, candidate.requests)
        for spec in specs
        if spec.definition.basis != "window_ratio"
    }
    points = []
    for spec in specs:
        if spec.definition.basis == "window_ratio":
            points.append(_window_point(spec, baseline, candidate))
            continue
        pair = pairs[pair_key(spec)]
        arms = [arm[pair.members] for arm in pair.arms]
        if not len(arms[0]):
            points.append(NO_POINT)
        elif spec.percentile is None:
            points.append((float(np.mean(arms[0])), float(np.mean(arms[1]))))
        else:
            points.append((percentile(arms[0], spec.percentile), percentile(arms[1], spec.percentile)))
    return points


def _window_point(spec: ClaimSpec, baseline: Headline, candidate: Headline) -> Point:
    baseline_value, candidate_value = (_ratio(spec, arm) for arm in (baseline, candidate))
    return baseline_value, candidate_value


def _ratio(spec: ClaimSpec, arm: Headline) -> float:
    of_time = {"reference": arm.reference_flops_per_s, "busy": 1.0 / arm.replicas_count}
    above, below = (
        arm.sums.get((spec.layer_type or ALL_LAYERS, "time_s" if name in of_time else name), math.nan) * of_time.get(name, 1.0)
        for name in (spec.definition.numerator, spec.definition.denominator)
    )
    return above / below if below > 0 else math.nan
