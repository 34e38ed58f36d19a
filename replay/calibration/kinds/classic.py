"""What the tables of classic kernel benchmarks have in common: devices without public figures, precisions, units of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from replay.calibration.kinds.cells import USELESS, Cells, device_name
from replay.calibration.measured import MeasuredSet
from replay.catalog.hardware import hardware_names, read_hardware
from replay.errors import SpecError, nearest
from replay.tiling.families.family import KernelFamily, Shapes

Place = tuple[str, str, str]
"""(hardware, stack, variant)"""
UNDESCRIBED = ("m40",)
"""Devices in public benchmarks of which the catalog has no figures."""
FP32, STORED_HALF, MATRIX_HALF, QUADS = "fp32", "stored-half", "matrix-half", "int8"
_WORKSHEETS = {
    "FP32": FP32,
    "FP16 ip, Mixed math": MATRIX_HALF,
    "Mixed Precision": QUADS,
    "Psuedo FP16": STORED_HALF,
    "Pseudo FP16": STORED_HALF,
}
"""DeepBench worksheet, without its first word -> what it computes in (spelled as it is there)."""
_PLAUSIBLE = (0.05, 300.0)
"""Range of the median of time over (physical bound + a launch); outside it a column is not in milliseconds."""
_LAUNCH_S = 10e-6


def precisions(cells: Cells) -> npt.NDArray[np.str_]:
    """Return what each row of a DeepBench table computes in [rows].

    Raises:
        SpecError: an unknown worksheet.
    """
    names = cells.text("precision")
    known = {name: _WORKSHEETS.get(name.removeprefix("Results").lstrip(" -")) for name in np.unique(names).tolist()}
    for name, found in known.items():
        if found is None:
            want = "one of " + ", ".join(f"Results - {sheet}" for sheet in _WORKSHEETS)
            raise SpecError(f"{cells.where}: precision", f"unknown worksheet {name!r}{nearest(name, _WORKSHEETS)}", want, "correct it")
    return np.array([known[name] for name in names.tolist()])


def devices(cells: Cells, column: str = "gpu") -> tuple[npt.NDArray[np.str_], tuple[tuple[str, int], ...]]:
    """Return the catalog name of each row's device [rows], empty where it has no figures, and how many rows that are.

    Raises:
        SpecError: an unknown device.
    """
    shorts = cells.text(column)
    names = {
        short: "" if _is_undescribed(short) else device_name(short, f"{cells.where}: {column}") for short in np.unique(shorts).tolist()
    }
    found = np.array([names[short] for short in shorts.tolist()], dtype=np.str_)
    without = [(short, int((shorts == short).sum())) for short, name in names.items() if not name]
    return found, tuple((f"the catalog has no figures of the device {short!r}", count) for short, count in without)


def split_sets(
    cells: Cells,
    times: str,
    places: tuple[npt.NDArray[np.str_], npt.NDArray[np.str_], npt.NDArray[np.str_]],
    family_of: Callable[[Place], KernelFamily],
    rows: tuple[Shapes, tuple[npt.NDArray[np.int64], ...]],
    skipped: Iterable[tuple[str, int]],
) -> tuple[MeasuredSet, ...]:
    """Return the rows in a set per hardware, stack and variant of `places` ([rows] each); `times` names a column of milliseconds.

    `rows` are their shapes and the columns of their group's key; rows without hardware belong to no set and are counted in
    `skipped` before, which the first set carries.

    Raises:
        SpecError: no row can be used, or times that cannot be milliseconds.
    """
    seconds, usable, _ = cells.seconds(times)
    measured = usable | ~np.asarray(cells.table[times].is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)
    sets: list[MeasuredSet] = []
    lost = list(skipped)
    for place in sorted(set(zip(*(column.tolist() for column in places), strict=True))):
        chosen = np.logical_and.reduce([column == part for column, part in zip(places, place, strict=True)])
        good, useless = chosen & usable, int((chosen & measured & ~usable).sum())
        counted = ((USELESS, useless),) if useless else ()
        if place[0] and good.any():
            sets.append(_set(place, family_of(place), rows, seconds, good, counted))
        elif place[0]:
            lost += counted
    return _checked(sets, lost, cells.where)


def _set(
    place: Place,
    family: KernelFamily,
    rows: tuple[Shapes, tuple[npt.NDArray[np.int64], ...]],
    seconds: npt.NDArray[np.float64],
    good: npt.NDArray[np.bool_],
    skipped: tuple[tuple[str, int], ...],
) -> MeasuredSet:
    shapes, key = rows
    return MeasuredSet(
        family=family,
        hardware=place[0],
        stack=place[1],
        variant=place[2],
        shapes={name: column[good] for name, column in shapes.items()},
        seconds=seconds[good],
        group_key=tuple(column[good] for column in key),
        skipped=skipped,
    )


def _checked(sets: Sequence[MeasuredSet], skipped: Sequence[tuple[str, int]], where: str) -> tuple[MeasuredSet, ...]:
    """Return the sets, with what belongs to none of them counted at the first."""
    if not sets:
        reasons = "; ".join(f"{reason} ({count} rows)" for reason, count in skipped) or "no cell holds a time"
        raise SpecError(where, f"no row can be used: {reasons}", "at least one measured kernel", "give a file with usable rows")
    for measured in sets:
        bound = measured.family.bound_s(measured.shapes, read_hardware(measured.hardware))
        excess = float(np.median(measured.seconds / (bound + _LAUNCH_S)))
        if not _PLAUSIBLE[0] <= excess <= _PLAUSIBLE[1]:
            got = f"times of {measured.stack} are {excess:.3g} times what {measured.hardware} needs at least"
            raise SpecError(where, got, "milliseconds", "convert the column to milliseconds")
    return (replace(sets[0], skipped=(*sets[0].skipped, *skipped)), *sets[1:])


def _is_undescribed(short: str) -> bool:
    return short in UNDESCRIBED and short not in hardware_names()
