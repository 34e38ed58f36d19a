"""Rows as a file states them -> `Trace`; slices and generated arrivals. Each change is explicit and recorded in the provenance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import SpecError, TraceError
from replay.ingress.clock import NS_PER_S, TICK_NS, format_ns, shift_time
from replay.ingress.parsed import LARGEST_S, ParsedRows
from replay.ingress.source import TraceSource
from replay.ingress.trace import Trace, build_trace
from replay.provenance import ORIGIN_STATED_ON_IMPORT, TraceKind, TraceProvenance
from replay.seeds import stream

FAILED = "failed_zero_tokens"
ZERO_PROMPT = "zero_prompt_tokens"
ZERO_OUTPUT = "zero_output_tokens"
OUTSIDE_SLICE = "outside_slice"

_COARSE_SHARE = 0.5  # of rows that share the arrival of the row before: from here on the clock's step shapes bursts more than users do


def normalize(parsed: ParsedRows, source: TraceSource, name: str) -> Trace:
    """Return the trace of parsed rows: failed rows set aside, sorted by arrival (ties in file order), arrivals from the first kept row.

    Raises:
        TraceError: no row is left, an id repeats or is missing in some rows, or only some rows have an arrival.
    """
    table = _with_checked_ids(parsed)
    kept, set_aside = _set_failures_aside(table, source)
    kept, arrival_s, first, order_notes = _order(kept, parsed)
    columns = {column: kept[column] for column in kept.column_names if column not in ("arrival_ns", "arrival_s")}
    if "request_id" not in columns:
        columns["request_id"] = _made_ids(kept.num_rows)
    if arrival_s is not None:
        columns["arrival_s"] = pa.array(arrival_s)
    requests = pa.table(columns)
    _check_prefix_blocks(requests, parsed, source)
    load = parsed.stated.expert_load if parsed.stated else None
    provenance = _provenance(parsed, source, set_aside, first, order_notes)
    trace = build_trace(name=name, requests=requests, provenance=provenance, expert_load=load)
    if parsed.stated and parsed.stated.digest not in (None, trace.digest):
        got = "rows that differ from the digest written with them"
        raise TraceError(source.where, got, "the rows as they were written", "copy or import the trace again")
    return trace


def slice_trace(trace: Trace, *, start_s: float | None = None, end_s: float | None = None, max_requests: int | None = None) -> Trace:
    """Return the requests that arrive in [start_s, end_s), at most the first `max_requests` of them, with arrivals from the first kept.

    Raises:
        SpecError: no bound, an empty or not finite range, or nothing inside it.
        TraceError: time bounds on a trace without arrivals.
    """
    _check_bounds(trace, start_s, end_s, max_requests)
    rows = np.arange(trace.requests.num_rows)
    if start_s is not None or end_s is not None:
        arrival_s = trace.requests["arrival_s"].to_numpy()
        inside = (arrival_s >= (-np.inf if start_s is None else start_s)) & (arrival_s < (np.inf if end_s is None else end_s))
        rows = rows[inside]
    rows = rows[:max_requests]
    bounds = _described_bounds(start_s, end_s, max_requests)
    if not len(rows):
        raise SpecError(f"slice of {trace.name}", f"no request in {bounds}", f"a range inside 0 to {trace.span_s:g} s", "widen the range")
    requests = trace.requests.slice(int(rows[0]), len(rows))
    offset_s = 0.0
    if trace.has_arrivals:
        arrival_s = requests["arrival_s"].to_numpy()
        offset_s = float(arrival_s[0])
        requests = requests.set_column(1, "arrival_s", pa.array(arrival_s - offset_s))
    left_out = trace.requests.num_rows - len(rows)
    was = trace.provenance
    of_whole = ("the expert load is that of the whole trace",) if trace.expert_load is not None and left_out else ()
    provenance = replace(
        was,
        rows_kept=len(rows),
        set_aside=_added(was.set_aside, OUTSIDE_SLICE, left_out),
        recorded_at=shift_time(was.recorded_at, offset_s) if was.recorded_at and offset_s else was.recorded_at,
        notes=(*was.notes, f"slice: {bounds}" + (f"; arrivals rebased by {offset_s!r} s" if offset_s else ""), *of_whole),
    )
    return build_trace(name=trace.name, requests=requests, provenance=provenance, expert_load=trace.expert_load)


def with_poisson_arrivals(trace: Trace, *, rate_per_s: float, seed: int) -> Trace:
    """Return a lengths-only trace with Poisson arrivals (exponential gaps, the first at 0, on a 100 ns grid); kind `reconstructed`.

    Raises:
        TraceError: the trace has arrivals of its own.
        SpecError: the rate is not a finite positive number.
    """
    if trace.has_arrivals:
        fix = "replay it as it is, or give lengths only"
        raise TraceError(trace.name, "a trace that has arrivals", "a lengths-only trace (recorded arrivals are never replaced)", fix)
    require_positive("rate_per_s", rate_per_s)
    if trace.requests.num_rows / rate_per_s > LARGEST_S:
        raise SpecError("rate_per_s", f"the value {rate_per_s}", f"a trace of at most {LARGEST_S} s", "raise the rate")
    gaps_s = stream(seed, "ingress/poisson-arrivals").exponential(1.0 / rate_per_s, trace.requests.num_rows - 1)
    requests = trace.requests.set_column(1, "arrival_s", pa.array(arrivals_on_grid(gaps_s)))
    was = trace.provenance
    kind: TraceKind = "synthetic" if was.kind == "synthetic" else "reconstructed"
    note = f"arrivals generated: Poisson, {rate_per_s!r} requests per second, seed {seed}"
    provenance = replace(was, kind=kind, notes=(*was.notes, note))
    return build_trace(name=trace.name, requests=requests, provenance=provenance, expert_load=trace.expert_load)


def stated_as_recorded(trace: Trace, *, origin: str) -> Trace:
    """Return a trace of unstated origin as a recording, on somebody's word: `origin` says where it was recorded.

    Raises:
        TraceError: its own provenance says that it is synthetic, or that its arrivals were derived or are missing.
    """
    was = trace.provenance
    if was.kind == "synthetic" or not trace.has_arrivals or any(note.startswith("arrivals generated") for note in was.notes):
        got = f"a {was.kind} trace" + ("" if trace.has_arrivals else " without arrivals")
        raise TraceError(trace.name, got, "recorded arrivals and lengths of unstated origin", "leave the origin out")
    notes = (*was.notes, f"{ORIGIN_STATED_ON_IMPORT}; before: {was.kind}, {was.origin}")
    return replace(trace, provenance=replace(was, kind="recorded", origin=origin, notes=notes))


def arrivals_on_grid(gaps_s: np.ndarray) -> np.ndarray:
    """Return arrivals [gaps + 1] from gaps [gaps], the first at 0, rounded to 100 ns."""
    ticks: np.ndarray = np.rint(np.concatenate([[0.0], np.cumsum(gaps_s)]) * (NS_PER_S // TICK_NS))
    return ticks / (NS_PER_S // TICK_NS)


def require_positive(name: str, value: float) -> None:
    """Raise SpecError unless a figure is a finite positive number."""
    if not (isinstance(value, int | float) and np.isfinite(value) and value > 0):
        raise SpecError(name, f"the value {value!r}", "a finite number > 0", "correct it")


def _with_checked_ids(parsed: ParsedRows) -> pa.Table:
    table = parsed.table
    if "request_id" not in table.column_names:
        return table
    ids = table["request_id"].combine_chunks()
    if ids.null_count == len(ids):
        return table.drop_columns(["request_id"])
    if ids.null_count:
        row = pc.index(pc.is_null(ids), True).as_py()
        raise TraceError(parsed.place(row), "the row has no request_id", "an id in every row or in none", "add it")
    if pc.count_distinct(ids).as_py() < len(ids):
        row, text = _first_repeated(ids)
        raise TraceError(
            parsed.place(row), f"request_id {text[:40]!r} stands in an earlier row too", "distinct ids", "remove or rename one"
        )
    return table


def _first_repeated(ids: pa.Array) -> tuple[int, str]:
    seen: set[str] = set()
    for row, text in enumerate(ids.to_pylist()):
        if text in seen:
            return row, text
        seen.add(text)
    raise AssertionError("called without a repeated id")


def _set_failures_aside(table: pa.Table, source: TraceSource) -> tuple[pa.Table, tuple[tuple[str, int], ...]]:
    """Return the table with a column `row` (position in the file) and without rows of zero length, and the counts in reading order."""
    table = table.append_column("row", pa.array(np.arange(table.num_rows)))
    no_prompt = table["prompt_tokens"].to_numpy() == 0
    no_output = table["output_tokens"].to_numpy() == 0
    masks = {FAILED: no_prompt & no_output, ZERO_PROMPT: no_prompt & ~no_output, ZERO_OUTPUT: ~no_prompt & no_output}
    found = sorted((int(np.argmax(mask)), reason, int(mask.sum())) for reason, mask in masks.items() if mask.any())
    good = ~(no_prompt | no_output)
    if not good.any():
        got = "no row has both prompt and output tokens"
        raise TraceError(source.where, got, "at least one completed request", "check how the file was produced")
    kept = table if good.all() else table.filter(pa.array(good))
    return kept, tuple((reason, rows) for _, reason, rows in found)


def _order(kept: pa.Table, parsed: ParsedRows) -> tuple[pa.Table, np.ndarray | None, float | None, tuple[str, ...]]:
    """Return the rows by arrival, arrivals in seconds from the first (None without), the first arrival in its own clock, and notes."""
    column = next((name for name in ("arrival_ns", "arrival_s") if name in kept.column_names), None)
    if column is None or kept[column].null_count == kept.num_rows:
        return kept, None, None, ("the file has lengths only: arrivals must be generated",)
    if kept[column].null_count:
        row = pc.index(pc.is_null(kept[column]), True).as_py()
        place = parsed.place(kept["row"][row].as_py())
        raise TraceError(place, "the row has no arrival_s", "an arrival in every row or in none", "add it or remove the row")
    arrivals = kept[column].to_numpy()
    notes: list[str] = []
    late = int((arrivals[1:] < arrivals[:-1]).sum())
    if late:
        order = np.argsort(arrivals, kind="stable")
        kept, arrivals = kept.take(pa.array(order)), arrivals[order]
        notes.append(f"{late} rows arrived before the row above them; the rows were sorted by arrival")
    first = arrivals[0].item()
    since_first = arrivals - first
    return kept, since_first / NS_PER_S if column == "arrival_ns" else since_first + 0.0, first, (*notes, *_tie_notes(arrivals, parsed))


def _tie_notes(arrivals: np.ndarray, parsed: ParsedRows) -> tuple[str, ...]:
    ties = int((arrivals[1:] == arrivals[:-1]).sum())
    if not ties or parsed.stated:
        return ()
    kept_order = f"{ties} rows share the arrival of the row before; ties keep file order"
    if ties < _COARSE_SHARE * len(arrivals):
        return (kept_order,)
    return (kept_order, "the recording clock is coarse: short-window peaks and the spread of gaps reflect its step")


def _provenance(
    parsed: ParsedRows,
    source: TraceSource,
    set_aside: tuple[tuple[str, int], ...],
    first: float | None,
    order_notes: tuple[str, ...],
) -> TraceProvenance:
    """Return the provenance of the kept rows; a native file's own statement is continued, not replaced."""
    relative = parsed.clock == "relative" and first is not None and first != 0
    first_s = (first or 0) / NS_PER_S if "arrival_ns" in parsed.table.column_names else first
    rebased = (f"arrivals rebased by {first_s!r} s to the first kept request",) if relative else ()
    rows_aside = sum(rows for _, rows in set_aside)
    if parsed.stated:
        stated = parsed.stated.provenance
        for reason, rows in set_aside:
            stated = replace(stated, set_aside=_added(stated.set_aside, reason, rows))
        recorded_at = shift_time(stated.recorded_at, first_s or 0.0) if stated.recorded_at and rebased else stated.recorded_at
        changed = tuple(note for note in (*order_notes, *rebased) if note not in stated.notes)
        return replace(stated, rows_kept=stated.rows_kept - rows_aside, recorded_at=recorded_at, notes=(*stated.notes, *changed))
    return TraceProvenance(
        kind=parsed.kind,
        origin=f"{parsed.format_name}, {source.file_name}",
        source_digest=source.digest,
        rows_read=parsed.table.num_rows,
        rows_kept=parsed.table.num_rows - rows_aside,
        set_aside=set_aside,
        recorded_at=format_ns(int(first), utc=parsed.clock == "utc") if first is not None and parsed.clock != "relative" else None,
        prefix_block_tokens=parsed.prefix_block_tokens,
        notes=(*parsed.notes, *order_notes, *rebased),
    )


