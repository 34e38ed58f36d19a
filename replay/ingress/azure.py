"""Azure LLM inference traces, 2023 and 2024: CSV with calendar times, with or without zone offsets."""

from __future__ import annotations

import pyarrow as pa

from replay.ingress.columns import read_columns, timestamps_ns, tokens
from replay.ingress.parsed import ParsedRows, unused_note
from replay.ingress.source import Encoding, TraceSource


class AzureReader:
    """Reads ``TIMESTAMP,ContextTokens,GeneratedTokens``."""

    label = "Azure LLM CSV"
    encodings: tuple[Encoding, ...] = ("csv",)
    required: tuple[str, ...] = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

    def read(self, source: TraceSource) -> ParsedRows:
        """Return the rows; times are kept to the nanosecond as integers (the 2023 files have 7 fractional digits)."""
        rows = read_columns(source, self.required)
        arrival_ns, zoned = timestamps_ns(rows, "TIMESTAMP")
        table = pa.table(
            {
                "arrival_ns": arrival_ns,
                "prompt_tokens": tokens(rows, "ContextTokens"),
                "output_tokens": tokens(rows, "GeneratedTokens"),
            }
        )
        return ParsedRows(
            table=table,
            format_name=self.label,
            kind="recorded",
            place=rows.place,
            clock="utc" if zoned else "wall",
            notes=unused_note([name for name in source.columns if name not in self.required]),
        )
