"""Rows of a result file, one request at a time -> MEASURED_SCHEMA: figures checked, derived ones filled in, times rebased."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import TraceError
from replay.ingress.measured.measured_run import (
    COMPLETED,
    GAPS_SCHEMA,
    MEASURED_SCHEMA,
    METRICS,
    ZERO_TOKENS,
    MeasuredFacts,
    MeasuredRun,
    ReportedFigure,
)

MAX_TOKENS = 2**31 - 1
_PACKED_ROWS = 1 << 16
LONGEST_S = 10**9
"""Largest duration taken for one: over thirty years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request as a file states it, in seconds; what it does not state is None."""

    request_id: str
    status: str = COMPLETED
    arrival_s: float | None = None
    """On the file's own clock."""
    sent_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    preemptions_per_request: int | None = None
    prefix_hit_tokens: int | None = None
    gaps_s: Sequence[float] = ()


class Rows:
    """Growing columns of MEASURED_SCHEMA; rows are packed as they come, so that ten million need no ten million objects each."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in MEASURED_SCHEMA.names}
        self._packed: list[pa.Table] = []
        self._count = 0
        self._gap_rows, self._gaps = array("q"), array("d")

    def __len__(self) -> int:
        return self._count

    def add(self, row: Row) -> None:
        """Add a request; one without a single output token is no success, and only completed ones keep their metrics."""
        if row.status == COMPLETED and row.output_tokens == 0:
            row = replace(row, status=ZERO_TOKENS)
        done = row.status == COMPLETED
        for name, values in self._columns.items():
            values.append(None if name in METRICS and not done else getattr(row, name))
        if done and row.gaps_s:
            self._gap_rows.extend([self._count] * len(row.gaps_s))
            self._gaps.extend(row.gaps_s)
        self._count += 1
        if len(self._columns["request_id"]) == _PACKED_ROWS:
            self._pack()

    def to_run(self, facts: MeasuredFacts, reported: tuple[ReportedFigure, ...] = ()) -> MeasuredRun:
        """Return the run, its times counted from the first arrival."""
        self._pack()
        table = pa.concat_tables(self._packed)
        gaps = pa.table({"row": pa.array(np.array(self._gap_rows)), "gap_s": pa.array(np.array(self._gaps))}, schema=GAPS_SCHEMA)
        return measured_run(table, facts, reported=reported, token_gaps=gaps if gaps.num_rows else None)

    def _pack(self) -> None:
        self._packed.append(pa.table(self._columns, schema=MEASURED_SCHEMA))
        self._columns = {name: [] for name in MEASURED_SCHEMA.names}


def measured_run(
    table: pa.Table, facts: MeasuredFacts, *, reported: tuple[ReportedFigure, ...] = (), token_gaps: pa.Table | None = None
) -> MeasuredRun:
    """Return the run of a table in the columns of MEASURED_SCHEMA, whose times are on any clock."""
    times = [name for name in ("arrival_s", "sent_s") if table[name].null_count < table.num_rows]
    if times:
        zero = min(float(pc.min(table[name]).as_py()) for name in times)
        for name in times:
            table = table.set_column(table.schema.get_field_index(name), name, pc.subtract(table[name], zero))
    return MeasuredRun(requests=table.cast(MEASURED_SCHEMA), facts=facts, reported=reported, token_gaps=token_gaps)


def summary_run(facts: MeasuredFacts, reported: Sequence[ReportedFigure]) -> MeasuredRun:
    """Return the run of a file that holds percentiles and no requests."""
    return MeasuredRun(requests=MEASURED_SCHEMA.empty_table(), facts=facts, reported=tuple(reported), is_summary=True)


def seconds(value: Any, place: str, name: str, per_s: float = 1.0) -> float | None:
    """Return a duration or moment in seconds of a figure in another unit, of which `per_s` make a second; None where it is null.

    Raises:
        TraceError: it is no finite number, below 0, or over LONGEST_S for a duration.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise TraceError(place, f"{name} is {_shown(value)}", "a number of at least 0, or null", "correct the value")
    found = value / per_s
    if found > 100 * LONGEST_S:
        raise TraceError(place, f"{name} is {_shown(value)}", "a time in the unit that the file declares", "correct the value or its unit")
    return found


def tokens(value: Any, place: str, name: str) -> int | None:
    """Return a token count; ``12.0`` and the text ``"12"`` are whole (64-bit integers are texts in some JSON), None where it is null.

    Raises:
        TraceError: it is no whole number from 0 to 2^31 - 1.
    """
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal() and len(value) < 12:
        value = int(value)
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not 0 <= value <= MAX_TOKENS:
        raise TraceError(place, f"{name} is {_shown(value)}", f"a whole number from 0 to {MAX_TOKENS}", "correct the value")
    return int(value)


def time_per_token(e2e_s: float | None, ttft_s: float | None, output_tokens: int | None) -> float | None:
    """Return (e2e - ttft) / (output tokens - 1), or None where a part is missing or there is one token."""
    if e2e_s is None or ttft_s is None or output_tokens is None or output_tokens < 2:
        return None
    return max(0.0, e2e_s - ttft_s) / (output_tokens - 1)


def rate(value: Any, place: str, name: str) -> float | None:
    """Return a request rate: a number above 0, ``"inf"`` or Infinity for all at once, None where it is null.

    Raises:
        TraceError: it is something else.
    """
    if value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not found > 0:
        raise TraceError(place, f"{name} is {_shown(value)}", 'a rate above 0, or "inf"', "correct the value")
    return found


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."