def _check_prefix_blocks(requests: pa.Table, parsed: ParsedRows, source: TraceSource) -> None:
    if parsed.prefix_block_tokens is None or "prefix_blocks" not in requests.column_names:
        return
    room_tokens = pc.multiply(pc.list_value_length(requests["prefix_blocks"]), parsed.prefix_block_tokens)
    limit_tokens = pc.add(requests["prompt_tokens"], parsed.prefix_block_tokens - 1)
    if pc.any(pc.greater(room_tokens, limit_tokens)).as_py():
        got = f"more prefix blocks than the prompt fills ({parsed.prefix_block_tokens} tokens each)"
        raise TraceError(source.where, got, "at most one for each started block", "correct prefix_block_tokens or the lists")


def _made_ids(rows_count: int) -> pa.Array:
    return pc.binary_join_element_wise("r", pc.cast(pa.array(np.arange(rows_count)), pa.string()), "")


def _added(set_aside: tuple[tuple[str, int], ...], reason: str, rows: int) -> tuple[tuple[str, int], ...]:
    """Return the counts with rows added under a reason."""
    if not rows:
        return set_aside
    counts = dict(set_aside)
    counts[reason] = counts.get(reason, 0) + rows
    return tuple(counts.items())


def _check_bounds(trace: Trace, start_s: float | None, end_s: float | None, max_requests: int | None) -> None:
    place = f"slice of {trace.name}"
    if start_s is None and end_s is None and max_requests is None:
        raise SpecError(place, "no bound", "a start, an end or a number of requests", "give one of them")
    for bound_s in (start_s, end_s):
        if bound_s is not None and not np.isfinite(bound_s):
            raise SpecError(place, f"the bound {bound_s}", "finite seconds", "correct it")
        if bound_s is not None and not trace.has_arrivals:
            raise TraceError(place, "time bounds on a trace without arrivals", "a number of requests", "slice by number of requests")
    if start_s is not None and end_s is not None and start_s >= end_s:
        raise SpecError(place, f"start {start_s} s and end {end_s} s", "start < end", "swap or correct them")
    if max_requests is not None and max_requests < 1:
        raise SpecError(place, f"{max_requests} requests", "at least 1", "correct the number")


def _described_bounds(start_s: float | None, end_s: float | None, max_requests: int | None) -> str:
    parts = []
    if start_s is not None or end_s is not None:
        parts.append(f"arrivals in [{0.0 if start_s is None else start_s!r}, {'the end' if end_s is None else repr(end_s)}) s")
    if max_requests is not None:
        parts.append(f"the first {max_requests} requests")
    return ", ".join(parts)
