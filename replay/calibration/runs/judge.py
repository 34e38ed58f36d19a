"""Verdict-free comparison of a fitted step model with a log: of its own server's second half, or of another load."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from replay.calibration.runs.compare import errors_between
from replay.calibration.runs.grouping import forced_grouping
from replay.calibration.runs.log import RunLog
from replay.calibration.runs.predict import LogReplay, observed_latencies
from replay.specs.run_calibration import LatencyError, LogOrigin, RunCalibration, StepGrouping, StepParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFidelity:
    """How far a step model is off one log."""

    log: LogOrigin
    fitted_on: LogOrigin
    first_judged: int
    """The first request judged, by arrival, from 0: those before it were fitted."""
    parameters: StepParameters
    errors: tuple[LatencyError, ...]
    grouping: StepGrouping
    notes: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, with the signed error of each percentile."""
        document = asdict(self)
        for entry, error in zip(document["errors"], self.errors, strict=True):
            for place, percentile in zip(entry["percentiles"], error.percentiles, strict=True):
                place["error_ratio"] = percentile.error_ratio
        return {**document, "errors": list(document["errors"]), "notes": list(self.notes)}


def judge_run(log: RunLog, calibration: RunCalibration, *, startup_s: float | None = None) -> RunFidelity:
    """Return how far the calibration is off a log; of the log it was fitted on, only the requests it has not seen are judged.

    `startup_s` is what the first step of this run took longer because the server was cold; the calibration's own where not given.

    Raises:
        SpecError: a request of the log could never have run under the rules of its meta file.
    """
    parameters = calibration.parameters if startup_s is None else replace(calibration.parameters, startup_s=startup_s)
    first = calibration.fitted_requests_count if calibration.log.digest == log.origin.digest else 0
    rows = slice(first, None)
    observed, predicted = observed_latencies(log), LogReplay(log).latencies(parameters)
    return RunFidelity(
        log=log.origin,
        fitted_on=calibration.log,
        first_judged=first,
        parameters=parameters,
        errors=errors_between(observed, predicted, rows),
        grouping=forced_grouping(log, parameters, first),
        notes=log.notes,
    )
