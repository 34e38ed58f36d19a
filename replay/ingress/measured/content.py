"""The bytes of a result file, read in bounded memory: one JSON document, JSON Lines, CSV, Parquet or MLPerf text."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

from replay.documents import read_bytes
from replay.errors import SpecError, TraceError

Encoding = Literal["json", "json_lines", "csv", "parquet", "mlperf"]
Record = dict[str, Any]

WANTED = "a result file of a serving benchmark or engine"
LARGEST_DOCUMENT_BYTES = 128 * 2**20
"""Largest JSON document or line: parsed, it takes up to about ten times as much memory."""
_HEAD_BYTES = 1 << 16
_GZIP, _PARQUET, _MARK = b"\x1f\x8b", b"PAR1", b"\xef\xbb\xbf"
_MLPERF = (b":::MLLOG", b"MLPerf Results Summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A result file that can be read as often as needed."""

    path: Path
    where: str
    digest: str
    encoding: Encoding

    @property
    def file_name(self) -> str:
        """The bare name."""
        return self.path.name

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """Yield place and bytes of each line that is not blank.

        Raises:
            TraceError: a line is longer than LARGEST_DOCUMENT_BYTES, or the compressed data are damaged.
        """
        with opened(self.path) as file:
            for number, raw in enumerate(_limited(file, self.where), start=1):
                line = (raw.removeprefix(_MARK) if number == 1 else raw).strip()
                if line:
                    yield f"{self.where}:{number}", line

    def records(self) -> Iterator[tuple[str, Record]]:
        """Yield place and content of each JSON object: the whole file, or one per line."""
        if self.encoding == "json":
            document = self.document()
            if isinstance(document, dict):
                yield self.where, document
            return
        for place, line in self.lines():
            record = parse(line, place)
            if not isinstance(record, dict):
                raise TraceError(place, "the line is no JSON object", "one object on each line", "mend or remove the line")
            yield place, record

    def document(self) -> Any:
        """Return the file as one JSON value."""
        with opened(self.path) as file:
            data = file.read(LARGEST_DOCUMENT_BYTES + 1)
        if len(data) > LARGEST_DOCUMENT_BYTES:
            raise too_long(self.where, "the document")
        return parse(data.removeprefix(_MARK), self.where)


def open_content(path: Path) -> Content:
    """Return a result file with its encoding, which its beginning decides; the name's suffix is never consulted.

    Raises:
        TraceError: it is missing, empty, or of no encoding that is read.
    """
    where = str(path)
    head = head_of(path)
    if not head.strip():
        raise TraceError(where, "the file is empty", WANTED, "write it, or check how it was produced")
    found = encoding_of(head)
    if found is None:
        raise TraceError(where, "it is neither JSON, CSV, Parquet nor an MLPerf log", WANTED, "give the tool's own result file")
    if found == "json_lines" and not _is_one_line_each(path, where):
        found = "json"
    return Content(path=path, where=where, digest=_digest(path), encoding=found)


def head_of(path: Path) -> bytes:
    """Return the first bytes, decompressed; errors as `open_content`."""
    try:
        if not path.is_file():
            read_bytes(path, WANTED)  # raises, and says what is there instead
        with opened(path) as file:
            return file.read(_HEAD_BYTES).removeprefix(_MARK)
    except SpecError as error:
        raise TraceError(error.where, error.got, error.want, error.fix) from error
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(str(path), f"it cannot be read ({error})", WANTED, "check its permissions, or copy it again") from error


def encoding_of(head: bytes) -> Encoding | None:
    """Return what a file's beginning looks like; an object may stand alone or be the first line of many."""
    start = head.lstrip()
    if start.startswith(_PARQUET):
        return "parquet"
    if any(mark in start[:4096] for mark in _MLPERF):
        return "mlperf"
    if start.startswith(b"{"):
        return "json_lines"
    if start.startswith(b"[") and start[1:].lstrip()[:1] in (b"{", b"]"):
        return "json"
    first = start.split(b"\n", 1)[0]
    return None if b"\0" in first or b"=" in first or first.startswith((b"[", b"#")) else "csv"


def opened(path: Path) -> IO[bytes]:
    """Return the file opened for reading bytes, decompressed where it is gzip."""
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    return cast("IO[bytes]", gzip.open(path, "rb")) if packed else path.open("rb")


def parse(data: bytes, place: str) -> Any:
    """Return a JSON value; ``Infinity`` is taken (some tools write it for an unlimited rate), NaN and repeated keys are not.

    Raises:
        TraceError: it is not such JSON.
    """
    try:
        return json.loads(data, parse_constant=_constant, object_pairs_hook=_unique)
    except _RefusedError as error:
        raise TraceError(place, str(error), "strict JSON", "write null where a value is missing") from error
    except json.JSONDecodeError as error:
        got = f"it is not valid JSON ({error.msg}, column {error.colno})"
        raise TraceError(place, got, "whole JSON", "mend or re-export the file (it may be cut off)") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(place, "bytes that are no text, or a value too long or too deep", "JSON in UTF-8", "re-export the file") from error


def too_long(place: str, what: str) -> TraceError:
    """Return the error about more JSON in one piece than is read."""
    got = f"{what} is longer than {LARGEST_DOCUMENT_BYTES >> 20} MiB"
    return TraceError(place, got, "smaller pieces", "write one request per line, or a Parquet file with a row per request")


class _RefusedError(ValueError):
    """JSON that Python would take and that means nothing here."""


def _constant(name: str) -> float:
    if name == "Infinity":
        return float("inf")
    raise _RefusedError(f"the value {name}")


def _unique(pairs: list[tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [key for key, _ in pairs]
        repeated = next(key for key in names if names.count(key) > 1)
        raise _RefusedError(f"the key {repeated[:40]!r} stands twice in one object")
    return record


def _limited(file: IO[bytes], where: str) -> Iterator[bytes]:
    number = 0
    try:
        while line := file.readline(LARGEST_DOCUMENT_BYTES + 1):
            number += 1
            if len(line) > LARGEST_DOCUMENT_BYTES:
                raise too_long(f"{where}:{number}", "the line")
            yield line
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{where}:{number + 1}", f"the compressed data are damaged ({error})", "a whole file", "copy it again") from error


def _is_one_line_each(path: Path, where: str) -> bool:
    """Return whether the first line is an object of its own: one document over many lines is not."""
    with opened(path) as file:
        first = next(iter(_limited(file, where)), b"").removeprefix(_MARK).strip()
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
