"""The product's own trace format: rows of TRACE_SCHEMA in Parquet, JSON Lines or CSV, and the provenance that travels with them.

Provenance is one JSON object ``{"replay_gate_trace": {...}, "name": ..., "digest": ..., "expert_load": {...}}``: the first line of a JSON
Lines file, or the schema metadata `replay_gate_trace` of a Parquet file. A file without it is read, and labelled as of unstated origin.
`expert_load` (schema `expert-load.v1`) says how often each expert of a mixture of experts was chosen, and is there where that is known.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from replay.documents import check, write_atomic
from replay.errors import SpecError, TraceError, nearest
from replay.ingress.clock import UnreadableTimesError, times_ns
from replay.ingress.columns import CsvRows, optional_integers, read_columns, seconds, tokens
from replay.ingress.parquet_rows import parquet_rows
from replay.ingress.parsed import ARRIVAL_WANTED, LARGEST_S, ParsedRows, StatedOrigin
from replay.ingress.records import Line, ListColumn, read_lines
from replay.ingress.source import STATED_KEY, Encoding, TraceSource
from replay.ingress.trace import OPTIONAL_COLUMNS, TRACE_SCHEMA, Trace, check_trace_name
from replay.provenance import ORIGIN_UNSTATED, TraceProvenance
from replay.specs.routing import ExpertLoad

LOAD_KEY = "expert_load"
_BESIDE = ("name", "digest", LOAD_KEY)
"""Keys that may stand beside the provenance."""

_Rows = tuple[pa.Table, Callable[[int], str]]
"""A table and the place of each of its rows in the file."""


class NativeReader:
    """Reads ``prompt_tokens``, ``output_tokens`` and, where present, the other columns of TRACE_SCHEMA."""

    label = "native Parquet, JSON Lines or CSV"
    encodings: tuple[Encoding, ...] = ("parquet", "json_lines", "stated_json_lines", "csv")
    required: tuple[str, ...] = ("prompt_tokens", "output_tokens")

    def read(self, source: TraceSource) -> ParsedRows:
        """Return the rows; a column that is not in TRACE_SCHEMA is an error, since it may be a misspelt one."""
        _require_known(source.columns, source.where if source.encoding == "parquet" else source.at(max(source.body_line - 1, 1)))
        stated = stated_origin(source)
        if source.encoding == "parquet":
            table, place = _parquet_rows(source)
        elif source.encoding == "csv":
            table, place = _csv_rows(source)
        else:
            table, place = _json_rows(source)
        if stated and stated.provenance.rows_kept != table.num_rows:
            got = f"{table.num_rows} rows where the provenance says {stated.provenance.rows_kept}"
            raise TraceError(source.where, got, "every row that was written", "copy or import the trace again")
        return ParsedRows(
            table=table,
            format_name="native trace",
            kind=stated.provenance.kind if stated else "reconstructed",
            place=place,
            prefix_block_tokens=stated.provenance.prefix_block_tokens if stated else None,
            notes=() if stated else _unstated_notes(table),
            stated=stated,
        )


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace as native Parquet (``.parquet``) or JSON Lines (``.jsonl``) with its provenance; whole or not at all.

    The same trace gives the same bytes (with one version of pyarrow).

    Raises:
        TraceError: another suffix (CSV has no place for provenance), or the file cannot be written.
    """
    if path.suffix == ".parquet":
        data = _parquet_bytes(trace)
    elif path.suffix == ".jsonl":
        data = _json_bytes(trace)
    else:
        reason = ", which would lose the provenance" if path.suffix == ".csv" else ""
        raise TraceError(str(path), f"a file name ending in {path.suffix!r}{reason}", "a name in .parquet or .jsonl", "rename the output")
    try:
        write_atomic(path, data)
    except SpecError as error:
        raise TraceError(error.where, error.got, error.want, error.fix) from error


def _envelope(trace: Trace) -> bytes:
    document = {STATED_KEY: trace.provenance.to_document(), "name": trace.name, "digest": trace.digest}
    if trace.expert_load is not None:
        document[LOAD_KEY] = trace.expert_load.to_document()
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


