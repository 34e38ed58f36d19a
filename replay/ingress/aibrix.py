"""AIBrix workload files: JSON Lines with millisecond timestamps and a list of requests on each line."""

from __future__ import annotations

import pyarrow as pa

from replay.ingress.mooncake import milliseconds_ns
from replay.ingress.parsed import ParsedRows, unused_note
from replay.ingress.records import GatheredRows, Line, read_lines
from replay.ingress.source import Encoding, TraceSource

_LENGTHS = ("Prompt Length", "Output Length")


class AibrixReader:
    """Reads ``{"timestamp": ms, "requests": [{"Prompt Length": n, "Output Length": n}, ...]}``."""

    label = "AIBrix workload JSON Lines"
    encodings: tuple[Encoding, ...] = ("json_lines",)
    required: tuple[str, ...] = ("timestamp", "requests")

    def read(self, source: TraceSource) -> ParsedRows:
        """Return one row for each request of each line.

        Such files come from a workload generator that lays recorded lengths on a designed load, so they count as reconstructed.
        """
        rows = GatheredRows()
        for line in read_lines(source):
            line.require(self.required)
            arrival_ns = milliseconds_ns(line)
            rows.note_unused(line.record, self.required)
            for request in _requests(line):
                rows.add(request, arrival_ns, prompt_key="Prompt Length", output_key="Output Length")
                rows.note_unused(request.record, _LENGTHS)
        generated = "arrivals follow the load that a workload generator laid out"
        return ParsedRows(
            table=pa.table(rows.to_arrow()),
            format_name=self.label,
            kind="reconstructed",
            place=rows.places.__getitem__,
            notes=("timestamps were milliseconds", generated, *unused_note(list(rows.unused))),
        )


def _requests(line: Line) -> list[Line]:
    requests = line.record["requests"]
    if not isinstance(requests, list) or not all(isinstance(request, dict) for request in requests):
        raise line.bad("requests", "a list of objects")
    lines = [Line(place=line.place, record=request) for request in requests]
    for request in lines:
        request.require(_LENGTHS)
    return lines
