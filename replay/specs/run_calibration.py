"""Calibrations from a server's own request log: a step's cost in seven numbers, the rules of the server, the error."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from replay.provenance import canonical_json


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParameters:
    """What a step costs, in seconds; `replay.calibration.runs.step_model` says how the parts add up."""

    base_s: float
    """A step of next to no work: launches, and one reading of the weights."""
    per_token_s: float
    """For each new token, captured padding included."""
    per_sequence_s: float
    per_context_token_s: float
    """For each token of context that a decoding sequence attends to."""
    per_prefill_token_s: float
    """For each prompt token beside `per_token_s`, hidden behind nothing."""
    per_pair_s: float
    """For each (query, key) pair of a prompt."""
    per_mixed_step_s: float
    """For a step with prompt tokens."""
    startup_s: float
    """What the first step takes longer because the server is cold; no part of the steps' cost, and another start has another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileError:
    """One percentile of a latency, over the same requests."""

    percentile_ratio: float
    """0.95 for p95: the order statistic of rank ceil(n x ratio)."""
    observed_s: float
    predicted_s: float

    @property
    def error_ratio(self) -> float:
        """Signed: above 0 where the prediction is too long."""
        return self.predicted_s / self.observed_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyError:
    """How far a predicted latency is off the observed one, over some requests of a log."""

    metric: str
    """`ttft_s`, `tpot_s` or `e2e_s`."""
    requests_count: int
    percentiles: tuple[PercentileError, ...]
    median_error_ratio: float
    """Median over requests of the absolute relative error."""
    correlation: float | None
    """Pearson's, null where a side does not vary. Says little: servers whose latencies are wrong by half still reach 0.99."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrouping:
    """Steps that hold the same first and last tokens in a log and in its replay, whose clock is set to the log's."""

    steps_count: int
    """Steps of the log out of which a first or last token came; equal stamps share a step."""
    alike_count: int
    """Of those, the ones with exactly the same first and last tokens in the replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOrigin:
    """Which log, of which server."""

    file_name: str
    digest: str
    requests_count: int
    model: str
    server: str
    """Software and version: `vllm 0.19.0`."""
    hardware: str | None
    """As the server names its device; null where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCalibration:
    """A step model fitted to one log."""

    log: LogOrigin
    rules: dict[str, Any]
    """The serving rules that steps were composed by, as `Server.to_document` writes them."""
    notes: tuple[str, ...]
    """What the log and its meta file leave open, and what was assumed."""
    fitted_requests_count: int
    """The first so many requests, by arrival."""
    fit_log_error: float
    """Mean absolute log error of TTFT, TPOT and E2E over them."""
    parameters: StepParameters
    errors: tuple[LatencyError, ...]
    """Over the other requests."""
    grouping: StepGrouping
    """Over the other requests."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form (schema `run-calibration.v1`); `from_document` reads it back."""
        document: dict[str, Any] = json.loads(canonical_json({"schema_version": "1", **asdict(self)}))
        return document

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> RunCalibration:
        """Return the record of a checked JSON form."""
        fields = {key: value for key, value in document.items() if key != "schema_version"}
        return cls(
            **{
                **fields,
                "log": LogOrigin(**document["log"]),
                "notes": tuple(document["notes"]),
                "parameters": StepParameters(**document["parameters"]),
                "errors": tuple(_latency_error(entry) for entry in document["errors"]),
                "grouping": StepGrouping(**document["grouping"]),
            }
        )


def _latency_error(entry: dict[str, Any]) -> LatencyError:
    return LatencyError(**{**entry, "percentiles": tuple(PercentileError(**one) for one in entry["percentiles"])})
