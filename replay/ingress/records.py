"""JSON Lines as exact values: integers stay integers, decimals stay decimals; a bad value is named with its line and key."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from replay.errors import TraceError
from replay.ingress.parsed import INTEGER_WANTED, MAX_TOKENS, TOKENS_WANTED
from replay.ingress.source import TraceSource

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One JSON object and where it stands."""

    place: str
    record: Record

    def bad(self, key: str, wanted: str) -> TraceError:
        """Return the error about the value of a key."""
        return self.bad_value(key, self.record.get(key), wanted)

    def bad_value(self, name: str, value: Any, wanted: str) -> TraceError:
        """Return the error about a value."""
        return TraceError(self.place, f"{name} is {_shown(value)}", wanted, "correct the value or remove the row")

    def require(self, keys: tuple[str, ...]) -> None:
        """Raise unless every key is present."""
        for key in keys:
            if key not in self.record:
                raise TraceError(self.place, f"the row has no {key!r}", f"the keys {', '.join(keys)}", "add it or remove the row")

    def tokens(self, key: str) -> int:
        """Return a whole, non-negative token count; 12.0 is whole, 12.5 is not, true is no number."""
        count = whole(self.record[key])
        if count is None or not 0 <= count <= MAX_TOKENS:
            raise self.bad(key, TOKENS_WANTED)
        return count

    def integer(self, key: str) -> int | None:
        """Return a whole number of 64 bits, or None where it is absent or null."""
        value = self.record.get(key)
        if value is None:
            return None
        number = whole(value)
        if number is None or not -(2**63) <= number < 2**63:
            raise self.bad(key, INTEGER_WANTED)
        return number

    def text(self, key: str) -> str | None:
        """Return a text, or None where it is absent, null or empty."""
        value = self.record.get(key)
        if value is None or value == "":
            return None
        if not isinstance(value, str) or not _encodable(value):
            raise self.bad(key, "a text or null")
        return value


class ListColumn:
    """A growing column of integer lists, kept flat."""

    def __init__(self) -> None:
        self.values = array("q")
        self.lengths: list[int | None] = []

    def append(self, line: Line, key: str) -> None:
        """Add the list of a row, or a null where the key is absent or null."""
        items = line.record.get(key)
        if items is None:
            self.lengths.append(None)
            return
        wanted = "a list of 64-bit integers or null"
        if not isinstance(items, list) or not set(map(type, items)) <= {int}:  # bool is not int here
            raise line.bad(key, wanted)
        try:
            self.values.extend(items)
        except OverflowError as error:
            raise line.bad(key, wanted) from error
        self.lengths.append(len(items))

    def to_arrow(self) -> pa.Array:
        """Return the column as list<int64>."""
        known = np.array([length or 0 for length in self.lengths], dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(known)]).astype(np.int32)
        missing = pa.array([length is None for length in self.lengths], pa.bool_())
        values = pa.array(np.frombuffer(self.values, dtype=np.int64)) if self.values else pa.array([], pa.int64())
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=missing)


class GatheredRows:
    """Columns that grow row by row: what every JSON Lines format has."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.arrivals_ns: list[int] = []
        self.prompts_tokens: list[int] = []
        self.outputs_tokens: list[int] = []
        self.unused: dict[str, None] = {}

    def add(self, line: Line, arrival_ns: int, *, prompt_key: str, output_key: str) -> None:
        """Add a row whose lengths stand under two keys."""
        self.places.append(line.place)
        self.arrivals_ns.append(arrival_ns)
        self.prompts_tokens.append(line.tokens(prompt_key))
        self.outputs_tokens.append(line.tokens(output_key))

    def note_unused(self, record: Record, used: tuple[str, ...]) -> None:
        """Remember the keys of a record that are not carried over."""
        if len(record) > len(used) or not record.keys() <= set(used):
            self.unused |= dict.fromkeys(key for key in record if key not in used)

    def to_arrow(self) -> dict[str, pa.Array]:
        """Return the columns of ParsedRows."""
        return {
            "arrival_ns": pa.array(self.arrivals_ns, pa.int64()),
            "prompt_tokens": pa.array(self.prompts_tokens, pa.int64()),
            "output_tokens": pa.array(self.outputs_tokens, pa.int64()),
        }


def read_lines(source: TraceSource) -> Iterator[Line]:
    """Yield each line that is not blank as a JSON object.

    Raises:
        TraceError: a line is not UTF-8, not strict JSON, not an object, or holds a key twice.
    """
    decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    number = source.body_line - 1
    start, data = source.body_offset, source.data
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        raw, start = data[start:end].strip(), end + 1
        number += 1
        if raw:
            yield Line(place=source.at(number), record=_decode(decoder, raw, source.at(number)))


def whole(value: Any) -> int | None:
    """Return a JSON number as int when it is exactly whole, else None."""
    if type(value) is int:
        return value
    if isinstance(value, Decimal) and value.adjusted() < 19 and value == value.to_integral_value():
        return int(value)
    return None


def _decode(decoder: json.JSONDecoder, raw: bytes, place: str) -> Record:
    fix = "mend or remove the line (the file may be cut off)"
    try:
        value = decoder.decode(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TraceError(place, "the line is not UTF-8", "JSON Lines in UTF-8", "save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise TraceError(place, f"the line is not valid JSON ({error.msg})", "one JSON object on each line", fix) from error
    except RecursionError as error:
        raise TraceError(place, "the line is nested too deeply", "one flat JSON object on each line", fix) from error
    except (ValueError, ArithmeticError) as error:  # NaN, a repeated key, or a number beyond the limits of int or Decimal
        reason = str(error) if isinstance(error, _RefusedError) else "a number is too long"
        raise TraceError(place, f"the line is not strict JSON ({reason})", "one JSON object on each line", fix) from error
    if not isinstance(value, dict):
        raise TraceError(place, f"the line is {_shown(value)}", "one JSON object on each line", fix)
    return value


class _RefusedError(ValueError):
    """A JSON text that Python would take and strict JSON does not."""


def _refuse_constant(constant: str) -> None:
    raise _RefusedError(f"the value {constant}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise _RefusedError("a key stands twice in one object")
    return record


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # an escaped lone surrogate
        return False
    return True


def _shown(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)[:40]
    text = ascii(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
