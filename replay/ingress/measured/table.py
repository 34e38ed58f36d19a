"""Tables of requests - CSV, JSON Lines or Parquet - whose column names declare the unit: ``ttft_ms``, ``e2e_s``, ``TTFT (ms)``.

Also the CSV files of AIBrix's regression runs, whose columns have no suffix and are seconds.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from replay.errors import TraceError
from replay.ingress.measured.columns import requests_of_columns
from replay.ingress.measured.content import Content
from replay.ingress.measured.measured_run import COMPLETED, FAILED, METRICS, STATUSES, TRUNCATED, MeasuredFacts, MeasuredRun
from replay.ingress.measured.rows import Row, Rows, measured_run, seconds, time_per_token, tokens

PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
TIMES = {
    "arrival": "arrival_s", "sent": "sent_s", "queue": "queue_s", "ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2e": "e2e_s",
    "latency": "e2e_s", "e2e_latency": "e2e_s", "request_latency": "e2e_s",
}  # fmt: skip
COUNTS = {
    "prompt_tokens": "prompt_tokens", "input_tokens": "prompt_tokens", "output_tokens": "output_tokens",
    "preemptions_per_request": "preemptions_per_request", "prefix_hit_tokens": "prefix_hit_tokens",
}  # fmt: skip
AIBRIX = frozenset(
    {"prompt_tokens", "generation_tokens", "ttft", "generation_time", "user_id", "question_id", "launch_time", "finish_time"}
)
WANTED = "columns that name their unit, such as request_id, arrival_s, prompt_tokens, output_tokens, ttft_ms, tpot_ms, e2e_s"
_UNIT = re.compile(r"(.+?)[\s_]*[\[(]?(s|ms|us|ns)[\])]?")
_SUCCESS = ("", "ok", "success", "succeeded", "true", "1", "200", COMPLETED)
_CUT = ("cancelled", "canceled", "incomplete", TRUNCATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Which column holds which field, and how many of its units make a second."""

    fields: dict[str, tuple[str, float]]
    unused: tuple[str, ...]


def is_table(names: Collection[str]) -> bool:
    """Return whether columns or keys are those of a table of requests: one of them is a latency, with its unit or without."""
    return any(_plain(name) in TIMES and TIMES[_plain(name)] in METRICS for name in names)


def read_table(content: Content) -> list[MeasuredRun]:
    """Return the run of a table.

    Raises:
        TraceError: a latency has no unit, two columns mean the same, or a value cannot be used.
    """
    if content.encoding == "parquet":
        columns = _columns(column_names(content), content.where)
        return [measured_run(_parquet_requests(content, columns), _facts(content, columns))]
    rows = Rows()
    columns = _read_rows(content, rows)
    return [rows.to_run(_facts(content, columns))]


def _facts(content: Content, columns: _Columns) -> MeasuredFacts:
    units = ", ".join(f"{column} in {_unit_of(per_s)}" for column, per_s in columns.fields.values() if per_s)
    return MeasuredFacts(
        format="table of requests",
        file_name=content.file_name,
        digest=content.digest,
        tool="table",
        units=units,
        arrivals="scheduled" if "arrival_s" in columns.fields else "sent" if "sent_s" in columns.fields else "none",
        identity="ids" if "request_id" in columns.fields else "order",
        notes=(f"not carried over: {', '.join(columns.unused)}",) if columns.unused else (),
    )


def _read_rows(content: Content, rows: Rows) -> _Columns:
    """Add the rows of CSV or JSON Lines and return their columns; a key may come first in a later object (an error, say)."""
    names = dict.fromkeys(column_names(content) if content.encoding == "csv" else ())
    columns = _columns(tuple(names), content.where)
    cells_of = _csv_cells(content, tuple(names)) if content.encoding == "csv" else content.records()
    for index, (place, cells) in enumerate(cells_of):
        if not cells.keys() <= names.keys():
            names |= dict.fromkeys(cells)
            had_ids, columns = "request_id" in columns.fields, _columns(tuple(names), content.where)
            if index and not had_ids and "request_id" in columns.fields:
                raise TraceError(place, "request_id, which the rows before it lack", "an id in every row or in none", "fill it in")
        rows.add(_row(cells, columns.fields, place, index))
    return columns


def read_aibrix(content: Content) -> list[MeasuredRun]:
    """Return the run of an AIBrix regression CSV: seconds; rows are grouped by user and put in the order of their launch."""
    cells_of = _csv_cells(content, column_names(content))
    found = sorted((_aibrix_row(cells, place) for place, cells in cells_of), key=lambda row: row.arrival_s or 0.0)
    rows = Rows()
    for row in found:
        rows.add(row)
    facts = MeasuredFacts(
        format="AIBrix regression CSV",
        file_name=content.file_name,
        digest=content.digest,
        tool="aibrix",
        units="seconds",
        arrivals="sent",
        identity="ids",
    )
    return [rows.to_run(facts)]


