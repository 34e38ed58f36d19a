"""Fit of a step model to a log: the parameters under which the replay of its first requests is least off what was observed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from replay.calibration.runs.compare import errors_between
from replay.calibration.runs.grouping import forced_grouping
from replay.calibration.runs.log import RunLog
from replay.calibration.runs.predict import METRICS, LogReplay, observed_latencies
from replay.specs.run_calibration import RunCalibration, StepParameters

Floats = npt.NDArray[np.float64]

SHARES = {
    "base_s": 1.0,
    "per_token_s": 1 / 200,  # a server stops being bound by its weights near that many tokens (the ridge of bf16 on current devices)
    "per_sequence_s": 1 / 1000,
    "per_context_token_s": 1e-5,  # the weights of 8B models are as large as 10^5 tokens of their cache
    "per_prefill_token_s": 1 / 2000,
    "per_pair_s": 1 / 3e6,
    "per_mixed_step_s": 1 / 5,
    "startup_s": 7.0,
}
"""Where the fit starts, as shares of a base step, which starts at half of the shortest observed TPOT; orders of magnitude only."""
LEAST_RATIO, MOST_RATIO = 1e-3, 30.0
"""Bounds of each parameter, as multiples of its start: the lower one is as good as nothing."""
SOFT_L1_SCALES = (1.0, 0.1)
"""Log errors beyond which an error counts linearly, one after the other: a far start first comes near, then outliers lose weight."""
SIMPLEX_EDGES = (0.4, -0.4)
"""Log edges of the simplex that Nelder-Mead starts from; the second search leaves a corner that the first one stuck in."""
FINITE_STEP = 3e-3
"""Of a parameter's logarithm: replays jump where a request moves to another step, so that differences need a stride."""
ROUND_EVALUATIONS, POLISH_EVALUATIONS = 20, 400


def calibrate_run(log: RunLog) -> RunCalibration:
    """Return the step model fitted to the first half of a log's requests, with its errors on the second half; deterministic.

    Takes about a thousand replays. Only latencies of the first half are seen; arrivals and lengths of all requests are replayed.

    Raises:
        SpecError: a request of the log could never have run under the rules of its meta file.
    """
    count = log.origin.requests_count // 2
    parameters, error = fit_parameters(log, slice(0, count))
    observed, predicted, unseen = observed_latencies(log), LogReplay(log).latencies(parameters), slice(count, None)
    return RunCalibration(
        log=log.origin,
        rules=log.server.to_document(),
        notes=log.notes,
        fitted_requests_count=count,
        fit_log_error=error,
        parameters=parameters,
        errors=errors_between(observed, predicted, unseen),
        grouping=forced_grouping(log, parameters, count),
    )


def fit_parameters(log: RunLog, rows: slice) -> tuple[StepParameters, float]:
    """Return the parameters with the smallest mean absolute log error of TTFT, TPOT and E2E over `rows`, and that error.

    Least squares with a soft loss come near; Nelder-Mead then minimises the mean absolute error itself, over logarithms.
    """
    from scipy.optimize import least_squares, minimize

    start = _start(log, rows)
    lower, upper = start + np.log(LEAST_RATIO), start + np.log(MOST_RATIO)
    errors, point = _log_errors(log, rows), start
    for scale in SOFT_L1_SCALES:
        options = {"loss": "soft_l1", "f_scale": scale, "diff_step": FINITE_STEP, "max_nfev": ROUND_EVALUATIONS}
        found = least_squares(errors, point, bounds=(lower, upper), **options)
        point = np.clip(found.x, lower + 1e-6, upper - 1e-6)
    for edge in SIMPLEX_EDGES:
        corners = point + np.vstack([np.zeros(len(point)), edge * np.eye(len(point))])
        limits = {"maxfev": POLISH_EVALUATIONS, "initial_simplex": corners, "adaptive": True, "xatol": 1e-4, "fatol": 1e-6}
        best = minimize(lambda place: _mean_error(errors(np.clip(place, lower, upper))), point, method="Nelder-Mead", options=limits)
        point = np.clip(best.x, lower, upper)
    return _parameters(point), _mean_error(errors(point))


def _mean_error(errors: Floats) -> float:
    return float(np.abs(errors).mean())


def _start(log: RunLog, rows: slice) -> Floats:
    """Return the logarithms of the parameters that the fit starts from."""
    tpot_s = observed_latencies(log).tpot_s[rows]
    base_s = 0.5 * np.nanmin(tpot_s)
    return np.log([SHARES[field.name] * base_s for field in fields(StepParameters)])


def _parameters(logs: Floats) -> StepParameters:
    return StepParameters(**{field.name: float(value) for field, value in zip(fields(StepParameters), np.exp(logs), strict=True)})


def _log_errors(log: RunLog, rows: slice) -> Callable[[Floats], Floats]:
    """Return the function from logarithms of parameters to log errors [three metrics x rows]."""
    observed, replayed = observed_latencies(log), LogReplay(log)

    def errors(logs: Floats) -> Floats:
        predicted = replayed.latencies(_parameters(logs))
        found = np.concatenate([np.log(predicted.of(name)[rows] / observed.of(name)[rows]) for name in METRICS])
        return np.asarray(found[np.isfinite(found)])  # a request of one token has no TPOT

    return errors