def _parquet_bytes(trace: Trace) -> bytes:
    import pyarrow.parquet as pq

    empty = [name for name in OPTIONAL_COLUMNS if trace.requests[name].null_count == trace.requests.num_rows]
    table = trace.requests.drop_columns(empty).combine_chunks().replace_schema_metadata({STATED_KEY: _envelope(trace)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_statistics=False, row_group_size=1 << 20)
    return buffer.getvalue()


def _json_bytes(trace: Trace) -> bytes:
    lines = [_envelope(trace)]
    for row in trace.requests.to_pylist():
        present = {key: value for key, value in row.items() if value is not None}
        lines.append(json.dumps(present, ensure_ascii=False, allow_nan=False).encode())
    return b"\n".join(lines) + b"\n"


def stated_origin(source: TraceSource) -> StatedOrigin | None:
    """Return what a native file says about itself, or None; raises TraceError where that cannot be."""
    if source.stated is None:
        return None
    place = f"{source.where}: {STATED_KEY}"
    unknown = [key for key in source.stated if key not in (STATED_KEY, *_BESIDE)]
    if unknown:
        raise TraceError(place, f"the key {unknown[0]!r} beside it", f"only {', '.join(_BESIDE)} beside it", "remove the key")
    for key in ("name", "digest"):
        value = source.stated.get(key)
        if value is not None and not (isinstance(value, str) and value):
            raise TraceError(place, f"{key} is {json.dumps(value)[:40]}", "a text", "correct or remove it")
    if (name := source.stated.get("name")) is not None:
        check_trace_name(name, place)
    check(source.stated[STATED_KEY], "trace-provenance.v1", place)
    provenance = TraceProvenance.from_document(source.stated[STATED_KEY])
    if provenance.rows_read != provenance.rows_kept + sum(rows for _, rows in provenance.set_aside):
        got = f"{provenance.rows_read} rows read, which are not the kept and the set aside ones"
        raise TraceError(place, got, "rows_read = rows_kept + the sum of set_aside", "correct the counts")
    _require_usable(source, provenance, place)
    load = read_load(source.stated[LOAD_KEY], f"{source.where}: {LOAD_KEY}") if LOAD_KEY in source.stated else None
    return StatedOrigin(provenance=provenance, name=name, digest=source.stated.get("digest"), expert_load=load)


def read_load(document: Any, where: str) -> ExpertLoad:
    """Return the expert load of a JSON value.

    Raises:
        SpecError: it violates the schema `expert-load.v1`, or a layer has other experts than the first, or no choices.
    """
    check(document, "expert-load.v1", where)
    return ExpertLoad.from_document(document, where)


def _require_usable(source: TraceSource, provenance: TraceProvenance, place: str) -> None:
    """Raise about what the schema cannot see: a date that is none, a reason twice, text that cannot be written again."""
    if provenance.recorded_at is not None:
        try:
            times_ns(pa.array([provenance.recorded_at]))
        except UnreadableTimesError as error:
            raise TraceError(place, f"recorded_at is {provenance.recorded_at}", "a time that exists", "correct it") from error
    if len(dict(provenance.set_aside)) < len(provenance.set_aside):
        raise TraceError(place, "a reason twice in set_aside", "each reason once", "add up their rows")
    try:
        json.dumps(source.stated, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise TraceError(place, "half of a surrogate pair in a text", "texts that are Unicode", "correct it") from error


def _unstated_notes(table: pa.Table) -> tuple[str, ...]:
    notes = (ORIGIN_UNSTATED,)
    if "prefix_blocks" in table.column_names and table["prefix_blocks"].null_count < table.num_rows:
        return (*notes, "nor how many tokens a prefix block holds, so the prefix blocks cannot be used")
    return notes


def _require_known(names: tuple[str, ...], place: str) -> None:
    for name in names:
        if name not in TRACE_SCHEMA.names:
            got = f"unknown column {name!r}{nearest(name, TRACE_SCHEMA.names)}"
            raise TraceError(place, got, "only " + ", ".join(TRACE_SCHEMA.names), "rename or remove the column")


def _parquet_rows(source: TraceSource) -> _Rows:
    return parquet_rows(source), source.at_row


def _csv_rows(source: TraceSource) -> _Rows:
    if "prefix_blocks" in source.columns:
        raise TraceError(
            source.at(1), "the column 'prefix_blocks' in CSV", "lists in Parquet or JSON Lines", "write the trace as JSON Lines"
        )
    rows = read_columns(source, TRACE_SCHEMA.names)
    columns = {"prompt_tokens": tokens(rows, "prompt_tokens"), "output_tokens": tokens(rows, "output_tokens")}
    arrivals = _csv_arrivals(rows)
    if arrivals is not None:
        columns["arrival_s"] = arrivals
    for name in ("request_id", "session_id", "model"):
        texts = rows.optional_texts(name)
        if texts is not None:
            columns[name] = texts
    priorities = optional_integers(rows, "priority")
    if priorities is not None:
        columns["priority"] = priorities
    return pa.table(columns), rows.place


def _csv_arrivals(rows: CsvRows) -> pa.Array | None:
    """Return the arrivals, or None where the column is absent or empty in every row."""
    texts = rows.optional_texts("arrival_s")
    return None if texts is None or texts.null_count == len(texts) else seconds(rows, "arrival_s")


def _json_rows(source: TraceSource) -> _Rows:
    places: list[str] = []
    columns: dict[str, list[Any]] = {name: [] for name in TRACE_SCHEMA.names if name != "prefix_blocks"}
    blocks = ListColumn()
    for line in read_lines(source):
        _require_known(tuple(line.record), line.place)
        line.require(NativeReader.required)
        places.append(line.place)
        columns["arrival_s"].append(_json_arrival(line))
        blocks.append(line, "prefix_blocks")
        for name in NativeReader.required:
            columns[name].append(line.tokens(name))
        for name in ("request_id", "session_id", "model"):
            columns[name].append(line.text(name))
        columns["priority"].append(line.integer("priority"))
    arrays = {name: pa.array(values, TRACE_SCHEMA.field(name).type) for name, values in columns.items()}
    return pa.table({**arrays, "prefix_blocks": blocks.to_arrow()}), places.__getitem__


def _json_arrival(line: Line) -> float | None:
    value = line.record.get("arrival_s")
    if value is None:
        return None
    if type(value) not in (int, Decimal) or not 0 <= value <= LARGEST_S:
        raise line.bad("arrival_s", ARRIVAL_WANTED)
    return float(value)