def _plain(name: str) -> str:
    """Return a column's name without its unit: ``ttft`` of ``TTFT (ms)``."""
    match = _UNIT.fullmatch(name.strip().lower())
    return (match[1] if match and match[1] in TIMES else name.strip().lower()).replace(" ", "_")


def _columns(names: tuple[str, ...], where: str) -> _Columns:
    fields: dict[str, tuple[str, float]] = {}
    unused = []
    for name in names:
        plain = _plain(name)
        match = _UNIT.fullmatch(name.strip().lower())
        if plain in TIMES:
            if match is None or match[1] != plain:
                raise TraceError(where, f"column {name!r} has no unit", WANTED, f"call it {plain}_s or {plain}_ms")
            field, per_s = TIMES[plain], PER_SECOND[match[2]]
        elif plain in COUNTS or plain in ("request_id", "status"):
            field, per_s = COUNTS.get(plain, plain), 0.0
        else:
            unused.append(name)
            continue
        if field in fields:
            raise TraceError(where, f"columns {fields[field][0]!r} and {name!r} both mean {field}", "one of them", "remove or rename one")
        fields[field] = (name, per_s)
    return _Columns(fields=fields, unused=tuple(unused))


def _unit_of(per_s: float) -> str:
    return next(unit for unit, factor in PER_SECOND.items() if factor == per_s)


def column_names(content: Content) -> tuple[str, ...]:
    """Return the columns of a CSV or Parquet table."""
    if content.encoding == "parquet":
        import pyarrow.parquet as pq

        try:
            return tuple(pq.read_schema(content.path).names)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(content) from error
    _, header = next(content.lines())
    return tuple(cell.strip() for cell in next(csv.reader([header.decode("utf-8", errors="replace")])))


def _parquet_requests(content: Content, columns: _Columns) -> pa.Table:
    import pyarrow.parquet as pq

    wanted = [column for column, _ in columns.fields.values()]
    try:
        found = pq.ParquetFile(content.path).read(columns=wanted)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(content) from error
    return requests_of_columns(content, found, columns.fields, _status)


def _csv_cells(content: Content, names: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = content.lines()
    next(lines)
    for place, line in lines:
        try:
            cells = next(csv.reader(io.StringIO(line.decode("utf-8"), newline=""), strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise TraceError(place, f"the row is no CSV ({error})", "comma-separated cells in UTF-8", "mend or remove the row") from error
        if len(cells) != len(names):
            got = f"{len(cells)} cells where the header has {len(names)}"
            raise TraceError(place, got, "one cell for each column", "mend or remove the row (the file may be cut off)")
        yield place, {name: _number(cell) for name, cell in zip(names, cells, strict=True)}


def _number(cell: str) -> Any:
    """Return a cell as the number it spells, null where it is empty, else the text."""
    text = cell.strip()
    if not text:
        return None
    try:
        return int(text) if text.isdecimal() and len(text) < 19 else float(text)
    except ValueError:
        return text


def _row(cells: dict[str, Any], fields: dict[str, tuple[str, float]], place: str, index: int) -> Row:
    times = {field: seconds(cells.get(column), place, column, per_s) for field, (column, per_s) in fields.items() if per_s}
    counts = {field: tokens(cells.get(fields[field][0]), place, fields[field][0]) for field in set(COUNTS.values()) & set(fields)}
    if "tpot_s" not in times:
        times["tpot_s"] = time_per_token(times.get("e2e_s"), times.get("ttft_s"), counts.get("output_tokens"))
    name = cells.get(fields["request_id"][0]) if "request_id" in fields else index
    if name is None:
        raise TraceError(place, f"{fields['request_id'][0]} is missing", "a name for the request", "fill it in or remove the row")
    status = _status(cells.get(fields["status"][0])) if "status" in fields else COMPLETED
    return Row(request_id=str(name), status=status, **times, **counts)  # type: ignore[arg-type]


def _status(value: Any) -> str:
    text = str("" if value is None else value).strip().lower()
    if text in STATUSES:
        return text
    return COMPLETED if text in _SUCCESS else TRUNCATED if text in _CUT else FAILED


def _aibrix_row(cells: dict[str, Any], place: str) -> Row:
    ttft, decode, launch = (seconds(cells[name], place, name) for name in ("ttft", "generation_time", "launch_time"))
    output = tokens(cells["generation_tokens"], place, "generation_tokens")
    e2e = None if ttft is None or decode is None else ttft + decode
    return Row(
        request_id=f"{cells['user_id']}/{cells['question_id']}",
        status=FAILED if e2e is None else COMPLETED,
        arrival_s=launch,
        sent_s=launch,
        prompt_tokens=tokens(cells["prompt_tokens"], place, "prompt_tokens"),
        output_tokens=output,
        ttft_s=ttft,
        tpot_s=time_per_token(e2e, ttft, output),
        e2e_s=e2e,
    )


def _damaged(content: Content) -> TraceError:
    return TraceError(content.where, "the Parquet file is damaged or cut off", "a whole Parquet file", "copy or write the file again")
