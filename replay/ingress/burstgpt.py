"""BurstGPT traces, v1 and v3: CSV whose columns are found by name, because v3 puts two more in the middle."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from replay.ingress.columns import CsvRows, read_columns, seconds_ns, tokens
from replay.ingress.parsed import ParsedRows, unused_note
from replay.ingress.source import Encoding, TraceSource

_OPTIONAL = ("Session ID", "Total tokens", "Log Type")


class BurstGptReader:
    """Reads ``Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,Total tokens,Log Type``; timestamps are seconds."""

    label = "BurstGPT CSV"
    encodings: tuple[Encoding, ...] = ("csv",)
    required: tuple[str, ...] = ("Timestamp", "Model", "Request tokens", "Response tokens")

    def read(self, source: TraceSource) -> ParsedRows:
        """Return the rows; failed calls (no tokens either way) are still among them."""
        rows = read_columns(source, (*self.required, *_OPTIONAL))
        arrival_ns, rounded = seconds_ns(rows, "Timestamp")
        prompt, output = tokens(rows, "Request tokens"), tokens(rows, "Response tokens")
        columns = {"arrival_ns": arrival_ns, "prompt_tokens": prompt, "output_tokens": output, "model": rows.optional_texts("Model")}
        sessions = rows.optional_texts("Session ID")
        if sessions is not None:
            columns["session_id"] = sessions
        unused = [name for name in source.columns if name not in (*self.required, "Session ID", "Total tokens")]
        return ParsedRows(
            table=pa.table(columns),
            format_name=self.label,
            kind="recorded",
            place=rows.place,
            notes=(*rounded, *_total_note(rows, pc.add(prompt, output)), *_log_types_note(rows), *unused_note(unused)),
        )


def _total_note(rows: CsvRows, sums: pa.Array) -> tuple[str, ...]:
    if "Total tokens" not in rows.table.column_names:
        return ()
    differing = pc.sum(pc.not_equal(tokens(rows, "Total tokens"), sums)).as_py()
    return (f"in {differing} rows 'Total tokens' is not the sum of its parts; the parts were used",) if differing else ()


def _log_types_note(rows: CsvRows) -> tuple[str, ...]:
    if "Log Type" not in rows.table.column_names:
        return ()
    counts = pc.value_counts(rows.texts("Log Type")).to_pylist()
    listed = ", ".join(f"{entry['counts']} {entry['values'] or 'unnamed'}" for entry in sorted(counts, key=lambda entry: entry["values"]))
    return (f"log types: {listed}",)
