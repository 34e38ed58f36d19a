"""ParsedRows: what a format says, row by row in file order, before anything is set aside, sorted or rebased."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from replay.provenance import TraceKind, TraceProvenance
from replay.specs.routing import ExpertLoad

Clock = Literal["relative", "wall", "utc"]
"""Zero of the arrivals: arbitrary, a zone-less calendar, or 1970 in UTC."""

MAX_TOKENS = 2**31 - 1
"""Largest length a reader accepts for one request; beyond it a value is a fault of the file, not a request."""
TOKENS_WANTED = f"a whole number of tokens from 0 to {MAX_TOKENS}"
INTEGER_WANTED = "a 64-bit integer or nothing"

LARGEST_S = 10**9
"""Largest relative arrival a reader accepts (over thirty years): epoch seconds in such a column are a mistake of clock or unit."""
ARRIVAL_WANTED = f"seconds from 0 to {LARGEST_S}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedOrigin:
    """What a native file says about itself."""

    provenance: TraceProvenance
    name: str | None
    digest: str | None
    expert_load: ExpertLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRows:
    """Rows of one file.

    `table` has int64 `prompt_tokens` and `output_tokens` and, where the format has them, `arrival_ns` (int64, exact) or `arrival_s`
    (float64, native files only), `request_id`, `prefix_blocks`, `session_id`, `model`, `priority`. Without an arrival column the file is
    lengths-only.
    """

    table: pa.Table
    format_name: str
    kind: TraceKind
    place: Callable[[int], str]
    """Place of a 0-based row in the file, for messages."""
    clock: Clock = "relative"
    prefix_block_tokens: int | None = None
    notes: tuple[str, ...] = ()
    stated: StatedOrigin | None = None


def unused_note(unused: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return the note that names columns or keys a reader does not carry over (none where there are none)."""
    return (f"not carried over: {', '.join(unused)}",) if unused else ()
