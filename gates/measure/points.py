"""The figures of claims on a pair of runs, without resampling: what each replicate of a re-simulation contributes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gates.claim import ClaimSpec
from gates.measure.requests import pair_key, pair_requests
from gates.measure.windows import window_sums
from gates.policy import SloLimits
from replay.assembly.percentile import percentile
from replay.assembly.run import Run

Point = tuple[float, float]
"""The baseline's and the candidate's figure; NaN where one has none."""
NO_POINT: Point = (math.nan, math.nan)


def measure_points(specs: Sequence[ClaimSpec], slo: SloLimits | None, baseline: Run, candidate: Run) -> list[Point]:
    """Return the figures of each claim; a metric over requests is over those that have it in both arms."""
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


def _window_point(spec: ClaimSpec, baseline: Run, candidate: Run) -> Point:
    sums = [window_sums(run, spec) for run in (baseline, candidate)]
    if any(arm is None for arm in sums):
        return NO_POINT
    return tuple(float(above.sum()) / float(below.sum()) for above, below in sums)  # type: ignore[misc, return-value]
