"""Trace: recorded requests with their real lengths and arrival times, and how they came to be."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from replay.provenance import TraceProvenance

TRACE_SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("arrival_s", pa.float64()),  # seconds from the first arrival; null in every row of a length-only file
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        pa.field("prefix_blocks", pa.list_(pa.int64())),  # hash of each block of the prompt, null where not recorded
        pa.field("session_id", pa.string()),
        pa.field("model", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in arrival order (ties in file order), with provenance.

    `requests` has TRACE_SCHEMA: ids are unique, prompt and output lengths are >= 1, arrivals start at 0 and do not decrease
    (or are null in every row).
    """

    name: str
    requests: pa.Table
    provenance: TraceProvenance
    digest: str
    """Digest of the rows (not of the name or the provenance)."""

    @property
    def has_arrivals(self) -> bool:
        """Whether the rows say when requests arrived."""
        return bool(self.requests.num_rows) and self.requests["arrival_s"].null_count == 0

    @property
    def span_s(self) -> float:
        """Time from the first arrival to the last; 0 without arrivals."""
        return float(self.requests["arrival_s"][-1].as_py()) if self.has_arrivals else 0.0
