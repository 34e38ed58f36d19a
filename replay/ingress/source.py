"""The bytes of a trace file and what their beginning says: encoding and column names. The file's suffix is never consulted."""

from __future__ import annotations

import csv
import io
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from replay.documents import read_bytes
from replay.errors import SpecError, TraceError
from replay.provenance import digest_bytes

Encoding = Literal["csv", "json_lines", "stated_json_lines", "parquet", "other"]
"""`stated_json_lines` is JSON Lines whose first line states provenance; `other` is anything that no reader can take."""

STATED_KEY = "replay_gate_trace"
"""Key of the provenance in the first line of a native JSON Lines file and in the schema metadata of a native Parquet file."""

_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BLANK = b" \t\r\n"
_GUNZIP = 31  # zlib's window bits for a gzip member with header and checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """An opened trace file."""

    where: str
    """The path as the caller wrote it."""
    file_name: str
    digest: str
    """Digest of the bytes in the file (compressed, where it is)."""
    data: bytes
    """Content, decompressed and without a byte-order mark."""
    encoding: Encoding
    columns: tuple[str, ...] = ()
    """Header cells, Parquet columns or the keys of the first record."""
    stated: dict[str, Any] | None = None
    """The object with the key `replay_gate_trace` where a native file has one."""
    body_offset: int = 0
    """First byte after the header line or the provenance line."""

    def at(self, line: int) -> str:
        """Return the place of a 1-based line for an error message."""
        return f"{self.where}:{line}"

    def at_row(self, row: int) -> str:
        """Return the place of a 0-based row of a file that has no lines."""
        return f"{self.where}: row {row + 1}"

    @property
    def body(self) -> memoryview:
        """The bytes after the header line or the provenance line."""
        return memoryview(self.data)[self.body_offset :]

    @property
    def body_line(self) -> int:
        """1-based line number on which the body starts."""
        return len(_LINE_END.findall(self.data, 0, self.body_offset)) + 1


def open_source(path: Path) -> TraceSource:
    """Return a trace file's content and encoding.

    Raises:
        TraceError: it is missing, a folder, unreadable, empty, or its compressed or Parquet framing is damaged.
    """
    where = str(path)
    try:
        stored = read_bytes(path, "a trace file")
    except SpecError as error:
        raise TraceError(error.where, error.got, error.want, error.fix) from error
    data = _gunzip(stored, where) if stored.startswith(_GZIP_MAGIC) else stored
    data = data.removeprefix(_BYTE_ORDER_MARK)
    digest, name = digest_bytes(stored), path.name.encode(errors="replace").decode()  # a file name may hold bytes that are no text
    if not data.strip(_BLANK):
        raise TraceError(where, "the file is empty", "a trace file", "write it, or check how it was produced")
    if data.startswith(_PARQUET_MAGIC):
        columns, stated = _parquet_columns(data, where)
        return TraceSource(where=where, file_name=name, digest=digest, data=data, encoding="parquet", columns=columns, stated=stated)
    encoding, columns, stated, offset = _text_columns(data)
    return TraceSource(
        where=where, file_name=name, digest=digest, data=data, encoding=encoding, columns=columns, stated=stated, body_offset=offset
    )


def _gunzip(stored: bytes, where: str) -> bytes:
    parts: list[bytes] = []
    rest = stored
    try:
        while rest:
            member = zlib.decompressobj(_GUNZIP)
            parts.append(member.decompress(rest))
            if not member.eof:
                raise TraceError(where, "the gzip data end too early", "a whole gzip file", "copy or download the file again")
            rest = member.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise TraceError(where, f"the gzip data are damaged ({error})", "a whole gzip file", "copy or download the file again") from error
    return b"".join(parts)


def _parquet_columns(data: bytes, where: str) -> tuple[tuple[str, ...], dict[str, Any] | None]:
    import pyarrow.parquet as pq

    try:
        schema = pq.ParquetFile(pa.BufferReader(data)).schema_arrow
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise TraceError(
            where, "the Parquet footer is damaged or cut off", "a whole Parquet file", "copy or write the file again"
        ) from error
    text = (schema.metadata or {}).get(STATED_KEY.encode())
    if text is None:
        return tuple(schema.names), None
    stated = _json_object(text)
    if stated is None or STATED_KEY not in stated:
        raise TraceError(
            f"{where}: {STATED_KEY}", "the metadata are not a provenance object", "what `replay` wrote", "import the trace again"
        )
    return tuple(schema.names), stated


def _text_columns(data: bytes) -> tuple[Encoding, tuple[str, ...], dict[str, Any] | None, int]:
    """Return encoding, column names, stated provenance and the offset of the body."""
    line, offset = _next_line(data, 0)
    if b"\0" in line:
        return "other", (), None, 0
    if not line.startswith(b"{"):
        header = _header_cells(line)
        return ("csv", header, None, offset) if header else ("other", (), None, 0)
    record = _json_object(line)
    if record is None:
        return "other", (), None, 0
    if STATED_KEY not in record:
        return "json_lines", tuple(record), None, 0
    first_row = _json_object(_next_line(data, offset)[0]) or {}
    return "stated_json_lines", tuple(first_row), record, offset


def _next_line(data: bytes, start: int) -> tuple[bytes, int]:
    """Return the next line that is not blank, stripped, and the offset after it."""
    while start < len(data):
        end = _LINE_END.search(data, start)
        stop, after = (end.start(), end.end()) if end else (len(data), len(data))
        line = data[start:stop].strip(_BLANK)
        if line:
            return line, after
        start = after
    return b"", start


def _header_cells(line: bytes) -> tuple[str, ...]:
    try:
        cells = next(csv.reader(io.StringIO(line.decode("utf-8")), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return ()
    return tuple(cell.strip() for cell in cells)


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # also undecodable bytes and integers of thousands of digits
        return None
    return value if isinstance(value, dict) else None
