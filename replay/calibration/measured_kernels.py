"""A user's measured kernels joined to the accelerators that they were timed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from replay import documents
from replay.calibration.measured import MeasuredSet
from replay.calibration.reader import WHAT, parse_measurements
from replay.calibration.whole import MeasuredWhole
from replay.errors import SpecError
from replay.provenance import digest_bytes
from replay.specs.hardware import HardwareSpec
from replay.specs.measured import MeasuredKernels
from replay.tiling.measured_hull import HULLS, SECONDS


def with_measurements(devices: Sequence[HardwareSpec], files: Sequence[tuple[str, Path]]) -> list[HardwareSpec]:
    """Return the devices with the kernels that `files` (name for people, path) time on them; other devices' rows are set aside.

    Raises:
        SpecError: a file cannot be read, times no kernel of a serving step on any of the devices, or one faster than physics allows.
    """
    found = [list(device.measured) for device in devices]
    for name, path in files:
        data = documents.read_bytes(path, WHAT)
        sets = [measured for _, measured in parse_measurements(data, path)]
        kept = [list(_kernels(device, sets, name, digest_bytes(data))) for device in devices]
        if not any(kept):
            raise _nothing(name, sets, devices)
        for own, kernels in zip(found, kept, strict=True):
            own += [one for one in kernels if one not in own]  # a bundle may hold them already
    return [replace(device, measured=tuple(own)) for device, own in zip(devices, found, strict=True)]


def _kernels(device: HardwareSpec, sets: Sequence[MeasuredSet | MeasuredWhole], name: str, digest: str) -> Iterator[MeasuredKernels]:
    """Yield the sets of a device that a serving step has kernels of."""
    ours = [one for one in sets if isinstance(one, MeasuredSet) and one.hardware == device.name and one.family.name in HULLS]
    read = sum(len(measured.seconds) + sum(count for _, count in measured.skipped) for measured in sets)
    set_aside = read - sum(len(measured.seconds) for measured in ours)
    for measured in ours:
        _refuse_too_fast(measured, device, name)
        yield MeasuredKernels(
            family=measured.family.name,
            variant=measured.variant,
            stack=measured.stack,
            table=_csv(measured),
            name=name,
            digest=digest,
            rows_count=len(measured.seconds),
            set_aside_count=set_aside,
        )
        set_aside = 0


def _refuse_too_fast(measured: MeasuredSet, device: HardwareSpec, name: str) -> None:
    bound_s = measured.family.bound_s(measured.shapes, device)
    fast = np.flatnonzero(measured.seconds < bound_s)
    if len(fast):
        row = fast[0]
        shape = ", ".join(f"{column} {values[row]:g}" for column, values in measured.shapes.items())
        got = f"{measured.seconds[row]:.4g} s for {measured.family.name} {measured.variant} of {shape}"
        want = f"at least {bound_s[row]:.4g} s, which {device.name} needs by its peaks"
        raise SpecError(name, got, want, "drop or correct the row, or the accelerator's description")


def _nothing(name: str, sets: Sequence[MeasuredSet | MeasuredWhole], devices: Sequence[HardwareSpec]) -> SpecError:
    names = [device.name for device in devices]
    there = dict.fromkeys(measured.hardware for measured in sets)
    if any(device in names for device in there):
        whole = "whole layers, models or servers"
        there = dict.fromkeys(f"{one.family.name} kernels" if isinstance(one, MeasuredSet) else whole for one in sets)
        want = "kernels of a serving step: " + ", ".join(HULLS)
        return SpecError(name, f"only {', '.join(there)} of {', '.join(names)}", want, "leave the file out")
    got = f"kernels of {', '.join(there)} and none of {', '.join(names)}"
    return SpecError(name, got, "kernels of an accelerator that is replayed", "name its accelerator, or leave the file out")


def _csv(measured: MeasuredSet) -> str:
    """Return the rows as CSV: shape columns and seconds, each number as short as it can be written and read back whole."""
    columns = {**measured.shapes, SECONDS: measured.seconds}
    lists = [np.broadcast_to(np.asarray(values, dtype=np.float64), len(measured.seconds)).tolist() for values in columns.values()]
    lines = (",".join(repr(value).removesuffix(".0") for value in row) for row in zip(*lists, strict=True))
    return "\n".join((",".join(columns), *lines)) + "\n"
