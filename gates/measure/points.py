"""The figures of claims on a pair of runs, without resampling: what each replicate of a re-simulation contributes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gates.claim import ClaimSpec
from gates.measure.goodput import goodput_per_s
from gates.measure.requests import members_of, read_metric
from gates.measure.window_drift import drift_point
from gates.policy import SloLimits
from gates.statistics.blocks import Floats
from replay.assembly.headline import Headline
from replay.assembly.layers import ALL_LAYERS
from replay.assembly.percentile import percentile

Point = tuple[float, float]
"""The baseline's and the candidate's figure; NaN where one has none."""
NO_POINT: Point = (math.nan, math.nan)


def measure_points(specs: Sequence[ClaimSpec], slo: SloLimits | None, baseline: Headline, candidate: Headline) -> list[Point]:
    """Return the figures of each claim on two replays; a metric over requests is over those that have it in both arms."""
    tables = (baseline.requests, candidate.requests)
    of_requests = [spec for spec in specs if spec.definition.basis != "window_ratio"]
    metrics = {
        column: [read_metric(table, column, slo) for table in tables]
        for column in dict.fromkeys(spec.definition.column for spec in of_requests)
    }
    strata = {stratum: members_of(stratum, tables[0]) for stratum in dict.fromkeys(spec.stratum for spec in of_requests)}
    points = []
    for spec in specs:
        if spec.definition.basis == "window_ratio":
            points.append(_window_point(spec, slo, baseline, candidate))
            continue
        (before, there), (after, also_there) = metrics[spec.definition.column]
        members = there & also_there & strata[spec.stratum]
        points.append(_request_point(spec.percentile, before[members], after[members]))
    return points


def _request_point(percent: float | None, before: Floats, after: Floats) -> Point:
    if not len(before):
        return NO_POINT
    if percent is None:
        return float(np.mean(before)), float(np.mean(after))
    return percentile(before, percent), percentile(after, percent)


def _window_point(spec: ClaimSpec, slo: SloLimits | None, baseline: Headline, candidate: Headline) -> Point:
    if spec.of is not None:
        return drift_point(spec.of, baseline, candidate)
    if spec.definition.denominator == "run":
        return goodput_per_s(baseline.requests, slo), goodput_per_s(candidate.requests, slo)
    baseline_value, candidate_value = (_ratio(spec, arm) for arm in (baseline, candidate))
    return baseline_value, candidate_value


def _ratio(spec: ClaimSpec, arm: Headline) -> float:
    of_time = {"reference": arm.reference_flops_per_s, "busy": 1.0 / arm.replicas_count}
    above, below = (
        arm.sums.get((spec.layer_type or ALL_LAYERS, "time_s" if name in of_time else name), math.nan) * of_time.get(name, 1.0)
        for name in (spec.definition.numerator, spec.definition.denominator)
    )
    return above / below if below > 0 else math.nan
