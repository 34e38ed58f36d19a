"""Columns of a native Parquet file, checked value by value and widened to TRACE_SCHEMA without rounding."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import TraceError
from replay.ingress.parsed import ARRIVAL_WANTED, LARGEST_S, MAX_TOKENS, TOKENS_WANTED
from replay.ingress.source import TraceSource
from replay.ingress.trace import TRACE_SCHEMA


def parquet_rows(source: TraceSource) -> pa.Table:
    """Return the file's columns in the types of TRACE_SCHEMA.

    Raises:
        TraceError: damaged pages, a repeated column, a type that would need rounding, or a value out of range.
    """
    import pyarrow.parquet as pq

    if len(set(source.columns)) != len(source.columns):
        raise TraceError(source.where, "a column name twice", "distinct column names", "rename or remove one of them")
    try:
        table = pq.ParquetFile(pa.BufferReader(source.data)).read().replace_schema_metadata(None)
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise TraceError(source.where, "its Parquet pages are damaged", "a whole Parquet file", "copy or write the file again") from error
    return pa.table({name: checked_column(source, name, table[name].combine_chunks()) for name in table.column_names})


def checked_column(source: TraceSource, name: str, column: pa.Array, *, first_row: int = 0) -> pa.Array:
    """Return a column, or a piece of it that starts at `first_row`, in the type of TRACE_SCHEMA; errors as `parquet_rows`."""
    wanted = TRACE_SCHEMA.field(name).type
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    place = f"{source.where}: {name}"
    if not _fits(column.type, wanted):
        raise TraceError(place, f"a column of type {column.type}", str(wanted), "cast the column and write the file again")
    try:
        column = column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise TraceError(place, "integers beyond 64 bits with sign", str(wanted), "correct the rows") from error
    if name in ("prompt_tokens", "output_tokens"):
        _require(source, name, column, pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, MAX_TOKENS)), TOKENS_WANTED, first_row)
    elif name == "arrival_s":
        inside = pc.and_(pc.greater_equal(column, 0.0), pc.less_equal(column, float(LARGEST_S)))
        _require(source, name, column, pc.fill_null(inside, True), ARRIVAL_WANTED, first_row)
    elif name == "prefix_blocks" and pc.list_flatten(column).null_count:
        raise TraceError(place, "a null inside a list", "lists of 64-bit integers", "correct the rows")
    elif pa.types.is_string(wanted):
        column = pc.if_else(pc.equal(column, ""), None, column)
    return column


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a type holds the wanted values without rounding: integers and texts of any width, float64 as it is."""
    if pa.types.is_null(found):
        return True
    if pa.types.is_int64(wanted):
        return bool(pa.types.is_integer(found))
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    if pa.types.is_list(wanted):
        return bool((pa.types.is_list(found) or pa.types.is_large_list(found)) and pa.types.is_integer(found.value_type))
    return bool(found == wanted)


def _require(source: TraceSource, name: str, column: pa.Array, good: pa.Array, wanted: str, first_row: int) -> None:
    """Raise about the first row that is not good (null counts as not good)."""
    row = pc.index(pc.fill_null(good, False), False).as_py()
    if row >= 0:
        value = column[row].as_py()
        got = f"{name} is {'missing' if value is None else value}"
        raise TraceError(source.at_row(first_row + row), got, wanted, "correct the value or remove the row")
