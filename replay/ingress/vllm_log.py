"""Per-request logs of a vLLM engine: JSON Lines with two clocks that must not be mixed."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from replay.ingress.clock import NS_PER_S
from replay.ingress.parsed import ParsedRows, unused_note
from replay.ingress.records import GatheredRows, Line, read_lines
from replay.ingress.source import Encoding, TraceSource

_EARLIEST_S, _LATEST_S = 10**9, 10**10  # 2001 to 2286: tells epoch seconds from a monotonic clock and from milliseconds
_ENGINE_CLOCK = {"queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"}


class VllmLogReader:
    """Reads ``{"request_id", "input_toks", "output_toks", "arrival_time", "queued_ts", ...}``."""

    label = "vLLM request log JSON Lines"
    encodings: tuple[Encoding, ...] = ("json_lines",)
    required: tuple[str, ...] = ("request_id", "input_toks", "output_toks", "arrival_time")

    def read(self, source: TraceSource) -> ParsedRows:
        """Return the rows; arrivals come from `arrival_time` (epoch) alone, the `*_ts` are a monotonic clock and stay out."""
        rows = GatheredRows()
        ids: list[str] = []
        for line in read_lines(source):
            line.require(self.required)
            ids.append(_identity(line))
            rows.add(line, _epoch_ns(line), prompt_key="input_toks", output_key="output_toks")
            rows.note_unused(line.record, self.required)
        clocks = ("arrivals are arrival_time (epoch); the *_ts columns are another clock",) if _ENGINE_CLOCK & set(rows.unused) else ()
        return ParsedRows(
            table=pa.table({**rows.to_arrow(), "request_id": pa.array(ids, pa.string())}),
            format_name=self.label,
            kind="recorded",
            place=rows.places.__getitem__,
            clock="utc",
            notes=(*clocks, *unused_note(list(rows.unused))),
        )


def _identity(line: Line) -> str:
    text = line.text("request_id")
    if text is None:
        raise line.bad("request_id", "a text that names the request")
    return text


def _epoch_ns(line: Line) -> int:
    value = line.record["arrival_time"]
    if type(value) not in (int, Decimal) or not _EARLIEST_S <= value < _LATEST_S:
        raise line.bad("arrival_time", "seconds since 1970")
    nanoseconds: int = round(value * NS_PER_S)
    return nanoseconds
