"""Calendar times as whole nanoseconds since 1970, exactly."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NS_PER_S = 1_000_000_000
TICK_NS = 100
"""Arrivals that this product draws itself lie on 100 ns, the step of the finest recorded clock."""

_STAMP = r"^(?P<stamp>\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2})(?:\.(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d{2}:?[0-5]\d)?$"
_EARLIEST_S, _LATEST_S = -9_000_000_000, 9_000_000_000  # 1684 to 2255: inside the range of 64-bit nanoseconds with room for any zone


class UnreadableTimesError(Exception):
    """Some texts are no times: `row` is the first of them, or None where the rows disagree about having a zone."""

    def __init__(self, row: int | None) -> None:
        super().__init__(row)
        self.row = row


def times_ns(texts: pa.Array) -> tuple[pa.Array, bool]:
    """Return nanoseconds since 1970 (UTC where the texts carry zone offsets, else in their own zone) and whether they carry offsets.

    `texts` [rows] hold ``2023-11-16 18:15:46.6805900`` with 0 to 9 fractional digits, a blank or a T, and optionally ``Z`` or an offset.

    Raises:
        UnreadableTimesError: a text is no time, or only some of them carry a zone.
    """
    parts = pc.extract_regex(texts, _STAMP)
    if parts.null_count:
        raise UnreadableTimesError(_first(pc.is_null(parts)))
    zoned = pc.not_equal(parts.field("zone"), "")
    if pc.any(zoned).as_py() and not pc.all(zoned).as_py():
        raise UnreadableTimesError(None)
    seconds = _seconds(parts.field("stamp"))
    outside = pc.or_(pc.less(seconds, _EARLIEST_S), pc.greater(seconds, _LATEST_S))
    if pc.any(outside).as_py():
        raise UnreadableTimesError(_first(outside))
    fraction_ns = pc.cast(pc.utf8_rpad(parts.field("fraction"), 9, "0"), pa.int64())
    local_ns = pc.add(pc.multiply(seconds, NS_PER_S), fraction_ns)
    return pc.subtract(local_ns, _zone_ns(parts.field("zone"))), bool(pc.any(zoned).as_py())


def format_ns(time_ns: int, *, utc: bool) -> str:
    """Return the ISO form of nanoseconds since 1970, with the digits it needs and ``Z`` where it is UTC."""
    seconds, rest_ns = divmod(time_ns, NS_PER_S)
    stamp = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest_ns:09d}".rstrip("0").rstrip(".")
    return f"{stamp}{fraction}{'Z' if utc else ''}"


def shift_time(text: str, delta_s: float) -> str:
    """Return an ISO time made by `format_ns`, moved by seconds."""
    nanoseconds, utc = times_ns(pa.array([text]))
    return format_ns(nanoseconds[0].as_py() + round(delta_s * NS_PER_S), utc=utc)


def _seconds(stamps: pa.Array) -> pa.Array:
    try:
        return pc.cast(pc.cast(stamps, pa.timestamp("s")), pa.int64())
    except pa.ArrowInvalid as error:
        raise UnreadableTimesError(_first_impossible(stamps)) from error


def _first_impossible(stamps: pa.Array) -> int:
    """Return the first row whose digits are no calendar date or time of day."""
    for row, stamp in enumerate(stamps.to_pylist()):
        try:
            datetime.fromisoformat(stamp)
        except ValueError:
            return row
    return 0


def _zone_ns(zones: pa.Array) -> pa.Array:
    """Return the offset of each row from UTC; texts repeat, so each distinct one is read once."""
    encoded = zones.dictionary_encode()
    offsets = np.array([_offset_ns(zone) for zone in encoded.dictionary.to_pylist()], dtype=np.int64)
    return pa.array(offsets).take(encoded.indices)


def _offset_ns(zone: str) -> int:
    match = re.fullmatch(r"([+-])(\d{2}):?(\d{2})", zone)
    if not match:
        return 0
    sign, hours, minutes = match.groups()
    return (1 if sign == "+" else -1) * (int(hours) * 3600 + int(minutes) * 60) * NS_PER_S


def _first(flags: pa.Array) -> int:
    return int(pc.index(flags, True).as_py())
