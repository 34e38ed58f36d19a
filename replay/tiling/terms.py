"""Terms: the pure times of kernels over many rows at once, and the one rule that joins them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def combine(compute_s: Array, memory_s: Array, launch_s: Array, sync_s: Array, exponent: float) -> Array:
    """Return kernel times [rows] from pure terms: the rule of `replay.tiling.step_table`.

    The p-norm stands for partial overlap: with infinity the shorter of execution and memory time hides wholly behind the
    longer one, a finite p charges for what does not overlap. The launch floor lies inside both branches.
    """
    execution, memory = launch_s + compute_s, launch_s + memory_s
    larger = np.maximum(execution, memory)
    if np.isinf(exponent):
        return np.asarray(larger + sync_s)
    smaller = np.minimum(execution, memory)
    share = np.divide(smaller, larger, out=np.zeros_like(larger), where=larger > 0)
    return np.asarray(larger * (1.0 + share**exponent) ** (1.0 / exponent) + sync_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Pure terms of one call of a kernel for each row count [rows]."""

    compute_s: Array
    memory_s: Array
    launch_s: Array
    sync_s: Array
    bytes: Array
    """Traffic of the device memory."""

    def time_s(self, exponent: float) -> Array:
        """Return the joined times [rows]."""
        return combine(self.compute_s, self.memory_s, self.launch_s, self.sync_s, exponent)

    def where(self, mask: npt.NDArray[np.bool_], other: Terms) -> Terms:
        """Return these terms where `mask` holds and the other ones elsewhere."""
        return Terms(**{name: np.where(mask, getattr(self, name), getattr(other, name)) for name in TERM_NAMES})

    def take(self, rows: npt.NDArray[np.int64]) -> Terms:
        """Return the terms of some rows, in their order."""
        return Terms(**{name: getattr(self, name)[rows] for name in TERM_NAMES})

    def with_memory(self, extra_s: Array | float, extra_bytes: Array | float = 0.0) -> Terms:
        """Return these terms with `extra_s` more memory time and `extra_bytes` more traffic of the device memory [rows]."""
        return replace(self, memory_s=self.memory_s + extra_s, bytes=self.bytes + extra_bytes)

    def with_memory_after(self, extra_s: Array | float, extra_bytes: Array | float, exponent: float) -> Terms:
        """Return these terms with `extra_s` [rows] of memory time that nothing overlaps with.

        The memory term becomes what joins with the others to the time and `extra_s`: infinite bandwidth would save it all.
        """
        seconds = self.time_s(exponent) + extra_s - self.sync_s
        if np.isinf(exponent):
            memory = seconds
        else:
            share = np.divide(self.launch_s + self.compute_s, seconds, out=np.zeros_like(seconds), where=seconds > 0)
            memory = seconds * (1.0 - np.minimum(share, 1.0) ** exponent) ** (1.0 / exponent)
        later = np.where(np.asarray(extra_s) > 0, np.maximum(memory - self.launch_s, self.memory_s), self.memory_s)
        return replace(self, memory_s=later, bytes=self.bytes + extra_bytes)

    def with_sync(self, extra_s: Array | float) -> Terms:
        """Return these terms with `extra_s` [rows] more that nothing overlaps with."""
        return replace(self, sync_s=self.sync_s + extra_s)

    def plus(self, other: Terms) -> Terms:
        """Return the sums of each term."""
        return Terms(**{name: getattr(self, name) + getattr(other, name) for name in TERM_NAMES})

    def scaled_to(self, seconds: Array, exponent: float) -> Terms:
        """Return these terms with the times scaled by one factor each row, so that they join to `seconds` [rows].

        Where they join to nothing, `seconds` becomes `sync_s`.
        """
        joined = self.time_s(exponent)
        factor = np.divide(seconds, joined, out=np.zeros_like(joined), where=joined > 0)
        scaled = replace(self, **{name: getattr(self, name) * factor for name in BOTTLENECK_OF_TERM})
        return scaled.with_sync(np.where(joined > 0, 0.0, seconds))

    def columns(self, kernel: str) -> dict[str, Array]:
        """Return the columns ``<kernel>.<term>`` of a term table."""
        return {f"{kernel}.{name}": getattr(self, name) for name in TERM_NAMES}


BOTTLENECK_OF_TERM = {"compute_s": "compute", "memory_s": "memory_bandwidth", "launch_s": "launch_sync", "sync_s": "launch_sync"}
"""Bottleneck class of each term of time; whatever a collective takes is the interconnect's (`COLLECTIVE_LAYER`)."""
COLLECTIVE_LAYER = "all_reduce"

TERM_NAMES = ("compute_s", "memory_s", "launch_s", "sync_s", "bytes")


def nothing(rows: int) -> Terms:
    """Return the terms of nothing, `rows` times."""
    return Terms(**{name: np.zeros(rows) for name in TERM_NAMES})


def in_sequence(parts: Sequence[Terms], exponent: float) -> Terms:
    """Return the terms [rows] of parts that run one after another: their sums, joining to the sum of the parts' times.

    A p-norm of sums is at most the sum of the p-norms; one factor on compute, memory and launch makes up the difference.
    """
    alone = [replace(part, sync_s=np.zeros_like(part.sync_s)) for part in parts]
    summed, seconds, sync_s = alone[0], alone[0].time_s(exponent), parts[0].sync_s
    for whole, part in zip(parts[1:], alone[1:], strict=True):
        summed, seconds, sync_s = summed.plus(part), seconds + part.time_s(exponent), sync_s + whole.sync_s
    return summed.scaled_to(seconds, exponent).with_sync(sync_s)


def join(parts: list[Terms]) -> Terms:
    """Return the terms of consecutive row ranges as one."""
    return Terms(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in TERM_NAMES})
