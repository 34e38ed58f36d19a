"""Statements of a TOML text with their exact places: to name the line of a fault, or to change one value and nothing else.

The text is known to be valid TOML (it was parsed before); only where things begin and end has to be found.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_STRINGS = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SPACE = re.compile(r"\ufeff?[ \t\r\n]*(?:#[^\n]*[\r\n]*[ \t\r\n]*)*")
_OPEN, _CLOSE = "[{", "]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A header (``[a.b]``) or an assignment (``a.b = value``)."""

    path: tuple[str, ...]
    """The full key path, the header's included."""
    is_header: bool
    first: int
    """Offset of its first line's start."""
    after: int
    """Offset after its last line, line end included."""
    value: tuple[int, int]
    """Offsets of the value's text; empty for headers."""
    written: tuple[str, ...]
    """The key path as the statement itself spells it, without its header's."""


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements of a valid TOML text in order."""
    header: tuple[str, ...] = ()
    position = _skip(text, 0)
    while position < len(text):
        first = text.rfind("\n", 0, position) + 1
        is_header = text[position] == "["
        if is_header:
            start = end = _scan(text, position, "\n")
            inside = _without_comment(text, position, end).strip().strip("[]")
            header = written = path = _key_path(inside)
        else:
            equals = _scan(text, position, "=")
            written = _key_path(text[position:equals])
            path = header + written
            start = equals + 1 + len(re.match(r"[ \t]*", text[equals + 1 :]).group())  # type: ignore[union-attr]
            line_end = _scan(text, start, "\n")
            end = start + len(_without_comment(text, start, line_end).rstrip())
        newline = _scan(text, max(end, position), "\n")
        after = min(newline + 1, len(text))
        yield Statement(path=path, is_header=is_header, first=first, after=after, value=(start, end), written=written)
        position = _skip(text, after)


def locate(text: str, keys: Iterable[str | int]) -> int | None:
    """Return the 1-based line on which a key path of a valid TOML text is set, else that of its nearest parent, else None."""
    path = tuple(key for key in keys if isinstance(key, str))
    best: Statement | None = None
    for statement in statements(text):
        found = statement.path
        if found and found == path[: len(found)] and (best is None or len(found) > len(best.path)):
            best = statement
    return None if best is None else text.count("\n", 0, best.first) + 1


def _skip(text: str, position: int) -> int:
    """Return the offset after white space and comments."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _scan(text: str, position: int, stop: str) -> int:
    """Return the offset of the first `stop` outside strings, brackets and comments (a newline ends a comment), else the end."""
    depth = 0
    while position < len(text):
        character = text[position]
        if character in "\"'":
            position = _STRINGS.match(text, position).end()  # type: ignore[union-attr]
            continue
        if character == "#":
            newline = text.find("\n", position)
            position = len(text) if newline < 0 else newline
            continue
        if character == stop and depth == 0:
            return position
        depth += (character in _OPEN) - (character in _CLOSE)
        position += 1
    return len(text)


def _without_comment(text: str, start: int, end: int) -> str:
    """Return the text up to the comment that follows a value or header on its last line."""
    return text[start : min(end, _scan_comment(text, start, end))]


def _scan_comment(text: str, position: int, end: int) -> int:
    depth = 0
    while position < end:
        character = text[position]
        if character in "\"'":
            position = _STRINGS.match(text, position).end()  # type: ignore[union-attr]
            continue
        if character == "#":
            if depth == 0:
                return position
            position = text.find("\n", position)
            continue
        depth += (character in _OPEN) - (character in _CLOSE)
        position += 1
    return end


def _key_path(key: str) -> tuple[str, ...]:
    """Return the parts of a dotted key, as a TOML parser reads them."""
    parts: list[str] = []
    table: object = tomllib.loads(f"{key} = 0")
    while isinstance(table, dict):
        [(part, table)] = table.items()
        parts.append(part)
    return tuple(parts)
