"""Trace: recorded requests with their real lengths and arrival times, and how they came to be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import TraceError
from replay.names import NAME_RULE, is_safe_name
from replay.provenance import Load, TraceProvenance, digest_document
from replay.specs.routing import ExpertLoad

TRACE_SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("arrival_s", pa.float64()),  # seconds from the first arrival; null in every row of a length-only file
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        pa.field("prefix_blocks", pa.list_(pa.int64())),  # hash of each block of the prompt, null where not recorded
        pa.field("session_id", pa.string()),
        pa.field("model", pa.string()),
        pa.field("priority", pa.int64()),  # the smaller, the sooner (vLLM); null counts as 0
    ]
)
OPTIONAL_COLUMNS = frozenset({"priority"})
"""Columns that are neither written nor digested where they are null in every row, so that files and digests of older versions stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in arrival order (ties in file order), with provenance.

    `requests` has TRACE_SCHEMA: ids are unique, prompt and output lengths are >= 1, arrivals start at 0 and do not decrease
    (or are null in every row).
    """

    name: str
    """Labels claims and becomes part of folder names, so it holds to `replay.names`."""
    requests: pa.Table
    provenance: TraceProvenance
    digest: str
    """Digest of the rows, of how they are sent and of the expert load, where stated (not of the name or the rest of the provenance)."""
    expert_load: ExpertLoad | None = None
    """How often each expert was chosen while the requests were served; None where nothing says so."""

    @property
    def has_arrivals(self) -> bool:
        """Whether the rows say when requests arrived."""
        return bool(self.requests.num_rows) and self.requests["arrival_s"].null_count == 0

    @property
    def span_s(self) -> float:
        """Time from the first arrival to the last; 0 without arrivals."""
        return float(self.requests["arrival_s"][-1].as_py()) if self.has_arrivals else 0.0


def build_trace(*, name: str, requests: pa.Table, provenance: TraceProvenance, expert_load: ExpertLoad | None = None) -> Trace:
    """Return the trace of rows that already have the promised order and values; casts to TRACE_SCHEMA and digests the content.

    Raises:
        TraceError: the name could not stand in a path or on one line.
    """
    check_trace_name(name, "the trace's name")
    columns = {field.name: _column(requests, field) for field in TRACE_SCHEMA}
    table = pa.table(columns, schema=TRACE_SCHEMA)
    digest = digest_trace(table.column, provenance.load, expert_load)
    return Trace(name=name, requests=table, provenance=provenance, digest=digest, expert_load=expert_load)


def with_expert_load(trace: Trace, load: ExpertLoad) -> Trace:
    """Return a trace with the routing of its requests; it replaces one that was there."""
    return build_trace(name=trace.name, requests=trace.requests, provenance=trace.provenance, expert_load=load)


def renamed(trace: Trace, name: str) -> Trace:
    """Return a trace under another name; its rows, and so its digest, stay.

    Raises:
        TraceError: the name could not stand in a path or on one line.
    """
    check_trace_name(name, "the trace's name")
    return replace(trace, name=name)


def check_trace_name(name: str, where: str) -> None:
    """Raise TraceError unless a name of a trace holds to NAME_RULE."""
    if not is_safe_name(name):
        shown = ascii(name if len(name) <= 60 else name[:57] + "...")
        raise TraceError(where, f"the trace name {shown}", NAME_RULE, "give it another one (--name)")


def digest_trace(column: Callable[[str], pa.ChunkedArray], load: Load | None, expert_load: ExpertLoad | None) -> str:
    """Return the digest of a trace, of which `column` returns the columns one by one."""
    digest = digest_rows(column)
    if load is not None:
        digest = digest_document([digest, load])
    return digest if expert_load is None else digest_document([digest, expert_load.digest])


def digest_rows(column: Callable[[str], pa.ChunkedArray]) -> str:
    """Return the digest of rows in TRACE_SCHEMA, the same however the columns are chunked, sliced or encoded on disk.

    Each column in the schema's order: its name and length, a validity bit per row, then little-endian values (64 bit); text and lists
    are their lengths followed by the concatenated content. An optional column without values is left out.
    """
    hasher = hashlib.sha256(b"replay-gate trace rows, version 1\n")
    for field in TRACE_SCHEMA:
        values = column(field.name).combine_chunks()
        if field.name in OPTIONAL_COLUMNS and values.null_count == len(values):
            continue
        hasher.update(f"{field.name} {len(values)}\n".encode())
        hasher.update(np.packbits(pc.is_valid(values).to_numpy(zero_copy_only=False)).tobytes())
        for part in _canonical_parts(values):
            hasher.update(part)
    return "sha256:" + hasher.hexdigest()


def _column(requests: pa.Table, field: pa.Field) -> pa.Array:
    if field.name not in requests.column_names:
        return pa.nulls(requests.num_rows, field.type)
    return requests[field.name].combine_chunks().cast(field.type)


def _canonical_parts(column: pa.Array) -> tuple[bytes, ...]:
    if pa.types.is_list(column.type):
        return (_little_endian(pc.list_value_length(column)), _little_endian(pc.list_flatten(column)))
    if pa.types.is_string(column.type):
        return (_little_endian(pc.binary_length(column)), _text_bytes(column))
    return (_little_endian(column),)


def _little_endian(column: pa.Array) -> bytes:
    kind = "<f8" if pa.types.is_floating(column.type) else "<i8"
    return np.asarray(pc.fill_null(column, 0).to_numpy(zero_copy_only=False)).astype(kind, copy=False).tobytes()


def _text_bytes(column: pa.Array) -> bytes:
    filled = pc.fill_null(column, "")
    _, offsets_buffer, data_buffer = filled.buffers()
    if data_buffer is None or not len(filled):
        return b""
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[filled.offset : filled.offset + len(filled) + 1]
    return bytes(memoryview(data_buffer)[offsets[0] : offsets[-1]])
