"""A native trace read piece by piece, for those that are larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from replay.errors import TraceError
from replay.ingress.native import stated_origin
from replay.ingress.parquet_rows import checked_column
from replay.ingress.source import TraceSource, open_source
from replay.ingress.trace import OPTIONAL_COLUMNS, TRACE_SCHEMA, digest_trace
from replay.provenance import TraceProvenance
from replay.specs.routing import ExpertLoad

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_FIX = "import it: `replay trace import FILE --out trace.parquet`"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedTrace:
    """A trace like `replay.ingress.trace.Trace`, of which the requests are read when they are needed."""

    name: str
    provenance: TraceProvenance
    digest: str
    requests_count: int
    span_s: float
    source: TraceSource
    expert_load: ExpertLoad | None = None

    @property
    def has_arrivals(self) -> bool:
        """True: a trace without is refused."""
        return True

    def pieces(self, rows: int) -> Iterator[pa.Table]:
        """Yield the requests (TRACE_SCHEMA) in order, at most `rows` at a time.

        Raises:
            TraceError: damaged pages, or a value out of range.
        """
        first = 0
        for batch in _file(self.source).iter_batches(batch_size=rows):
            checked = {
                field.name: checked_column(self.source, field.name, batch.column(field.name), first_row=first)
                if field.name in self.source.columns
                else pa.nulls(batch.num_rows, field.type)
                for field in TRACE_SCHEMA
            }
            yield pa.table(checked, schema=TRACE_SCHEMA)
            first += batch.num_rows


def open_streamed(path: Path) -> StreamedTrace:
    """Return a trace in a native Parquet file with provenance; its digest is checked, one column in memory at a time.

    Raises:
        TraceError: another file, rows that are not those the digest was taken of, or no arrivals in order.
    """
    source = open_source(path)
    stated = stated_origin(source) if source.encoding == "parquet" else None
    if stated is None or stated.name is None or stated.digest is None or set(source.columns) | OPTIONAL_COLUMNS != set(TRACE_SCHEMA.names):
        raise TraceError(source.where, "no native Parquet trace with name, provenance and digest", "one, to read in pieces", _FIX)
    file = _file(source)

    def column(name: str) -> pa.ChunkedArray:
        if name not in source.columns:
            return pa.chunked_array([pa.nulls(file.metadata.num_rows, TRACE_SCHEMA.field(name).type)])
        try:
            return file.read([name])[name]
        except (pa.ArrowException, OSError) as error:
            raise TraceError(
                source.where, "its Parquet pages are damaged", "a whole Parquet file", "copy or write the file again"
            ) from error

    if digest_trace(column, stated.provenance.load, stated.expert_load) != stated.digest:
        got = "rows that differ from the digest written with them"
        raise TraceError(source.where, got, "the rows as they were written", "copy or import the trace again")
    arrivals = column("arrival_s")
    if not len(arrivals):
        raise TraceError(source.where, "the trace has no requests", "at least one", "check how it was imported or sliced")
    if arrivals.null_count:
        raise TraceError(source.where, "its requests have no arrival times", "arrival_s in every row", "import with --rate")
    arrival_s = arrivals.to_numpy()
    if (np.diff(arrival_s) < 0.0).any():
        raise TraceError(source.where, "arrivals that go back", "rows in the order of arrival", _FIX)
    return StreamedTrace(
        name=stated.name,
        provenance=stated.provenance,
        digest=stated.digest,
        requests_count=len(arrival_s),
        span_s=float(arrival_s[-1]),
        source=source,
        expert_load=stated.expert_load,
    )


def _file(source: TraceSource) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(source.data))
