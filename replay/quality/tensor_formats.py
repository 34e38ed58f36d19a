"""Formats of whole tensors: elements and the scales that they share.

A scaled format stores ``x / s`` as an element and means ``s`` times it. `s` is the largest magnitude of those that share it over the
largest element, rounded to the format of the scales:

- `fp32`, `fp16`: a number;
- `power_of_two`: the next power of two that is not less (no value saturates);
- `mx`: ``2 ** (floor(log2(largest)) - e)`` with e the exponent of the largest element (OCP Microscaling Formats v1.0, section 6.3);
- `nvfp4`: an fp8 e4m3 number times one fp32 number for the tensor, ``largest of the tensor / (448 * 6)`` (NVIDIA's NVFP4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from replay.quality.elements import ELEMENTS, Element, Values

_LEAST_EXPONENT, _MOST_EXPONENT = -127, 127
"""Of an e8m0 scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFormat:
    """How a matrix [rows, columns] is stored; products reduce over columns."""

    element: Element
    shared_by: str = "none"
    """Which values share a scale: `none` (no scale), `tensor`, `channel` (a row), `group` (`size` columns of a row) or `block` (`size` rows
    by `size` columns).
    """
    size: int = 0
    scale: str = "fp32"

    def __str__(self) -> str:
        if self.shared_by == "none":
            return self.element.name
        extent = f" {self.size}" if self.size else ""
        return f"{self.element.name} per {self.shared_by}{extent}" + ("" if self.scale in ("fp32", "fp16") else f" ({self.scale})")

    def stored(self, values: Values) -> Values:
        """Return what a matrix is once stored [rows, columns]; groups and blocks that reach over an edge are cut there."""
        if self.shared_by == "none":
            return self.element.stored(values)
        rows, columns = values.shape
        if self.shared_by in ("tensor", "channel"):
            axis = None if self.shared_by == "tensor" else 1
            return self._scaled(values, np.abs(values).max(axis=axis, keepdims=True, initial=0.0), values)
        high, wide = (self.size if self.shared_by == "block" else 1), self.size
        padded = np.pad(values, ((0, -rows % high), (0, -columns % wide)))
        tiled = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
        stored = self._scaled(tiled, np.abs(tiled).max(axis=(1, 3), keepdims=True, initial=0.0), values)
        return np.ascontiguousarray(stored.reshape(padded.shape)[:rows, :columns])

    def _scaled(self, tiled: Values, largest: Values, whole: Values) -> Values:
        scales = self._scales(largest, whole)
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity among the values stay visible
            return self.element.stored(tiled / scales) * scales

    def _scales(self, largest: Values, whole: Values) -> Values:
        """Return the scale of each group by its largest magnitude; 1 where all of it is 0."""
        one = np.float32(1.0)
        raw = largest / np.float32(self.element.largest)
        if self.scale == "nvfp4":
            tensor = np.abs(whole).max(initial=0.0) / np.float32(ELEMENTS["fp8_e4m3"].largest * self.element.largest)
            raw = ELEMENTS["fp8_e4m3"].stored(raw / (tensor if tensor > 0 else one)) * tensor
        elif self.scale == "mx":
            raw = _power(_floor_log2(largest) - int(math.log2(self.element.largest)), largest)
        elif self.scale == "power_of_two":
            mantissa, exponent = np.frexp(raw)
            raw = _power(exponent - (mantissa == 0.5), raw)
        elif self.scale == "fp16":
            raw = ELEMENTS["fp16"].stored(raw)
        return np.where(raw > 0, raw, one)


def two_of_four(weights: Values) -> Values:
    """Return a matrix [rows, columns] with the two smallest magnitudes of every four columns zero (2:4); of equal ones the later go."""
    rows, columns = weights.shape
    tiled = np.pad(weights, ((0, 0), (0, -columns % 4))).reshape(rows, -1, 4)
    order = np.argsort(-np.abs(tiled), axis=2, kind="stable")
    kept = np.zeros(tiled.shape, dtype=np.bool_)
    np.put_along_axis(kept, order[:, :, :2], values=True, axis=2)
    return np.ascontiguousarray(np.where(kept, tiled, np.float32(0)).reshape(rows, -1)[:, :columns])


def _floor_log2(values: Values) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return (np.frexp(values)[1] - 1).astype(np.int32)


def _power(exponent: np.ndarray[tuple[int, ...], np.dtype[np.int32]], of: Values) -> Values:
    """Return 2 to a power that an e8m0 number holds; 0 where the value it stands for is 0."""
    bounded = np.clip(exponent, _LEAST_EXPONENT, _MOST_EXPONENT)
    return np.where(of > 0, np.ldexp(np.float32(1), bounded), np.float32(0)).astype(np.float32)
