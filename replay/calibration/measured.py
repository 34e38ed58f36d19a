"""Measured kernels: rows of one kernel family on one device under one stack, ready to fit or to compare with."""

from __future__ import annotations

from dataclasses import dataclass
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
    def family_name(self) -> str:
        """Name of the kernel family in reports."""
        return self.family.name


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
