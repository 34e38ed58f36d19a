"""Vidur's processed traces: CSV with arrivals in seconds from the first, or with lengths only."""

from __future__ import annotations

import pyarrow as pa

from replay.ingress.columns import read_columns, seconds_ns, tokens
from replay.ingress.parsed import ParsedRows, unused_note
from replay.ingress.source import Encoding, TraceSource


class VidurReader:
    """Reads ``[arrived_at,]num_prefill_tokens,num_decode_tokens[,...]``."""

    label = "Vidur CSV"
    encodings: tuple[Encoding, ...] = ("csv",)
    required: tuple[str, ...] = ("num_prefill_tokens", "num_decode_tokens")

    def read(self, source: TraceSource) -> ParsedRows:
        """Return the rows; without `arrived_at` they have no arrivals."""
        used = ("arrived_at", *self.required)
        rows = read_columns(source, used)
        columns = {"prompt_tokens": tokens(rows, "num_prefill_tokens"), "output_tokens": tokens(rows, "num_decode_tokens")}
        notes: tuple[str, ...] = ()
        timed = "arrived_at" in source.columns
        if timed:
            columns["arrival_ns"], notes = seconds_ns(rows, "arrived_at")
        return ParsedRows(
            table=pa.table(columns),
            format_name=self.label if timed else "Vidur CSV, lengths only",
            kind="recorded" if timed else "reconstructed",
            place=rows.place,
            notes=(*notes, *unused_note([name for name in source.columns if name not in used])),
        )
