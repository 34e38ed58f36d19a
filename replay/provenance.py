"""Where data come from: content digests and the record that every trace carries."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

TraceKind = Literal["recorded", "reconstructed", "synthetic"]
TRACE_KINDS: tuple[TraceKind, ...] = ("recorded", "reconstructed", "synthetic")


def digest_bytes(data: bytes) -> str:
    """Return ``sha256:<hex>`` of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """Return ``sha256:<hex>`` of a file's bytes."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(document: Any) -> bytes:
    """Return the one JSON spelling of a document that digests are taken over: sorted keys, no spaces, no NaN.

    A record (dataclass) inside it stands for its fields; it is not copied, as `asdict` would.
    """
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_fields).encode()


def digest_document(document: Any) -> str:
    """Return the digest of a document's canonical JSON."""
    return digest_bytes(canonical_json(document))


def _fields(record: Any) -> dict[str, Any]:
    if not is_dataclass(record):
        raise TypeError(f"{type(record).__name__} has no JSON form")
    return {field.name: getattr(record, field.name) for field in fields(record)}


ORIGIN_UNSTATED = "the file does not state where its rows come from"
"""Note of a native file without provenance."""
ORIGIN_STATED_ON_IMPORT = "stated as recorded on import"
"""Beginning of the note where a person said on import that the rows were recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How clients send the requests of a trace, where they do not send each at its own arrival (open loop)."""

    concurrency: int | None = None
    """Requests under way at most, from being sent to their last token; the others wait at their clients, in the trace's order.
    Latencies count from the arrival that the trace schedules; where it has none (closed loop), from the sending."""
    sessions: bool = False
    """Whether a request of a session is sent only when the one before it has ended; its latencies count from when it could be."""
    think_s: float = 0.0
    """Time that clients and sessions let pass between an answer and their next request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceProvenance:
    """How a trace came to be, kept with it through import, slicing and replay.

    `recorded`: arrivals and lengths are as observed; `reconstructed`: part of a row was derived (arrivals generated for a
    length-only file, end times turned into arrivals, origin not stated); `synthetic`: drawn from a generator.
    """

    kind: TraceKind
    origin: str
    """Format and file name (or the generator's recipe)."""
    source_digest: str
    """Digest of the source bytes."""
    rows_read: int
    rows_kept: int
    set_aside: tuple[tuple[str, int], ...] = ()
    """(reason, rows) for every row read and not kept, in reading order of the reasons."""
    recorded_at: str | None = None
    """UTC or zone-less ISO time of the first arrival where the source states one."""
    prefix_block_tokens: int | None = None
    """Tokens per prefix block where the rows carry block hashes."""
    notes: tuple[str, ...] = ()
    """Each change or doubt: unit conversions, sorting, ties, rebasing, slices."""
    load: Load | None = None
    """How the requests are sent; None: each at its own arrival."""

    @property
    def origin_unstated(self) -> bool:
        """Whether nothing says where the rows come from: they may be drawn from a generator."""
        return self.kind == "reconstructed" and ORIGIN_UNSTATED in self.notes

    @property
    def origin_stated_on_import(self) -> bool:
        """Whether only a person's word on import says that the rows were recorded."""
        return any(note.startswith(ORIGIN_STATED_ON_IMPORT) for note in self.notes)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form; `from_document` reads it back."""
        document = asdict(self)
        document["set_aside"] = [{"reason": reason, "rows": rows} for reason, rows in self.set_aside]
        document["notes"] = list(self.notes)
        if self.load is None:
            del document["load"]
        return document

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> TraceProvenance:
        """Return the record of a checked JSON form (schema `trace-provenance.v1`)."""
        fields = dict(document)
        fields["set_aside"] = tuple((entry["reason"], entry["rows"]) for entry in document.get("set_aside", ()))
        fields["notes"] = tuple(document.get("notes", ()))
        fields["load"] = Load(**document["load"]) if "load" in document else None
        return cls(**fields)
