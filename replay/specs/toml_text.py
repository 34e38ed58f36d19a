"""Keys and values of a mapping file as TOML writes them."""

from __future__ import annotations

import json
import re

from replay.specs.knobs import Value
from replay.specs.tile_table import TileTables


def toml_key(key: str) -> str:
    """Return a key, quoted where it must be."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def toml_value(value: Value) -> str:
    """Return a knob's value; tuned tables by their paths."""
    if isinstance(value, TileTables):
        return json.dumps(value.paths, ensure_ascii=False)
    if isinstance(value, tuple):
        return "[" + ", ".join(json.dumps(item, ensure_ascii=False) for item in value) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
