"""Timings of dense matrix multiplies: ``m, n, k`` of activations m x k with weights n x k, 16-bit results.

Times in milliseconds are in one column for each stack, ``ms_<stack>``, or in ``ms`` with the stack in the file's name. The format is
in the column dtype or in the file's name, the device in the column gpu or in the file's name (``gemm_h100_bf16.csv``,
``gemm_h200_fp8_vllm_0.24.0.csv``). Kernels with a tile or split of the caller's have it in ``tile_m, tile_n, tile_k`` and
``split_k``, empty where the library chose. power_w is not used. Calls were repeated with weights in rotation: see
`replay.tiling.families.gemm_paths`. Formats that narrow activations include the kernel that does so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.kinds.cells import (
    LAUNCH_S,
    PLAUSIBLE_RATIO,
    USELESS,
    Cells,
    Mask,
    chosen,
    counted,
    device_and_stack,
    device_name,
    read_cells,
    with_rows,
)
from replay.calibration.measured import MeasuredSet
from replay.catalog.hardware import read_hardware
from replay.errors import SpecError, nearest
from replay.tiling.families.gemm import GemmFamily, gemm_family, gemm_shapes, pinned_variant
from replay.tiling.families.gemm_formats import GEMM_FORMATS
from replay.tiling.families.gemm_tiles import Tile, tile_problem
from replay.tiling.terms import Array

FORMATS: Mapping[str, str] = {
    **{name: name for name in GEMM_FORMATS},
    "bfloat16": "bf16",
    "fp16": "bf16",
    "float16": "bf16",
    "sq": "int8_smooth",
    "int8_wo": "int8_weights",
    "int4_wo": "int4_weights",
}
"""Names that tables use -> formats; both 16-bit formats run at one rate on every device of the catalog."""

TILE, SPLIT = ("tile_m", "tile_n", "tile_k"), "split_k"
Pin = tuple[Tile | None, int | None]
"""Tile and split that a kernel was called with; None where the library chose."""
Sizes = Sequence[npt.NDArray[np.int64]]
"""Rows, columns, depth, each [rows]."""
Place = tuple[str, str, str]
"""Catalog name of the device, stack, format."""


@dataclass(frozen=True, slots=True)
class GemmKind:
    """Dense multiplies on matrix units."""

    name: str = "gemm"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are columns of multiplies; kinds with more columns than those come first."""
        return {"m", "n", "k"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return a set for each device, stack and format of a file.

        Raises:
            SpecError: columns, sizes, devices, formats or times that cannot be, or no usable row.
        """
        times = [name for name in table.column_names if name == "ms" or name.startswith("ms_")]
        if not times:
            raise SpecError(where, "no column of times", "times in milliseconds as ms or ms_<stack>", "name the column so")
        cells = read_cells(table, ("m", "n", "k", *times), ("dtype", "gpu", "power_w", *TILE, SPLIT), where)
        sizes = [cells.whole(name) for name in ("m", "n", "k")]
        devices, formats, pins = _devices(cells), _formats(cells), _pins(cells)
        sets = []
        for column in times:
            seconds, usable, useless = cells.seconds(column)
            stack = column.removeprefix("ms_") if column != "ms" else _named(where)[2]
            for device in sorted(set(devices.tolist())):
                for form, (tile, split), pinned in _kernels(formats, pins):
                    rows = (devices == device) & pinned
                    skipped = counted([(USELESS, rows & useless)])
                    rows &= usable
                    sets.append(product_set((device, stack, form), chosen(sizes, rows), seconds[rows], skipped=skipped))
                    sets[-1] = _pinned(sets[-1], form, tile, split)
                    _check_rows(sets[-1], np.flatnonzero(rows), f"{where}: {column}")
        return with_rows(sets, where)


GEMM_KIND = GemmKind()


def pinned_cells(tile: Tile | None, split: int | None) -> dict[str, str | int]:
    """Return the cells of a table that say which tile and split a kernel is called with, empty where the library chooses."""
    sizes: tuple[str | int, ...] = ("", "", "") if tile is None else tile
    return {**dict(zip(TILE, sizes, strict=True)), SPLIT: "" if split is None else split}


def product_set(
    place: Place, sizes: Sizes, seconds: Array, *, cold: bool = False, skipped: tuple[tuple[str, int], ...] = ()
) -> MeasuredSet:
    """Return measured products as a set; shape groups are pairs of columns and depth. `cold`: other weights come between two calls."""
    hardware, stack, form = place
    return MeasuredSet(
        family=gemm_family(form, stack, read_hardware(hardware), cold=cold),
        hardware=hardware,
        stack=stack,
        variant=form,
        shapes=gemm_shapes(*sizes),
        seconds=seconds,
        group_key=(sizes[1], sizes[2]),
        skipped=skipped,
    )


def _named(where: str) -> tuple[str, str, str]:
    """Return (device, format, stack) of a file's name; format and stack are empty where it has none.

    Raises:
        SpecError: no part of the name is a device.
    """
    device, rest = device_and_stack(where)
    for name in sorted(FORMATS, key=len, reverse=True):
        if f"{rest}_".startswith(f"{name}_"):
            return device, name, rest[len(name) + 1 :]
    return device, "", rest


def _devices(cells: Cells) -> npt.NDArray[np.str_]:
    """Return the catalog names of the devices [rows]."""
    if "gpu" not in cells.table.column_names:
        return np.full(cells.table.num_rows, _named(cells.where)[0])
    texts = cells.text("gpu")
    names = {text: device_name(text, f"{cells.where}: gpu") for text in np.unique(texts).tolist()}
    return np.array([names[text] for text in texts.tolist()])


def _formats(cells: Cells) -> npt.NDArray[np.str_]:
    """Return the formats [rows].

    Raises:
        SpecError: neither the column dtype nor the file's name says which, or there is no such format.
    """
    known = ", ".join(FORMATS)
    if "dtype" not in cells.table.column_names:
        name = _named(cells.where)[1]
        if not name:
            raise SpecError(cells.where, "no format in the file's name, and no column dtype", f"one of {known}", "add the column")
        return np.full(cells.table.num_rows, FORMATS[name])
    texts = cells.text("dtype")
    for text in np.unique(texts).tolist():
        if text not in FORMATS:
            raise SpecError(f"{cells.where}: dtype", f"unknown format {text!r}{nearest(text, FORMATS)}", f"one of {known}", "correct it")
    return np.array([FORMATS[text] for text in texts.tolist()])


def _pins(cells: Cells) -> list[Pin]:
    """Return the tile and split of each row, None where the library chose.

    Raises:
        SpecError: a cell holds no whole number, or a tile lacks one of its three.
    """
    given = {name: cells.numbers(name) for name in (*TILE, SPLIT) if name in cells.table.column_names}
    columns = {name: cells.whole(name, np.isfinite(values)) * np.isfinite(values) for name, values in given.items()}
    count = cells.table.num_rows
    tiles, splits = (
        [columns.get(name, np.zeros(count, dtype=np.int64)).tolist() for name in TILE],
        columns.get(SPLIT, np.zeros(count)).tolist(),
    )
    found: list[Pin] = []
    for row, (tile, split) in enumerate(zip(zip(*tiles, strict=True), splits, strict=True)):
        if any(tile) and not all(tile):
            got = "a tile without " + " and ".join(name for name, size in zip(TILE, tile, strict=True) if not size)
            raise SpecError(f"{cells.where}, row {row + 2}", got, "all of " + ", ".join(TILE) + ", or none", "complete or empty the cells")
        found.append((tile if all(tile) else None, int(split) or None))
    return found


def _kernels(formats: npt.NDArray[np.str_], pins: Sequence[Pin]) -> Iterator[tuple[str, Pin, Mask]]:
    """Yield each format and pin that occurs, with its rows [rows]."""
    pairs = list(zip(formats.tolist(), pins, strict=True))
    for pair in sorted(set(pairs), key=repr):
        yield *pair, np.array([other == pair for other in pairs])


def _pinned(measured: MeasuredSet, form: str, tile: Tile | None, split: int | None) -> MeasuredSet:
    """Return the set as one of kernels with that tile and split.

    Raises:
        SpecError: no unit of the device holds the tile.
    """
    if tile is None and split is None:
        return measured
    assert isinstance(measured.family, GemmFamily)
    if tile is not None and (problem := tile_problem(tile, measured.family.format, read_hardware(measured.hardware))):
        raise SpecError(f"a tile of {measured.hardware}", problem, "a tile that one unit holds", "correct the row")
    return replace(measured, family=replace(measured.family, tile=tile, split=split), variant=pinned_variant(form, tile, split))


def _check_rows(measured: MeasuredSet, rows: npt.NDArray[np.int64], where: str) -> None:
    """Raise where single `rows` of a set are in another unit; multiplies leave no such range (a whole column is `with_rows`'s)."""
    least = measured.family.bound_s(measured.shapes, read_hardware(measured.hardware)) + LAUNCH_S
    ratio = measured.seconds / least
    odd: Mask = (ratio < PLAUSIBLE_RATIO[0]) | (ratio > PLAUSIBLE_RATIO[1])
    if odd.any() and not odd.all():
        row = int(np.flatnonzero(odd)[0])
        got = f"a time {ratio[row]:.3g} times what {measured.hardware} needs at least, beside others in milliseconds"
        raise SpecError(f"{where}, row {rows[row] + 2}", got, "one unit, milliseconds, in the whole column", "convert the row")
