"""Whole columns of a Parquet table of requests -> MEASURED_SCHEMA: what `rows` does request by request, a million at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import TraceError
from replay.ingress.measured.content import Content
from replay.ingress.measured.measured_run import COMPLETED, MEASURED_SCHEMA, METRICS, ZERO_TOKENS
from replay.ingress.measured.rows import LONGEST_S, MAX_TOKENS

Fields = Mapping[str, tuple[str, float]]
"""By field of MEASURED_SCHEMA: the column, and how many of its units make a second (0: it is no time)."""
_TIMES = ("arrival_s", "sent_s", *METRICS)
_COUNTS = ("prompt_tokens", "output_tokens", "preemptions_per_request", "prefix_hit_tokens")


def requests_of_columns(content: Content, table: pa.Table, fields: Fields, status_of: Callable[[object], str]) -> pa.Table:
    """Return the requests of a table; `status_of` tells what a cell of its status column means.

    Raises:
        TraceError: a value cannot be used.
    """
    given = {field: (name, table[name].combine_chunks(), per_s) for field, (name, per_s) in fields.items()}
    columns = {field: _times(content, *given[field]) for field in _TIMES if field in given}
    columns |= {field: _counts(content, *given[field][:2]) for field in _COUNTS if field in given}
    columns["request_id"] = _ids(content, *given["request_id"][:2]) if "request_id" in given else _places(table.num_rows)
    columns["status"] = _statuses(table.num_rows, given["status"][1] if "status" in given else None, status_of)
    found = {field.name: columns.get(field.name, pa.nulls(table.num_rows, field.type)) for field in MEASURED_SCHEMA}
    if "tpot_s" not in given:
        found["tpot_s"] = _time_per_token(found)
    empty = pc.and_(pc.equal(found["status"], COMPLETED), pc.fill_null(pc.equal(found["output_tokens"], 0), False))
    found["status"] = pc.if_else(empty, ZERO_TOKENS, found["status"])
    done = pc.equal(found["status"], COMPLETED)
    found |= {name: pc.if_else(done, found[name], pa.scalar(None, pa.float64())) for name in METRICS}
    return pa.table(found, schema=MEASURED_SCHEMA)


def _times(content: Content, name: str, column: pa.Array, per_s: float) -> pa.Array:
    values = _cast(content, name, column, pa.float64())
    good = pc.and_(pc.is_finite(values), pc.and_(pc.greater_equal(values, 0.0), pc.less_equal(values, 100.0 * LONGEST_S * per_s)))
    _require(content, name, values, good, "a number of at least 0 in the unit that the name declares, or null")
    return pc.divide(values, per_s)


def _counts(content: Content, name: str, column: pa.Array) -> pa.Array:
    values = _cast(content, name, column, pa.int64())
    good = pc.and_(pc.greater_equal(values, 0), pc.less_equal(values, MAX_TOKENS))
    _require(content, name, values, good, f"a whole number from 0 to {MAX_TOKENS}")
    return values


def _cast(content: Content, name: str, column: pa.Array, wanted: pa.DataType) -> pa.Array:
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)
    try:
        if is_number:
            return column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise _bad(content, name, str(error).splitlines()[0][:80], str(wanted)) from error
    raise _bad(content, name, f"it is a column of {column.type}", str(wanted))


def _ids(content: Content, name: str, column: pa.Array) -> pa.Array:
    names = column.cast(pa.string())
    _require(content, name, names, pc.is_valid(names), "a name for each request")
    return names


def _places(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64()).cast(pa.string())


def _statuses(count: int, column: pa.Array | None, status_of: Callable[[object], str]) -> pa.Array:
    if column is None:
        return pa.array([COMPLETED], pa.string()).take(pa.array([0] * count, pa.int64()))
    encoded = column.dictionary_encode()
    words = pa.array([*map(status_of, encoded.dictionary.to_pylist()), status_of(None)], pa.string())
    return words.take(pc.fill_null(encoded.indices.cast(pa.int64()), len(words) - 1))


def _time_per_token(found: Mapping[str, pa.Array]) -> pa.Array:
    """Return (e2e - ttft) / (output tokens - 1), null where a part is missing or there is one token."""
    several = pc.greater(found["output_tokens"], 1)
    gaps = pc.if_else(several, pc.subtract(found["output_tokens"], 1), pa.scalar(None, pa.int64()))
    decode = pc.subtract(found["e2e_s"], found["ttft_s"])
    return pc.divide(pc.if_else(pc.less(decode, 0.0), 0.0, decode), gaps.cast(pa.float64()))


def _require(content: Content, name: str, values: pa.Array, good: pa.Array, wanted: str) -> None:
    """Raise about the first row whose value is there and not good."""
    row = pc.index(pc.fill_null(good, not pa.types.is_string(values.type)), False).as_py()
    if row >= 0:
        value = values[row].as_py()
        raise TraceError(f"{content.where}: row {row + 1}", f"{name} is {'missing' if value is None else value}", wanted, "correct the row")


def _bad(content: Content, name: str, got: str, wanted: str) -> TraceError:
    return TraceError(f"{content.where}: {name}", got, f"a column of {wanted}", "cast the column and write the file again")
