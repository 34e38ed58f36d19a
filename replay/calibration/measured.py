"""Measured kernels: rows of one kernel family on one device under one stack, ready to fit or to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.whole import MeasuredWhole
from replay.tiling.families.family import KernelFamily, Shapes
from replay.tiling.terms import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSet:
    """Rows that one calibration is fitted on."""

    family: KernelFamily
    hardware: str
    """Catalog name of the device."""
    stack: str
    variant: str
    """What parameters are split by beside the stack: a format, an operator; empty where by nothing."""
    shapes: Shapes
    seconds: Array
    """Measured time of one call [rows], > 0."""
    group_key: tuple[npt.NDArray[np.int64], ...]
    """Columns [rows] that make a shape group."""
    skipped: tuple[tuple[str, int], ...] = ()
    """(reason, rows) that were read and cannot be used."""

    @property
    def is_pinned(self) -> bool:
        """Whether the kernels had a tile or split of the caller's, which no calibration is fitted on."""
        return "@" in self.variant

    @property
    def fitted_variant(self) -> str:
        """The variant whose calibration predicts the rows."""
        return self.variant.partition("@")[0]

    @property
    def family_name(self) -> str:
        """Name of the kernel family in reports."""
        return self.family.name


def joined(sets: Iterable[MeasuredSet]) -> tuple[MeasuredSet, ...]:
    """Return the sets with those of one device, family, stack and variant as one: a calibration is fitted on all files together."""
    alike: dict[tuple[str, str, str, str], list[MeasuredSet]] = {}
    for measured in sets:
        alike.setdefault((measured.hardware, measured.family.name, measured.stack, measured.variant), []).append(measured)
    return tuple(_concatenated(parts) for parts in alike.values())


def _concatenated(parts: Sequence[MeasuredSet]) -> MeasuredSet:
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        shapes={name: np.concatenate([part.shapes[name] for part in parts]) for name in parts[0].shapes},
        seconds=np.concatenate([part.seconds for part in parts]),
        group_key=tuple(np.concatenate(columns) for columns in zip(*(part.group_key for part in parts), strict=True)),
        skipped=tuple(count for part in parts for count in part.skipped),
    )


class MeasurementKind(Protocol):
    """One kind of measurement file, recognised by its columns."""

    @property
    def name(self) -> str:
        """Name of the kind in reports: ``gemm``, ``attention_context``."""
        ...

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether a file with these columns is of this kind."""
        ...

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet | MeasuredWhole, ...]:
        """Return the sets of a file; `where` names it (a file name may carry the device where no column does).

        Raises:
            SpecError: a column has a wrong type, a unit or value that cannot be, or the device is not in the catalog.
        """
        ...
