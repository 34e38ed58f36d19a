"""Cells of a measurement table: checked columns, device and stack names, and milliseconds turned into seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.measured import MeasuredSet
from replay.calibration.whole import MeasuredWhole
from replay.catalog.hardware import hardware_names, read_hardware
from replay.errors import SpecError, nearest
from replay.tiling.terms import Array

DEVICES = {
    "a100": "a100-sxm-80gb",
    "a100_pcie_40": "a100-pcie-40gb",
    "b200": "b200-sxm",
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "p100": "p100-pcie-16gb",
    "v100": "v100-pcie-32gb",
    "AMD_Instinct_MI100": "mi100",
    "NVIDIA_A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA_A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA_H100_80GB_HBM3": "h100-sxm",
    "Tesla_P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla_P4": "p4",
    "Tesla_T4": "t4",
    "Tesla_V100-PCIE-32GB": "v100-pcie-32gb",
}
"""Short names and drivers' names that public tables use -> catalog names; other catalog names stand for themselves."""
Mask = npt.NDArray[np.bool_]
USELESS = "time is not a number above zero and below an hour"
SECONDS_PER_MS = 1e-3
LAUNCH_S = 2e-6
LONGEST_S = 3600.0
MOST = 2**40
"""Largest whole number of a cell: what is far above any tensor's size is a slip, and its products would not be exact."""
PLAUSIBLE_RATIO = (0.05, 300.0)
"""Range of the median of time over (physical bound + a launch); outside it a column is not in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A table and the name that errors give it."""

    table: pa.Table
    where: str

    def whole(self, name: str, rows: Mask | None = None) -> npt.NDArray[np.int64]:
        """Return a column of whole numbers [rows], each 1 to 2^40; of other rows than `rows` the cell is not read, and 1.

        Raises:
            SpecError: a cell is empty, no whole number, below 1 or above 2^40.
        """
        values = self.numbers(name) if rows is None else np.where(rows, self.numbers(name), 1.0)
        bad = ~(np.isfinite(values) & (values >= 1) & (values <= MOST) & (np.floor(values) == values))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise SpecError(self._at(name, row), _shown(self.table[name][row].as_py()), "a whole number from 1 to 2^40", "correct the cell")
        return values.astype(np.int64)

    def numbers(self, name: str) -> Array:
        """Return a numeric column [rows] as floats, NaN for empty cells.

        Raises:
            SpecError: the column holds text.
        """
        column = self.table[name]
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)):
            shown = next((value for value in column.to_pylist() if value is not None), None)
            raise SpecError(f"{self.where}: {name}", _shown(shown), "numbers", "correct the cells, without units inside them")
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)

    def text(self, name: str) -> npt.NDArray[np.str_]:
        """Return a column as text [rows].

        Raises:
            SpecError: a cell is empty.
        """
        values = self.table[name].to_pylist()
        if None in values or "" in values:
            row = next(index for index, value in enumerate(values) if value in (None, ""))
            raise SpecError(self._at(name, row), "an empty cell", "a name", "fill the cell or drop the row")
        return np.array([str(value) for value in values], dtype=np.str_)

    def seconds(self, name: str) -> tuple[Array, Mask, Mask]:
        """Return a column of milliseconds as (seconds, usable, useless), each [rows].

        Empty cells were not measured: they are neither usable nor useless. Times that are not above zero, or above an hour, are useless.
        """
        found = self.numbers(name) * SECONDS_PER_MS
        empty = np.asarray(self.table[name].is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)
        usable = np.isfinite(found) & (found > 0) & (found < LONGEST_S)
        return found, usable, ~usable & ~empty

    def _at(self, name: str, row: int) -> str:
        return f"{self.where}: {name}, row {row + 2}"


def read_cells(table: pa.Table, required: Iterable[str], optional: Iterable[str], where: str) -> Cells:
    """Return the table's cells, after checking its columns.

    Raises:
        SpecError: a column is missing or unknown (another unit would be one), or there is no row.
    """
    required, known = list(required), {*required, *optional}
    for name in table.column_names:
        if name not in known:
            raise SpecError(
                where, f"unknown column {name!r}{nearest(name, known)}", "columns " + ", ".join(sorted(known)), "rename or drop it"
            )
    missing = [name for name in required if name not in table.column_names]
    if missing:
        raise SpecError(where, "no column " + ", ".join(missing), "columns " + ", ".join(required), "add it")
    if table.num_rows == 0:
        raise SpecError(where, "no row", "at least one measured kernel", "give a file with rows")
    return Cells(table=table, where=where)


