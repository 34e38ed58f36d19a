"""The load of a sweep: a trace sent at another rate, or by another number of clients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from replay.errors import SpecError
from replay.ingress.sending import scaled_trace, with_load
from replay.ingress.trace import Trace
from replay.provenance import Load

AxisName = Literal["rate_ratio", "concurrency"]
FURTHEST = 1024.0
"""How far from the recorded rate, in either direction, a sustainable one is sought."""
MOST_CLIENTS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What is varied: `rate_ratio` (1 = as recorded, 2 = twice as fast), or `concurrency`: clients that each send their next request when
    the last one ends, whatever the recorded arrivals (closed loop; latencies count from the sending).
    """

    name: AxisName

    def trace_at(self, trace: Trace, value: float) -> Trace:
        """Return the trace under a load.

        Raises:
            TraceError: the trace has no arrivals to scale.
            SpecError: the value is out of its range.
        """
        if self.name == "rate_ratio":
            return scaled_trace(trace, rate_ratio=value)
        column = trace.requests.schema.field("arrival_s")
        never = pa.nulls(trace.requests.num_rows, column.type)
        closed = replace(trace, requests=trace.requests.set_column(trace.requests.column_names.index("arrival_s"), column, never))
        return with_load(replace(closed, provenance=replace(trace.provenance, load=None)), Load(concurrency=_whole(value)))

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest value that is sought."""
        return (1.0 / FURTHEST, FURTHEST) if self.name == "rate_ratio" else (1.0, float(MOST_CLIENTS))

    def between(self, low: float, high: float) -> float | None:
        """Return the value that halves a bracket (geometrically), None where it is as narrow as is worth while: 1 %, or one client."""
        if self.name == "concurrency":
            return (
                None
                if high - low <= 1
                else float(math.floor(math.sqrt(low * high)))
                if math.floor(math.sqrt(low * high)) > low
                else low + 1
            )
        return None if high / low <= RESOLUTION else math.sqrt(low * high)


RESOLUTION = 1.01
"""Ratio of the ends of a bracket of rates at which the search ends."""


def _whole(value: float) -> int:
    if value != math.floor(value):
        raise SpecError("concurrency", f"the value {value:g}", "a whole number of clients", "correct it")
    return int(value)
