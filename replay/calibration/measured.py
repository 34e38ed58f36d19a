"""What was measured: rows of one kernel family, ready to fit or to compare with, or whole layers, models and servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import KernelFamily, Shapes
from replay.tiling.library import Source
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What calibrated kernels add up to."""

    seconds: Array
    """[rows]"""
    source: Source
    """The weakest one that most of the time needs (`replay.tiling.library.weakest_needed`)."""
    left_out: tuple[tuple[str, npt.NDArray[np.bool_]], ...] = ()
    """(reason, [rows] where it holds) of times that are no forecast; a row has one reason at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWhole:
    """Rows of whole layers, models or servers on one device: predicted from calibrated kernels, never fitted."""

    hardware: str
    """Catalog name of the device."""
    stack: str
    variant: str
    """What rows of different stacks must share to be compared."""
    shapes: Shapes
    """Columns that tell which rows of two stacks are the same case [rows]."""
    seconds: Array
    """Measured times [rows], > 0."""
    predict: Callable[[HardwareSpec], Prediction]
    where: str
    """Name of the file, for errors."""
    skipped: tuple[tuple[str, int], ...] = ()
    """(reason, rows) that were read and are not predicted."""


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
