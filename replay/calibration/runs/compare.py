"""Predicted against observed: percentiles, and errors of single requests."""

from __future__ import annotations

from math import ceil

import numpy as np

from replay.calibration.runs.predict import METRICS, Floats, Latencies
from replay.specs.run_calibration import LatencyError, PercentileError

PERCENTILE_RATIOS = (0.5, 0.95, 0.99)


def errors_between(observed: Latencies, predicted: Latencies, rows: slice) -> tuple[LatencyError, ...]:
    """Return the error of each of METRICS over some requests; those of one token have no TPOT."""
    return tuple(_error(metric, observed.of(metric)[rows], predicted.of(metric)[rows]) for metric in METRICS)


def _error(metric: str, observed_s: Floats, predicted_s: Floats) -> LatencyError:
    known = ~np.isnan(observed_s)
    observed_s, predicted_s = observed_s[known], predicted_s[known]
    varies = len(observed_s) > 1 and min(observed_s.std(), predicted_s.std()) > 0.0
    return LatencyError(
        metric=metric,
        requests_count=len(observed_s),
        percentiles=tuple(
            PercentileError(percentile_ratio=ratio, observed_s=_percentile(observed_s, ratio), predicted_s=_percentile(predicted_s, ratio))
            for ratio in PERCENTILE_RATIOS
        ),
        median_error_ratio=float(np.median(np.abs(predicted_s / observed_s - 1.0))),
        correlation=float(np.corrcoef(observed_s, predicted_s)[0, 1]) if varies else None,
    )


def _percentile(values: Floats, ratio: float) -> float:
    return float(np.sort(values)[ceil(ratio * len(values)) - 1])
