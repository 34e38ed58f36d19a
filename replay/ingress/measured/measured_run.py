"""MeasuredRun: what one benchmark run or engine log says about its requests, in base units."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa

MEASURED_SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("arrival_s", pa.float64()),  # from the first arrival of the run; null where the file has no such times
        pa.field("sent_s", pa.float64()),  # same clock as arrival_s
        pa.field("prompt_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("status", pa.string(), nullable=False),  # one of STATUSES; only `completed` rows have metrics
        pa.field("queue_s", pa.float64()),
        pa.field("ttft_s", pa.float64()),
        pa.field("tpot_s", pa.float64()),  # null with one output token
        pa.field("itl_s", pa.float64()),  # the request's worst gap between tokens (chunks, where the tool saw only those)
        pa.field("e2e_s", pa.float64()),
        pa.field("preemptions_per_request", pa.int64()),
        pa.field("prefix_hit_tokens", pa.int64()),
    ]
)
"""`MeasuredRun.requests`: one row per request of the file, in the file's order of requests."""

GAPS_SCHEMA = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("gap_s", pa.float64(), nullable=False)])
"""`MeasuredRun.token_gaps`: every gap between tokens that the file states; `row` is the request's position in `requests`."""

STEPS_SCHEMA = pa.schema(
    [
        pa.field("start_s", pa.float64(), nullable=False),
        pa.field("end_s", pa.float64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("sequences", pa.int64(), nullable=False),
        pa.field("kv_tokens", pa.int64(), nullable=False),
    ]
)
"""`MeasuredRun.steps`: the engine's steps, where a folder brings them."""

COMPLETED, FAILED, ZERO_TOKENS, TRUNCATED = "completed", "failed", "zero_tokens", "truncated"
STATUSES = (COMPLETED, FAILED, ZERO_TOKENS, TRUNCATED)
"""Served in full; an error; called a success without a single token; cut off or cancelled before its end."""

METRICS = ("queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s")

Arrivals = Literal["scheduled", "sent", "none"]
"""What `arrival_s` is: when the load's schedule wanted the request, when the client sent it, or nothing."""
Identity = Literal["ids", "order", "none"]
"""What tells which request of another run is the same one: its id, its place in the file, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFacts:
    """What a file says about its run as a whole; what it does not say is None."""

    format: str
    file_name: str
    digest: str
    """Of the file's bytes."""
    tool: str
    units: str
    """Which unit each figure had in the file, before it was converted."""
    arrivals: Arrivals
    identity: Identity
    tool_version: str | None = None
    model: str | None = None
    hardware: str | None = None
    offered_rate_per_s: float | None = None
    """Requests per second the load generator was asked for; infinity: all at once."""
    concurrency: int | None = None
    """Cap on requests under way."""
    dataset: str | None = None
    is_synthetic: bool | None = None
    """Whether prompts were drawn from a generator."""
    started_at: str | None = None
    """ISO time."""
    duration_s: float | None = None
    achieved_rate_per_s: float | None = None
    """Requests per second that were sent, where the tool measured it; else they are counted from the rows."""
    prefix_cache: bool | None = None
    expected_count: int | None = None
    """Requests the file says there were."""
    completed_count: int | None = None
    """Requests the file calls completed."""
    is_valid: bool | None = None
    """Whether the run was a valid one by the tool's own rules."""
    settings: tuple[tuple[str, str], ...] = ()
    """The server's settings, as recorded."""
    notes: tuple[str, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form; an infinite rate is the text ``inf``."""
        document = asdict(self)
        if self.offered_rate_per_s == float("inf"):
            document["offered_rate_per_s"] = "inf"
        document["settings"] = dict(self.settings)
        document["notes"] = list(self.notes)
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedFigure:
    """A percentile that a tool computed itself: seconds."""

    metric: str
    percentile: float
    value_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run of one server under one load."""

    requests: pa.Table
    """MEASURED_SCHEMA; without rows where the file holds percentiles alone."""
    facts: MeasuredFacts
    reported: tuple[ReportedFigure, ...] = ()
    is_summary: bool = False
    """Whether the file holds percentiles and counts instead of requests."""
    token_gaps: pa.Table | None = None
    steps: pa.Table | None = None

    def count(self, status: str) -> int:
        """Return how many requests have a status."""
        return int(self.requests["status"].to_pylist().count(status))

    @property
    def load(self) -> tuple[float | None, int | None, str | None]:
        """Offered rate, concurrency cap and data set: what makes two runs of one file repeats of each other."""
        return self.facts.offered_rate_per_s, self.facts.concurrency, self.facts.dataset
