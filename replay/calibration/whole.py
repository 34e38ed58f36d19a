"""Measured wholes: rows of whole layers, models and servers, which calibrated kernels add up to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import Shapes
from replay.tiling.library import Source
from replay.tiling.terms import Array


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

    @property
    def family_name(self) -> str:
        """What stands for a kernel family in reports: a whole is made of parts of several."""
        return "parts"
