"""The door of stage 1: a trace file of any known format -> `Trace`. The content decides the format, never the file's suffix."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from replay.errors import TraceError
from replay.ingress.aibrix import AibrixReader
from replay.ingress.azure import AzureReader
from replay.ingress.burstgpt import BurstGptReader
from replay.ingress.mooncake import MooncakeReader
from replay.ingress.native import NativeReader
from replay.ingress.normalize import normalize
from replay.ingress.parsed import ParsedRows
from replay.ingress.source import Encoding, TraceSource, open_source
from replay.ingress.trace import Trace
from replay.ingress.vidur import VidurReader
from replay.ingress.vllm_log import VllmLogReader
from replay.names import safe_name


class TraceReader(Protocol):
    """One format family."""

    label: str
    """What people call the format."""
    encodings: tuple[Encoding, ...]
    required: tuple[str, ...]
    """Columns or keys that make a file one of this format."""

    def read(self, source: TraceSource) -> ParsedRows:
        """Return the rows as the file states them; raises TraceError with file and line about the first bad value."""
        ...


def known_readers() -> tuple[TraceReader, ...]:
    """Return a reader for each format family, in the order in which they are listed for people."""
    return (NativeReader(), AzureReader(), BurstGptReader(), MooncakeReader(), VidurReader(), AibrixReader(), VllmLogReader())


def read_trace(path: Path, *, name: str | None = None) -> Trace:
    """Return the trace in a file, gzipped or not, with its provenance.

    Without `name` the trace is called what a native file calls itself, else the file name without suffixes.

    Raises:
        TraceError: the file cannot be read, its format is not known or not clear, or a row is malformed.
    """
    source = open_source(path)
    parsed = _choose(source, known_readers()).read(source)
    own_name = parsed.stated.name if parsed.stated else None
    return normalize(parsed, source, name or own_name or _short_name(source.file_name))


def _choose(source: TraceSource, readers: tuple[TraceReader, ...]) -> TraceReader:
    fitting = [reader for reader in readers if source.encoding in reader.encodings and set(reader.required) <= set(source.columns)]
    if len(fitting) == 1:
        return fitting[0]
    known = "one of: " + "; ".join(f"{reader.label} ({', '.join(reader.required)})" for reader in readers)
    if fitting:
        got = "it could be " + " or ".join(reader.label for reader in fitting)
        raise TraceError(source.where, got, known, "remove the columns of the other format")
    raise TraceError(source.where, f"the format is not recognised: {_described(source, readers)}", known, "convert it to a native trace")


def _described(source: TraceSource, readers: tuple[TraceReader, ...]) -> str:
    """Return what the file's beginning holds, and the format that comes closest."""
    if source.encoding == "other":
        return "it begins with neither a CSV header, a JSON object nor Parquet"
    shown = ["".join(letter if letter.isprintable() else "?" for letter in column[:24]) for column in source.columns[:6]]
    named = f"{'header' if source.encoding == 'csv' else 'fields'} {', '.join(shown)}{', ...' if len(source.columns) > len(shown) else ''}"
    present = set(source.columns)
    able = [reader for reader in readers if source.encoding in reader.encodings]
    closest = max(able, key=lambda reader: len(present & set(reader.required)) / len(reader.required))
    missing = [column for column in closest.required if column not in present]
    return named if len(missing) == len(closest.required) else f"{named} ({closest.label} also has {', '.join(missing)})"


def _short_name(file_name: str) -> str:
    """Return a file name without compression and format suffixes, as a trace may be called."""
    short = file_name
    for suffix in (".gz", ".csv", ".jsonl", ".json", ".parquet"):
        short = short.removesuffix(suffix)
    return safe_name(short or file_name)
