"""Names that become part of a path, a claim's id or a line of output: one rule, kept at every door."""

from __future__ import annotations

import re

NAME_RULE = "1 to 80 letters, digits, spaces and . _ - that begin with a letter, digit or _ and end without a space"
_LONGEST_BYTES = 80  # two names and a suffix stay inside the 255 bytes that file systems give a file name
_FORBIDDEN = re.compile(r"[^\w. -]+")


def is_safe_name(name: str) -> bool:
    """Return whether a name holds to NAME_RULE: no path separator, no control character, no dot or hyphen in front."""
    if not name or _FORBIDDEN.search(name) or name[0] in " .-" or name[-1] == " ":
        return False
    return len(name.encode()) <= _LONGEST_BYTES


def safe_name(text: str) -> str:
    """Return the nearest safe name of a text that nobody chose as a name, such as a file's: what is not allowed becomes ``_``."""
    plain = _FORBIDDEN.sub("_", text).lstrip(" .-")
    cut = plain.encode()[:_LONGEST_BYTES].decode(errors="ignore").rstrip(" ")
    return cut or "_"