def device_name(short: str, where: str) -> str:
    """Return the catalog name of a device as a table names it.

    Raises:
        SpecError: the catalog has no such device.
    """
    names = hardware_names()
    found = DEVICES.get(short, short)
    if found not in names:
        known = [*DEVICES, *names]
        raise SpecError(
            where, f"unknown device {short!r}{nearest(short, known)}", "one of " + ", ".join(known), "name a device of the catalog"
        )
    return found


def device_and_stack(where: str) -> tuple[str, str]:
    """Return (catalog name, stack) of a file whose name carries them, as ``moe_a100_sglang_0.5.10.csv`` does.

    The stack is what follows the device, empty where nothing does.

    Raises:
        SpecError: no part of the name is a device.
    """
    stem = re.sub(r"\.(csv|parquet|csv\.gz)$", "", PurePath(where).name)
    parts = stem.split("_")
    known = {*DEVICES, *hardware_names()}
    for index, part in enumerate(parts):
        if part in known:
            return device_name(part, where), "_".join(parts[index + 1 :])
    raise SpecError(
        where, f"no device in the file name {stem!r}", "a name such as moe_a100_sglang_0.5.10.csv", "put the device into the name"
    )


def stack_of_file(where: str) -> str:
    """Return the stack of a file name without a device: the last two parts (``vllm_0.24.0``), or nothing."""
    parts = re.sub(r"\.csv$", "", PurePath(where).name).split("_")
    return "_".join(parts[-2:]) if len(parts) > 2 and re.fullmatch(r"\d[\w.]*", parts[-1]) else ""


def counted(reasons: Iterable[tuple[str, Mask]]) -> tuple[tuple[str, int], ...]:
    """Return (reason, rows) of each reason that holds for some row."""
    return tuple((reason, int(mask.sum())) for reason, mask in reasons if mask.any())


def with_rows(sets: Iterable[MeasuredSet], where: str) -> tuple[MeasuredSet, ...]:
    """Return the sets that have rows; what empty ones skipped is counted by the first of them.

    Raises:
        SpecError: none has a row, or the times of one cannot be milliseconds.
    """
    every = tuple(sets)
    found = [part for part in every if len(part.seconds)]
    if not found:
        raise SpecError(where, "no usable row", "at least one row with a time above zero", "give measured times in milliseconds")
    for part in found:
        _check_unit(part, where)
    orphans = [count for part in every if not len(part.seconds) for count in part.skipped]
    totals: dict[str, int] = {}
    for reason, rows in (*found[0].skipped, *orphans):
        totals[reason] = totals.get(reason, 0) + rows
    return (replace(found[0], skipped=tuple(totals.items())), *found[1:])


def with_left_out(wholes: Sequence[MeasuredWhole], left_out: Iterable[tuple[str, int]], where: str) -> tuple[MeasuredWhole, ...]:
    """Return the wholes, with the rows that belong to none of them counted at the first.

    Raises:
        SpecError: there is none.
    """
    reasons = tuple(left_out)
    if not wholes:
        said = "; ".join(f"{reason} ({count} rows)" for reason, count in reasons) or "no cell holds a time"
        raise SpecError(where, f"no row can be predicted: {said}", "at least one that can", "give a file with such rows")
    return (replace(wholes[0], skipped=(*wholes[0].skipped, *reasons)), *wholes[1:])


def _check_unit(measured: MeasuredSet, where: str) -> None:
    device = read_hardware(measured.hardware)
    least = measured.family.bound_s(measured.shapes, device) + LAUNCH_S
    excess = float(np.median(measured.seconds / least))
    if not PLAUSIBLE_RATIO[0] <= excess <= PLAUSIBLE_RATIO[1]:
        got = f"times of {measured.variant or measured.family.name} are {excess:.3g} times what {measured.hardware} needs at least"
        raise SpecError(where, got, "milliseconds", "convert the column to milliseconds")


def chosen(columns: Sequence[npt.NDArray[np.int64]], rows: Mask) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the given rows of each column."""
    return tuple(column[rows] for column in columns)


def _shown(value: object) -> str:
    return "an empty cell" if value is None else repr(value)
