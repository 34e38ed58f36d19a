"""CSV columns as exact values: read as text, checked by pattern, cast; a bad value is named with its line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import TraceError
from replay.ingress.clock import NS_PER_S, UnreadableTimesError, times_ns
from replay.ingress.parsed import ARRIVAL_WANTED, INTEGER_WANTED, LARGEST_S, MAX_TOKENS, TOKENS_WANTED
from replay.ingress.source import TraceSource

_BLOCK_BYTES = 1 << 24
_WHOLE = r"^\d{1,10}(\.0*)?$"
_INTEGER = r"^-?\d{1,19}$"
_PLAIN_SECONDS = r"^\d{1,9}(\.\d{0,9})?$"
_DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRows:
    """The wanted columns of a CSV file, as text."""

    source: TraceSource
    table: pa.Table

    def place(self, row: int) -> str:
        """Return ``file:line`` of a 0-based data row; blank lines and line breaks inside quotes are counted."""
        return self.source.at(_line_of_row(self.source, row))

    def texts(self, name: str) -> pa.Array:
        """Return one column, one array."""
        return self.table[name].combine_chunks()

    def optional_texts(self, name: str) -> pa.Array | None:
        """Return a column in which an empty cell means missing, or None when the file has no such column."""
        if name not in self.table.column_names:
            return None
        texts = self.texts(name)
        return pc.if_else(pc.equal(texts, ""), None, texts)


def read_columns(source: TraceSource, wanted: Iterable[str]) -> CsvRows:
    """Return those of the wanted columns that the header names.

    Raises:
        TraceError: a header cell repeats or is empty, there are no rows, a row has too few or too many cells, or bytes are not UTF-8.
    """
    import pyarrow.csv as pa_csv

    _check_header(source)
    _require_utf8(source)  # also because pyarrow cannot hand over a ragged row that is no text
    columns = [name for name in source.columns if name in set(wanted)]
    ragged: list[pa_csv.InvalidRow] = []
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(pa.py_buffer(source.body)),
            read_options=pa_csv.ReadOptions(use_threads=False, column_names=list(source.columns), block_size=_BLOCK_BYTES),
            parse_options=pa_csv.ParseOptions(invalid_row_handler=lambda row: _keep_first(ragged, row), newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise TraceError(source.where, f"it is not valid CSV ({reason})", "comma-separated rows", "mend or re-export the file") from error
    if ragged:
        row = ragged[0]
        place = source.at(_line_of_row(source, row.number - 1))
        got = f"{row.actual_columns} cells where the header has {row.expected_columns}"
        raise TraceError(place, got, "one cell for each column", "mend or remove the row (the file may be cut off)")
    return CsvRows(source=source, table=table)


def tokens(rows: CsvRows, name: str) -> pa.Array:
    """Return a column of whole, non-negative token counts as int64; ``12.0`` is whole, ``12.5`` is not."""
    texts = rows.texts(name)
    _require(rows, name, pc.match_substring_regex(texts, _WHOLE), TOKENS_WANTED)
    if pc.any(pc.match_substring(texts, ".")).as_py():
        texts = pc.replace_substring_regex(texts, r"\..*$", "")
    counts = pc.cast(texts, pa.int64())
    _require(rows, name, pc.less_equal(counts, MAX_TOKENS), TOKENS_WANTED)
    return counts


def optional_integers(rows: CsvRows, name: str) -> pa.Array | None:
    """Return a column of 64-bit integers, empty cells as null, or None when the file has no such column."""
    texts = rows.optional_texts(name)
    if texts is None:
        return None
    _require(rows, name, pc.fill_null(pc.match_substring_regex(texts, _INTEGER), True), INTEGER_WANTED)
    try:
        return pc.cast(texts, pa.int64())
    except pa.ArrowInvalid as error:
        row = next(row for row, text in enumerate(texts.to_pylist()) if text and not -(2**63) <= int(text) < 2**63)
        raise _bad_value(rows, name, row, INTEGER_WANTED) from error


def seconds_ns(rows: CsvRows, name: str) -> tuple[pa.Array, tuple[str, ...]]:
    """Return a column of seconds as whole nanoseconds, and a note where some had finer digits and were rounded.

    Decimal text is read as decimal, so no figure passes through a float.
    """
    texts = rows.texts(name)
    plain = pc.match_substring_regex(texts, _PLAIN_SECONDS)
    whole = pc.cast(pc.replace_substring_regex(pc.if_else(plain, texts, "0"), r"\..*$", ""), pa.int64())
    fraction = pc.extract_regex(pc.if_else(plain, texts, "0"), r"^\d+\.?(?P<digits>\d*)$").field("digits")
    exact = pc.add(pc.multiply(whole, NS_PER_S), pc.cast(pc.utf8_rpad(fraction, 9, "0"), pa.int64()))
    odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
    if not len(odd):
        return exact, ()
    nanoseconds = exact.to_numpy(zero_copy_only=False).copy()
    rounded = 0
    for row in odd.tolist():
        value = _decimal_seconds(rows, name, row)
        nanoseconds[row] = round(value * NS_PER_S)
        rounded += nanoseconds[row] != value * NS_PER_S
    note = (f"{rounded} arrivals had digits beyond 1 ns and were rounded to it",) if rounded else ()
    return pa.array(nanoseconds), note


def seconds(rows: CsvRows, name: str) -> pa.Array:
    """Return a column of seconds as the nearest float64, unrounded."""
    texts = rows.texts(name)
    _require(rows, name, pc.match_substring_regex(texts, _DECIMAL), ARRIVAL_WANTED)
    values = pc.cast(texts, pa.float64())
    _require(rows, name, pc.and_(pc.greater_equal(values, 0.0), pc.less_equal(values, float(LARGEST_S))), ARRIVAL_WANTED)
    return values


def timestamps_ns(rows: CsvRows, name: str) -> tuple[pa.Array, bool]:
    """Return a column of calendar times as nanoseconds since 1970, and whether they carry zone offsets."""
    texts = rows.texts(name)
    try:
        return times_ns(texts)
    except UnreadableTimesError as error:
        wanted = "a time like 2023-11-16 18:15:46.6805900, with or without a zone offset"
        if error.row is not None:
            raise _bad_value(rows, name, error.row, wanted) from error
        zoned = pc.match_substring_regex(texts, r"(Z|[+-]\d{2}:?\d{2})$")
        row = _first_false(pc.equal(zoned, zoned[0]))
        got = f"{name} is {_shown(texts[row].as_py())}, but the rows before {'have' if zoned[0].as_py() else 'lack'} a zone offset"
        raise TraceError(rows.place(row), got, "a zone offset in every row or in none", "export the file again in one zone") from error


def _check_header(source: TraceSource) -> None:
    seen: set[str] = set()
    for cell in source.columns:
        if not cell or cell in seen:
            got = f"the column {cell!r} twice in the header" if cell else "an empty column name in the header"
            raise TraceError(source.at(source.body_line - 1), got, "distinct column names", "correct the header line")
        seen.add(cell)
    if not bytes(source.body[:4096]).strip() and not bytes(source.body).strip():
        raise TraceError(source.where, "a header without rows", "at least one request", "check how the file was produced")


def _keep_first(ragged: list[object], row: object) -> str:
    if not ragged:
        ragged.append(row)
    return "skip"


def _require_utf8(source: TraceSource) -> None:
    try:
        source.data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = source.data.count(b"\n", 0, error.start) + 1
        raise TraceError(source.at(line), f"byte {error.start} is not UTF-8", "a CSV file in UTF-8", "save the file as UTF-8") from error


def _line_of_row(source: TraceSource, row: int) -> int:
    """Return the 1-based line on which a 0-based data row starts, as the csv module counts lines."""
    reader = csv.reader(io.StringIO(bytes(source.body).decode("utf-8", errors="replace"), newline=""))
    start = data_rows = 0
    try:
        for cells in reader:
            if cells:
                if data_rows == row:
                    break
                data_rows += 1
            start = reader.line_num
    except csv.Error:  # a cell longer than the csv module takes: the rows up to it are counted one a line
        start += row - data_rows
    return source.body_line + start


def _require(rows: CsvRows, name: str, good: pa.Array, wanted: str) -> None:
    if not pc.all(good, skip_nulls=False).as_py():
        raise _bad_value(rows, name, _first_false(good), wanted)


def _bad_value(rows: CsvRows, name: str, row: int, wanted: str) -> TraceError:
    got = f"{name} is {_shown(rows.texts(name)[row].as_py())}"
    return TraceError(rows.place(row), got, wanted, "correct the value or remove the row")


def _decimal_seconds(rows: CsvRows, name: str, row: int) -> Decimal:
    text = rows.texts(name)[row].as_py()
    if not re.fullmatch(_DECIMAL, text, flags=re.ASCII) or not 0 <= (value := Decimal(text)) <= LARGEST_S:
        raise _bad_value(rows, name, row, ARRIVAL_WANTED)
    return value


def _first_false(good: pa.Array) -> int:
    return int(pc.index(good, False).as_py())


def _shown(text: str) -> str:
    """Return a value for a message: quoted, shortened, or the word for an empty one."""
    if not text:
        return "empty"
    return repr(text if len(text) <= 40 else text[:37] + "...")
