"""Tuned kernel tables: the JSON files in which vLLM and SGLang look up tiles of experts and of block-scaled products by batch.

The file's name says what it was tuned for (``E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json`` for experts,
``N=..,K=..,device_name=..`` for one dense product), its body maps a number of tokens to a tile. The stacks look up the nearest
batch, and run their default without a word where the name does not match (`get_moe_configs` and `try_get_optimal_moe_config` of vLLM).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from replay import documents
from replay.errors import SpecError, nearest
from replay.provenance import digest_document

TRITON_WARPS, TRITON_STAGES = 4, 3
"""Triton's defaults where a file leaves them out."""
NOT_BATCHES = frozenset({"triton_version"})
"""Keys that newer files have beside the batches."""
_NAME = re.compile(
    r"(?:E=(?P<experts>\d+),)?N=(?P<columns>\d+)(?:,K=(?P<depth>\d+))?,device_name=(?P<device>[^,/]+)"
    r"(?:,dtype=(?P<dtype>[a-z0-9_]+))?(?:,block_shape=\[(?P<block>\d+, ?\d+)\])?(?<!_down)\.json"
)
"""SGLang's ``_down`` tables, for the second multiply alone, are not among them."""
_WANT_NAME = "E=..,N=..,device_name=...json or N=..,K=..,device_name=...json, then ,dtype=.. and ,block_shape=[..] where they apply"
_SIZES = {"BLOCK_SIZE_M": "rows", "BLOCK_SIZE_N": "columns", "BLOCK_SIZE_K": "depth"}
_OTHERS = {"GROUP_SIZE_M": ("group", 1), "num_warps": ("warps", TRITON_WARPS), "num_stages": ("stages", TRITON_STAGES)}
_HINTS = frozenset({"SPLIT_K", "waves_per_eu", "matrix_instr_nonkdim", "kpack"})
"""Keys of AMD files that no cost here depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """One tuned kernel."""

    rows: int
    columns: int
    depth: int
    group: int
    """Row tiles that share one pass over the weights."""
    warps: int
    stages: int

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows, columns and depth of the output tile."""
        return self.rows, self.columns, self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRange:
    """Rows for which a table gives one entry."""

    first_row: int
    last_row: int
    batch: int
    entry: TableEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TileTable:
    """One file."""

    path: str
    """As the mapping file names it, relative to that file."""
    batches: tuple[tuple[int, TableEntry], ...]
    """In the file's order."""
    experts_count: int | None
    columns: int
    """Width of an expert on one rank, or columns of a dense product."""
    depth: int | None
    """Depth of a dense product; None for experts."""
    device_name: str
    dtype: str
    """As in the name; empty for 16 bit."""
    block_shape: str
    """As in the name, without spaces; empty without blocks."""

    def ranges(self, rows_to: int) -> Iterator[TableRange]:
        """Yield the entry of each row count from 1 to `rows_to`: that of the nearest batch, of two the one that the file has first."""
        order = {batch: place for place, (batch, _) in enumerate(self.batches)}
        entries = dict(self.batches)
        edges = self._turns(rows_to)
        for first, after in zip(edges, [*edges[1:], rows_to + 1], strict=True):
            batch = min(entries, key=lambda batch: (abs(batch - first), order[batch]))
            yield TableRange(first_row=first, last_row=after - 1, batch=batch, entry=entries[batch])

    def _turns(self, rows_to: int) -> list[int]:
        """Return the row counts at which the nearest batch changes, 1 included."""
        order = {batch: place for place, (batch, _) in enumerate(self.batches)}
        ascending = sorted(order)
        edges = [1]
        for low, high in pairwise(ascending):
            middle, odd = divmod(low + high, 2)
            edges.append(middle + (1 if odd or order[low] < order[high] else 0))
        return sorted({edge for edge in edges if 1 <= edge <= rows_to})

    @property
    def text(self) -> str:
        """The file's content, as `parse_table` reads it."""
        return json.dumps(self.to_document()["batches"])

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form: path and body, as `parse_table` reads them."""
        keys = {name: key for key, name in _SIZES.items()} | {name: key for key, (name, _) in _OTHERS.items()}
        body = {str(batch): {key: getattr(entry, name) for name, key in keys.items()} for batch, entry in self.batches}
        return {"path": self.path, "batches": body}


@dataclass(frozen=True, slots=True, kw_only=True)
class TileTables:
    """The tables that one setting names."""

    tables: tuple[TileTable, ...]

    def __str__(self) -> str:
        return ", ".join(f"{table.path} ({digest_document(table.to_document()['batches'])[:15]})" for table in self.tables)

    @property
    def paths(self) -> str | list[str]:
        """The value as a mapping file writes it."""
        names = [table.path for table in self.tables]
        return names if len(names) > 1 else names[0]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"tables": [table.to_document() for table in self.tables]}


TableReader = Callable[[str], str]
"""Returns the text of a table by the path that a mapping file names."""


def read_tables(value: object, where: str, read: TableReader) -> TileTables:
    """Return the tables that a mapping file's value names: a path, or a list of them.

    Raises:
        SpecError: it is neither, or a table cannot be used.
    """
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and _is_relative(path) for path in paths):
        want = 'a path relative to the mapping file, a list of paths, or "none"'
        raise SpecError(where, f"the table is {value!r}", want, "correct the path")
    return TileTables(tables=tuple(parse_table(path, documents.parse_json(read(path), path), where) for path in paths))


def tables_from_document(document: Any, where: str) -> TileTables:
    """Return the tables of a JSON form made by `TileTables.to_document`; it passes the same checks as a file.

    Raises:
        SpecError: it is none.
    """
    entries = document.get("tables") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries or not all(isinstance(e, dict) and isinstance(e.get("path"), str) for e in entries):
        raise SpecError(where, "tables without their content", "each table with path and batches", "make the file again")
    return TileTables(tables=tuple(parse_table(entry["path"], entry.get("batches"), where) for entry in entries))


def parse_table(path: str, body: object, where: str) -> TileTable:
    """Return the table of a file's path and JSON body.

    Raises:
        SpecError: the name does not say what it was tuned for, or an entry is not one.
    """
    name = _NAME.fullmatch(PurePosixPath(path).name)
    if name is None or (name["experts"] is None) == (name["depth"] is None):
        raise SpecError(where, f"the table is named {path!r}", _WANT_NAME, "name it as vLLM and SGLang do")
    if not isinstance(body, dict):
        raise SpecError(path, "no JSON object", "batch -> tile", "check that it is the right file")
    batches = [(_batch(key, path), _entry(entry, key, path)) for key, entry in body.items() if key not in NOT_BATCHES]
    if not batches or len({batch for batch, _ in batches}) < len(batches):
        raise SpecError(
            path, "a batch twice" if batches else "no batch", "one entry for each batch", "tune again, or export the file again"
        )
    return TileTable(
        path=path,
        batches=tuple(batches),
        experts_count=int(name["experts"]) if name["experts"] else None,
        columns=int(name["columns"]),
        depth=int(name["depth"]) if name["depth"] else None,
        device_name=name["device"],
        dtype=name["dtype"] or "",
        block_shape=(name["block"] or "").replace(" ", ""),
    )


def _is_relative(path: str) -> bool:
    return bool(path) and not PurePosixPath(path).is_absolute()


def _batch(key: str, path: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", key):
        raise SpecError(path, f"the key {key!r}", "numbers of tokens as keys", "remove it, or correct it")
    return int(key)


def _entry(entry: object, batch: str, path: str) -> TableEntry:
    if not isinstance(entry, dict):
        raise SpecError(path, f"batch {batch} is {entry!r}", "a tile", "tune that batch again")
    known = (*_SIZES, *_OTHERS, *_HINTS)
    unknown = next((key for key in entry if key not in known), None)
    if unknown is not None:
        raise SpecError(
            path, f"batch {batch} has the unknown key {unknown!r}{nearest(unknown, known)}", ", ".join(known), "correct the key"
        )
    sizes = {name: entry.get(key) for key, name in _SIZES.items()}
    sizes |= {name: entry.get(key, default) for key, (name, default) in _OTHERS.items()}
    for key, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < (0 if key == "stages" else 1):
            raise SpecError(path, f"batch {batch} has {key} {value!r}", "a whole number >= 1", "tune that batch again")
    return TableEntry(**sizes)  # type: ignore[arg-type]
