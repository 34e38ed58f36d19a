"""Attention timings: prompts (`isl` query tokens, causal, nothing cached before) and generation (one query over `kv_len` keys).

Columns: attn_dtype, kv_dtype, batch_size, num_heads, num_kv_heads, head_dim, isl or kv_len; optionally window, gpu and power_w (times
only: the power is not used); and times in milliseconds, ``ms_<stack>``, or ``ms`` with the stack in the file's name. The device is
named by the column gpu or by the file's name. Calls were repeated on the same data, so what fits the cache is found there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.kinds.cells import USELESS, Cells, counted, device_and_stack, device_name, read_cells, with_rows
from replay.calibration.measured import MeasuredSet
from replay.catalog.hardware import read_hardware
from replay.errors import SpecError, nearest
from replay.lowering.kernel_plan import FORMAT_BYTES
from replay.specs.hardware import HardwareSpec
from replay.tiling.families.decode_attention import DecodeAttention, decode_shapes
from replay.tiling.families.decode_paths import MASKED, MASKED_FALLBACK_GROUP, PATHS, decode_paths
from replay.tiling.families.prefill_attention import PrefillAttention, prefill_path, prefill_shapes
from replay.tiling.terms import Array

FALLBACK = "more than 32 query heads a key-value head: a fallback kernel, 10 to 100 times slower"
OTHER_HEAD = "head size that the kernel does not support: another one runs, which is not modelled"
ONE_TOKEN = "a prompt of one token: the decode kernel runs, which generation files time"
_FORMATS = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "fp8": "fp8", "int8": "int8"}
_SIZES = ("batch_size", "num_heads", "num_kv_heads", "head_dim")

Rows = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Rows of one device, stack, pair of formats and kind of mask."""

    device: HardwareSpec
    stack: str
    math: str
    cache: str
    windowed: bool
    rows: Rows
    seconds: Array
    useless_count: int
    """Rows with a time that is none."""

    def take(self, mask: npt.NDArray[np.bool_]) -> _Part:
        """Return the part of the rows where `mask` holds."""
        return replace(self, rows={name: column[mask] for name, column in self.rows.items()}, seconds=self.seconds[mask])

    def measured(self, family: DecodeAttention | PrefillAttention, kernel: str, shapes: dict[str, Array]) -> MeasuredSet:
        """Return the rows as a set of `family`; calibrations are split by formats and kernel."""
        formats = self.math if self.math == self.cache else f"{self.math}-{self.cache}kv"
        return MeasuredSet(
            family=family,
            hardware=self.device.name,
            stack=self.stack,
            variant=f"{formats}-{kernel}",
            shapes=shapes,
            seconds=self.seconds,
            group_key=tuple(self.rows[name].astype(np.int64) for name in _SIZES[1:]),
        )

    def with_skipped(self, sets: list[MeasuredSet], skipped: tuple[tuple[str, int], ...]) -> list[MeasuredSet]:
        """Return the sets of this part, the first of them with all that was left out."""
        useless = ((USELESS, self.useless_count),) if self.useless_count else ()
        return [replace(sets[0], skipped=(*useless, *skipped)), *sets[1:]]

    def counts(self) -> dict[str, Array]:
        """Return the columns that prompts and generation share."""
        sizes = dict(zip(("sequences", "query_heads", "kv_heads", "head_size"), (self.rows[name] for name in _SIZES), strict=True))
        window = {"window_tokens": self.rows["window"]} if self.windowed else {}
        return {**sizes, **window, "cache_warm_ratio": np.array(1.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """Files of prompts or of generation."""

    name: str
    length: str
    """The column of tokens."""
    sets: Callable[[_Part], list[MeasuredSet]]

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether a file with these columns is of this kind."""
        return {"attn_dtype", "kv_dtype", self.length, *_SIZES} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return a set for each stack, format and kernel of a file; `where` is its name.

        Raises:
            SpecError: an unknown column, device or format, a value that cannot be, times that are no milliseconds, or no usable row.
        """
        return with_rows([measured for part in _parts(table, self.length, where) for measured in self.sets(part)], where)


def _parts(table: pa.Table, length: str, where: str) -> Iterator[_Part]:
    """Yield the rows by device, stack, formats and mask; an empty cell is no row."""
    times = [name for name in table.column_names if name == "ms" or name.startswith("ms_")]
    if not times:
        raise SpecError(where, "no column of times", "times in milliseconds as ms or ms_<stack>", "name the column so")
    cells = read_cells(table, ("attn_dtype", "kv_dtype", length, *_SIZES, *times), ("window", "gpu", "power_w"), where)
    rows = _columns(cells, length)
    keys = list(zip(rows["device"].tolist(), rows["attn_dtype"].tolist(), rows["kv_dtype"].tolist(), rows["window"] > 0, strict=True))
    for column in times:
        stack = column.removeprefix("ms_") if column != "ms" else device_and_stack(where)[1]
        seconds, usable, useless = cells.seconds(column)
        for key in sorted(set(keys)):
            mask = np.array([other == key for other in keys])
            device, math, cache, windowed = key
            yield _Part(
                device=read_hardware(device),
                stack=stack,
                math=math,
                cache=cache,
                windowed=bool(windowed),
                rows={name: values[mask & usable] for name, values in rows.items()},
                seconds=seconds[mask & usable],
                useless_count=int((mask & useless).sum()),
            )


def _columns(cells: Cells, length: str) -> Rows:
    """Return sizes [rows] as floats, `tokens`, formats and `device` under our names, and `window` (0 = none)."""
    rows: Rows = {name: cells.whole(name).astype(np.float64) for name in _SIZES}
    rows["tokens"] = cells.whole(length).astype(np.float64)
    uneven = np.flatnonzero(rows["num_heads"] % rows["num_kv_heads"] > 0)
    if len(uneven):
        got = f"{rows['num_heads'][uneven[0]]:g} heads over {rows['num_kv_heads'][uneven[0]]:g} key-value heads"
        raise SpecError(f"{cells.where}: row {uneven[0] + 2}", got, "a whole number of query heads for each", "correct the shape")
    named = set(cells.table.column_names)
    rows["window"] = np.nan_to_num(cells.numbers("window")) if "window" in named else np.zeros(len(rows["tokens"]))
    for name in ("attn_dtype", "kv_dtype"):
        rows[name] = _renamed(cells.text(name), _format, f"{cells.where}: {name}")
    given = cells.text("gpu") if "gpu" in named else np.full(len(rows["tokens"]), device_and_stack(cells.where)[0])
    rows["device"] = _renamed(given, device_name, f"{cells.where}: gpu")
    return rows


def _renamed(texts: npt.NDArray[np.str_], rename: Callable[[str, str], str], where: str) -> npt.NDArray[np.str_]:
    names = {text: rename(text, where) for text in np.unique(texts).tolist()}
    return np.array([names[text] for text in texts.tolist()])


def _format(text: str, where: str) -> str:
    if text not in _FORMATS:
        raise SpecError(where, f"unknown format {text!r}{nearest(text, _FORMATS)}", "one of " + ", ".join(_FORMATS), "correct it")
    return _FORMATS[text]


def _generation_sets(part: _Part) -> list[MeasuredSet]:
    rows, group = part.rows, part.rows["num_heads"] / part.rows["num_kv_heads"]
    names = decode_paths(
        part.stack,
        part.cache,
        part.device,
        sequences=rows["batch_size"],
        keys=rows["tokens"],
        query_heads=rows["num_heads"],
        kv_heads=rows["num_kv_heads"],
        head_sizes=rows["head_dim"],
    )
    fallback = (names == MASKED.name) & (group > MASKED_FALLBACK_GROUP)
    usable, other = np.zeros(len(names), dtype=np.bool_), np.zeros(len(names), dtype=np.bool_)
    for name in np.unique(names).tolist():
        runs, has = ~fallback & (names == name), PATHS[name].supports(rows["head_dim"])
        usable, other = usable | (runs & has), other | (runs & ~has)
    skipped = counted([(FALLBACK, fallback), (OTHER_HEAD, other)])
    sets = []
    for name in sorted(set(names[usable].tolist())) or [MASKED.name]:
        chosen = part.take(usable & (names == name))
        family = DecodeAttention(path=PATHS[name], kv_bytes=FORMAT_BYTES[part.cache], planned_units=part.device.units_count)
        shapes = decode_shapes({**chosen.counts(), "context_tokens": chosen.rows["tokens"]})
        sets.append(chosen.measured(family, name, shapes))
    return part.with_skipped(sets, skipped)


def _context_sets(part: _Part) -> list[MeasuredSet]:
    path = prefill_path(part.stack, part.cache, part.device)
    single = part.rows["tokens"] == 1
    other = ~single & ~path.supports(part.rows["head_dim"])
    chosen = part.take(~single & ~other)
    family = PrefillAttention(path=path, math_bytes=FORMAT_BYTES[part.math])
    shapes = prefill_shapes({**chosen.counts(), "prompt_tokens": chosen.rows["tokens"]})
    kernel = path.kernel(windowed=part.windowed)
    return part.with_skipped([chosen.measured(family, kernel, shapes)], counted([(ONE_TOKEN, single), (OTHER_HEAD, other)]))


CONTEXT = AttentionKind(name="attention_context", length="isl", sets=_context_sets)
GENERATION = AttentionKind(name="attention_generation", length="kv_len", sets=_generation_sets)
