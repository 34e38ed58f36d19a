"""Streams: kernels that pass over their data once or a few times - element-wise work, norms, softmax, rope, lookups, quantising.

All read ``columns`` elements in each of ``rows`` rows and write as many. Device memory and arithmetic work side by side and
join with a p-norm, on top of a launch floor::

    memory  = (bytes once / cache gain  +  bytes read again that left the cache) / (efficiency x DRAM rate)
    gain    = 1 + (cache rate ratio - 1) / (1 + (bytes / (share x cache))^4)              data still cached from the call before
    again   = passes x bytes read,  as far as the rows in flight overflow the cache       softmax and norms walk a row again

- element-wise: arithmetic = elements x cycles / (units x clock) - transcendental functions can be bound by it;
- row-wise: a row is a chain (load, reduce, write) of row cycles + columns x element cycles; ``rows_per_unit`` rows run side by
  side on a unit, more rows wait their turn. They compete for the unit's share of the cache, which is fitted.

After the roofline of Williams, Waterman and Patterson (2009) with one cache level; the passes over a row and the threads per
row are those of PyTorch's softmax and layer norm kernels, checked against the launch geometry in public timings. Nothing here
depends on what is computed, only on bytes, rows and passes: each operator has its own fitted parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import ParameterDefinition, Parameters, Shapes, joined_s
from replay.tiling.terms import Array, Terms

CACHE_SHARPNESS = 4.0
"""How abruptly data stop fitting the cache: half the gain at the fitted share, a seventeenth at twice it."""

_SHARED = (
    ParameterDefinition(name="floor_s", meaning="launch and first access", start=3e-6, lower=2e-7, upper=1e-4),
    ParameterDefinition(name="memory_efficiency_ratio", meaning="DRAM rate reached", start=0.85, lower=0.2, upper=1.0),
    ParameterDefinition(
        name="overlap_exponent", meaning="p of the p-norm of memory and arithmetic", start=3.0, lower=1.0, upper=8.0, logarithmic=False
    ),
    ParameterDefinition(
        name="element_cycles", meaning="cycles of one unit (or of a row's chain) per element", start=0.1, lower=1e-3, upper=100.0
    ),
    ParameterDefinition(name="cache_rate_ratio", meaning="rate from the cache over the DRAM rate", start=2.0, lower=1.0, upper=12.0),
    ParameterDefinition(
        name="cache_share_ratio", meaning="share of the cache that keeps data between calls", start=0.6, lower=0.1, upper=2.0
    ),
)
_ROWWISE = (
    *_SHARED,
    ParameterDefinition(name="row_cycles", meaning="cycles of a row's chain whatever its length", start=300.0, lower=1.0, upper=2e4),
    ParameterDefinition(
        name="unit_share_bytes", meaning="cache that the rows side by side on a unit share", start=1.5e5, lower=1e4, upper=1e7
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementwiseFamily:
    """Kernels that treat each element alone; shapes: rows, columns, read_bytes and written_bytes per element."""

    name: str

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Floor, memory, arithmetic and cache."""
        return _SHARED

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the columns of `features`."""
        return ("log_rows", "log_columns")

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the time of one call for each shape [rows]."""
        return joined_s(self, shapes, device, parameters)

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the pure terms of one call [rows]: arithmetic beside memory, and the floor, which overlaps with neither."""
        elements = shapes["rows"] * shapes["columns"]
        arithmetic_s = elements * parameters["element_cycles"] / (device.clock_hz * device.units_count)
        return _terms(shapes, arithmetic_s, np.zeros(len(elements)), device, parameters)

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return the fitted p."""
        return parameters["overlap_exponent"]

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return the least time: an operation per element, and each byte once over the fastest level that can hold it."""
        return _bound_s(shapes, device)

    def features(self, shapes: Shapes) -> Array:
        """Return logarithms of rows and columns [rows, 2]."""
        return _features(shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowwiseFamily:
    """Kernels that reduce along rows or work row by row.

    Shapes: those of `ElementwiseFamily`, and work_columns (columns the kernel steps over, padding included), passes (times a
    row is read again) and rows_per_unit (rows side by side on a unit).
    """

    name: str

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Those of element-wise kernels, the chain of a row, and the cache that rows in flight may fill."""
        return _ROWWISE

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the columns of `features`."""
        return ("log_rows", "log_columns")

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the time of one call for each shape [rows]."""
        return joined_s(self, shapes, device, parameters)

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the pure terms of one call [rows]: chains of rows beside memory, and the floor, which overlaps with neither."""
        turns = np.maximum(1.0, shapes["rows"] / (device.units_count * shapes["rows_per_unit"]))
        chain_s = (parameters["row_cycles"] + shapes["work_columns"] * parameters["element_cycles"]) / device.clock_hz
        again = shapes["passes"] * bytes_again(shapes, device, shapes["rows_per_unit"], parameters)
        return _terms(shapes, chain_s * turns, again, device, parameters)

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return the fitted p."""
        return parameters["overlap_exponent"]

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return the least time: an operation per element, and each byte once over the fastest level that can hold it."""
        return _bound_s(shapes, device)

    def features(self, shapes: Shapes) -> Array:
        """Return logarithms of rows and columns [rows, 2]."""
        return _features(shapes)


ELEMENTWISE = ElementwiseFamily(name="elementwise")
EMBEDDING = ElementwiseFamily(name="embedding")
TRANSFORM = ElementwiseFamily(name="transform")
NORM = RowwiseFamily(name="norm")
SOFTMAX = RowwiseFamily(name="softmax")
ROPE = RowwiseFamily(name="rope")
ACTIVATION = RowwiseFamily(name="activation")
RESIDUAL_ADD = RowwiseFamily(name="residual_add")
QUANTISE = RowwiseFamily(name="quantise")


def _terms(shapes: Shapes, compute_s: Array, again_bytes: Array, device: HardwareSpec, parameters: Parameters) -> Terms:
    """Return the terms [rows] of a stream that reads `again_bytes` [rows] beside all of its data once; no rows cost nothing."""
    moved = shapes["rows"] * shapes["columns"] * (shapes["read_bytes"] + shapes["written_bytes"])
    busy = (shapes["rows"] > 0).astype(np.float64)
    again_s = again_bytes / (parameters["memory_efficiency_ratio"] * device.memory_bytes_per_s)
    kept = in_cache_ratio(moved, parameters["cache_share_ratio"] * device.cache_bytes)
    return Terms(
        compute_s=compute_s * busy,
        memory_s=memory_once_s(moved, device, parameters) + again_s,
        launch_s=np.zeros(len(busy)),
        sync_s=parameters["floor_s"] * busy,
        bytes=moved * (1.0 - kept) + again_bytes,
    )


def bytes_bound_s(moved: Array, device: HardwareSpec) -> Array:
    """Return the least time [rows] to move `moved` bytes [rows] once.

    What exceeds the shared cache comes over the DRAM rate even if all else is cached; all of it passes the units' ports.
    """
    beyond = np.maximum(moved - device.cache_bytes, 0.0) / device.memory_bytes_per_s
    return np.asarray(np.maximum(beyond, moved / (device.units_count * device.unit_cache_bytes_per_s)))


def bytes_again(shapes: Shapes, device: HardwareSpec, rows_per_unit: Array | float, parameters: Parameters) -> Array:
    """Return the bytes [rows] that one further pass over the rows reads from DRAM: those of rows that did not stay cached."""
    row_bytes = shapes["columns"] * shapes["read_bytes"]
    in_flight = np.minimum(rows_per_unit, shapes["rows"] / device.units_count) * row_bytes
    return np.asarray(shapes["rows"] * row_bytes * (1.0 - in_cache_ratio(in_flight, parameters["unit_share_bytes"])))


def _bound_s(shapes: Shapes, device: HardwareSpec) -> Array:
    elements = shapes["rows"] * shapes["columns"]
    moved = elements * (shapes["read_bytes"] + shapes["written_bytes"])
    return np.asarray(np.maximum(elements / device.vector_flops_per_s, bytes_bound_s(moved, device)))


def _features(shapes: Shapes) -> Array:
    return np.stack([np.log(np.maximum(shapes["rows"], 1.0)), np.log(shapes["columns"])], axis=1)


def memory_once_s(moved: Array, device: HardwareSpec, parameters: Parameters) -> Array:
    """Return the memory time [rows] of `moved` bytes [rows] read or written once."""
    kept = in_cache_ratio(moved, parameters["cache_share_ratio"] * device.cache_bytes)
    gain = 1.0 + (parameters["cache_rate_ratio"] - 1.0) * kept
    return np.asarray(moved / (gain * parameters["memory_efficiency_ratio"] * device.memory_bytes_per_s))


def in_cache_ratio(needed: Array, room: float) -> Array:
    """Return the share [rows] of `needed` bytes that stays in a cache with `room` bytes: a smooth step from 1 to 0."""
    return np.asarray(1.0 / (1.0 + (needed / room) ** CACHE_SHARPNESS))


def p_norm(exponent: float, *parts_s: Array) -> Array:
    """Return the p-norm [rows] of times that run side by side."""
    longest = np.maximum.reduce(parts_s)
    return np.asarray(longest * sum((part / longest) ** exponent for part in parts_s) ** (1.0 / exponent))
