"""Decode attention over a cache of keys and values: one new query per sequence, the keys cut into parts that run side by side.

Items are (sequence, key-value head) pairs; an item walks its keys block by block on one unit, and a split hands its parts to idle
units and merges them afterwards (Flash-Decoding; see `replay.tiling.families.decode_paths` for who splits how)::

    step     = block bytes / unit rate                          keys in whole blocks, one more where a window cuts the first; for
                                                                latents not below the products of the tile's rows, 64 heads
    execute  = waves x (item + rows x row x head size / 128 + steps per part x step)
    memory   = (keys and values + queries + outputs) / DRAM rate, times what the cache keeps from the call before
    time     = join(floor + execute, floor + memory) + combine + copies + layout

with waves = items x parts / units, at least one, rounded up by the share `wave_smoothness_ratio`. The combine reads every part's
partial result one after the other. Terms join by the rule of `replay.tiling.step_table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.decode_paths import DecodePath
from replay.tiling.families.family import ParameterDefinition, Parameters, Shapes
from replay.tiling.terms import Array, Terms

REFERENCE_HEAD = 128.0
IO_BYTES = 2.0
"""Bytes of one query or output value."""
PARTIAL_BYTES = 4.0
PAGE_KEYS = 16.0
"""Keys are fetched by whole pages."""
CACHE_SHARPNESS = 16.0
"""How suddenly the shared cache stops helping once the keys outgrow it: with least-recently-used replacement, at once."""
FULL_WINDOW = 1e9
"""`window_tokens` of full attention."""
COLUMNS = (
    "sequences",
    "context_tokens",
    "query_heads",
    "kv_heads",
    "head_size",
    "value_size",
    "window_tokens",
    "cache_warm_ratio",
)
SPLITS = "splits"
"""Optional column: parts the keys of an item are cut into (a pinned split); else the kernel's own rule cuts them."""

_PARAMETERS = (
    ParameterDefinition(name="floor_s", meaning="launch and first reads", start=8e-6, lower=5e-7, upper=3e-5),
    ParameterDefinition(name="item_s", meaning="start and end of one item on its unit", start=1e-6, lower=1e-8, upper=1e-5),
    ParameterDefinition(name="row_s", meaning="one query row of 128 values of an item", start=3e-8, lower=1e-10, upper=1e-6),
    ParameterDefinition(name="unit_bytes_per_clock", meaning="bytes one unit streams per clock", start=20.0, lower=2.0, upper=400.0),
    ParameterDefinition(name="dram_efficiency_ratio", meaning="share of the DRAM rate reached", start=0.9, lower=0.4, upper=1.0),
    ParameterDefinition(name="cache_speed_ratio", meaning="cache rate over DRAM rate", start=2.0, lower=1.0, upper=8.0),
    ParameterDefinition(name="cache_knee_ratio", meaning="share of the cache the keys may fill", start=0.8, lower=0.1, upper=1.3),
    ParameterDefinition(name="overlap_exponent", meaning="p of the join of execution and memory", start=2.0, lower=1.0, upper=8.0),
    ParameterDefinition(name="combine_s", meaning="merging the parts of a split", start=1.5e-6, lower=1e-7, upper=2e-5),
    ParameterDefinition(name="combine_part_s", meaning="each part more of a split", start=5e-8, lower=1e-10, upper=1e-6),
    ParameterDefinition(
        name="wave_smoothness_ratio", meaning="share of the waves rounded up", start=0.5, lower=0.0, upper=1.0, logarithmic=False
    ),
)
_COPY = ParameterDefinition(name="copy_s", meaning="kernels that transpose queries and outputs", start=5e-6, lower=1e-7, upper=2e-5)
_PRODUCTS = ParameterDefinition(
    name="matrix_efficiency_ratio", meaning="share of the matrix peak reached by latents", start=2 / 3, lower=0.2, upper=1.0
)
"""Starts at what DeepSeek states for FlashMLA on H800: 660 of 989 TFLOP/s."""
_LAYOUT = ParameterDefinition(name="sequence_s", meaning="laying out the work of one sequence", start=3e-9, lower=1e-11, upper=1e-7)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeAttention:
    """The family for one kernel; shapes have COLUMNS (`decode_shapes` fills them) and may have SPLITS."""

    path: DecodePath
    kv_bytes: float
    """Bytes of one cached value."""
    planned_units: int
    """Units the kernel's split rule is made for: a decision of the mapping, the same whatever device is priced."""

    @property
    def name(self) -> str:
        """Name of the family."""
        return "decode_attention"

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Calibrated parameters; the last ones only where the kernel has what they time."""
        optional = ((self.path.copies, _COPY), (self.path.sorted_sequences > 0, _LAYOUT), (self.path.values_in_keys, _PRODUCTS))
        return _PARAMETERS + tuple(definition for present, definition in optional if present)

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the residual's features: binary logarithms."""
        return ("items", "keys", "sequences", "group", "head_size", "splits", "kv_values", "context_over_window")

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the time of one call [rows], s."""
        joined = self.terms(shapes, device, parameters).time_s(self.overlap_exponent(parameters))
        return np.maximum(joined, self.bound_s(shapes, device))

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return the p that joins execution and memory."""
        return parameters["overlap_exponent"]

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the pure terms of one call [rows]; `time_s(overlap_exponent)` joins them. No sequences cost nothing."""
        splits = self.splits(shapes)
        busy = (shapes["sequences"] > 0).astype(np.float64)
        dram = parameters["dram_efficiency_ratio"] * device.memory_bytes_per_s
        io_bytes = shapes["sequences"] * shapes["query_heads"] * _channels(shapes) * IO_BYTES
        kv_bytes = self._cached_bytes(shapes)
        sync = self._combine_s(shapes, splits, dram, parameters) + self._around_s(shapes, io_bytes / dram, parameters)
        return Terms(
            compute_s=self._execution_s(shapes, splits, device, parameters) * busy,
            memory_s=(kv_bytes + io_bytes) / dram * _uncached_share(kv_bytes, shapes["cache_warm_ratio"], device, parameters),
            launch_s=parameters["floor_s"] * busy,
            sync_s=sync * busy,
            bytes=kv_bytes + io_bytes,
        )

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return the larger of: products over the fastest matrix rate; bytes beyond the cache over DRAM; all bytes over the cache ports."""
        keys = np.minimum(shapes["context_tokens"], shapes["window_tokens"])
        read = shapes["sequences"] * shapes["kv_heads"] * keys * self._key_bytes(shapes)
        flops = 2.0 * shapes["sequences"] * shapes["query_heads"] * keys * _channels(shapes)
        kept = device.cache_bytes * shapes["cache_warm_ratio"]
        ports = device.units_count * device.unit_cache_bytes_per_s
        outside = np.maximum(read - kept, 0.0) / device.memory_bytes_per_s
        return np.asarray(np.maximum.reduce([flops / max(device.matrix_flops_per_s.values()), outside, read / ports]))

    def features(self, shapes: Shapes) -> Array:
        """Return the residual's features [rows, 8]."""
        keys = np.clip(np.minimum(shapes["context_tokens"], shapes["window_tokens"]), REFERENCE_HEAD / 2, None)
        columns = (
            self._items(shapes),
            keys,
            shapes["sequences"],
            shapes["query_heads"] / shapes["kv_heads"],
            shapes["head_size"],
            self.splits(shapes),
            shapes["sequences"] * shapes["kv_heads"] * keys * shapes["head_size"],
            shapes["context_tokens"] / shapes["window_tokens"],
        )
        return np.stack([np.log2(np.maximum(column, 1.0)) for column in columns], axis=1)

    def _items(self, shapes: Shapes) -> Array:
        return self.path.items(shapes["sequences"], shapes["query_heads"], shapes["kv_heads"])

    def splits(self, shapes: Shapes) -> Array:
        """Return the parts that the keys of each item are cut into [rows]."""
        if SPLITS in shapes:
            return shapes[SPLITS]
        group, items = shapes["query_heads"] / shapes["kv_heads"], np.maximum(self._items(shapes), 1.0)
        walked = self._blocks(shapes) * self.path.blocks(shapes["head_size"])
        keys = np.where(_is_cut(shapes), walked, _keys(shapes))
        return self.path.splits(self.path, self.planned_units, items, keys, group, shapes["head_size"])

    def _blocks(self, shapes: Shapes) -> Array:
        """Return the blocks of keys that an item walks [rows]: a window starts anywhere inside a block."""
        return np.asarray(np.ceil(_keys(shapes) / self.path.blocks(shapes["head_size"])) + _is_cut(shapes))

    def _key_bytes(self, shapes: Shapes) -> Array:
        """Return the cached bytes of one key with its value [rows]."""
        return np.asarray((shapes["head_size"] if self.path.values_in_keys else _channels(shapes)) * self.kv_bytes)

    def _cached_bytes(self, shapes: Shapes) -> Array:
        keys = np.ceil(_keys(shapes) / PAGE_KEYS) * PAGE_KEYS
        return np.asarray(shapes["sequences"] * shapes["kv_heads"] * keys * self._key_bytes(shapes))

    def _execution_s(self, shapes: Shapes, splits: Array, device: HardwareSpec, parameters: Parameters) -> Array:
        head, block = shapes["head_size"], self.path.blocks(shapes["head_size"])
        step_s = block * self._key_bytes(shapes) / (parameters["unit_bytes_per_clock"] * device.clock_hz)
        if self.path.values_in_keys:
            rate = parameters["matrix_efficiency_ratio"] * device.matrix_flops_per_s["bf16"] / device.units_count
            step_s = np.maximum(step_s, 2.0 * self.path.group_rows * block * _channels(shapes) / rate)
        steps = np.ceil(self._blocks(shapes) / splits)
        rows = self.path.rows(shapes["query_heads"], shapes["kv_heads"])
        occupancy = self._items(shapes) * splits / device.units_count
        smooth = parameters["wave_smoothness_ratio"]
        waves = np.where(occupancy <= 1.0, 1.0, (1.0 - smooth) * occupancy + smooth * np.ceil(occupancy))
        return np.asarray(waves * (parameters["item_s"] + parameters["row_s"] * rows * head / REFERENCE_HEAD + steps * step_s))

    def _combine_s(self, shapes: Shapes, splits: Array, dram: float, parameters: Parameters) -> Array:
        partial = 2.0 * splits * shapes["sequences"] * shapes["query_heads"] * shapes["value_size"] * PARTIAL_BYTES
        return np.where(splits > 1.0, parameters["combine_s"] + parameters["combine_part_s"] * splits + partial / dram, 0.0)

    def _around_s(self, shapes: Shapes, io_s: Array, parameters: Parameters) -> Array:
        """Kernels around the one that attends: copies that read and write queries and outputs, and the layout of the work."""
        around = np.zeros(len(io_s))
        if self.path.copies:
            strided = (shapes["query_heads"] > shapes["kv_heads"]) & (shapes["kv_heads"] > 1) & (shapes["sequences"] > 1)
            around = around + np.where(strided, parameters["copy_s"] + 2.0 * io_s, 0.0)
        if self.path.sorted_sequences > 0:
            sorted_here = shapes["sequences"] <= self.path.sorted_sequences
            around = around + np.where(sorted_here, parameters["sequence_s"] * shapes["sequences"], 0.0)
        return around


def decode_shapes(counts: Mapping[str, Array]) -> dict[str, Array]:
    """Return shapes with COLUMNS from `counts` (columns [rows], or numbers that hold for every row).

    `value_size` may be left out where it is `head_size`, `window_tokens` for full attention, and `cache_warm_ratio` where nothing of
    the keys is left in the cache (within a served step: 0; the same call repeated: 1). SPLITS is kept where it is given.
    """
    given = {"value_size": counts["head_size"], "window_tokens": FULL_WINDOW, "cache_warm_ratio": 0.0, **counts}
    names = [*COLUMNS, *([SPLITS] if SPLITS in given else [])]
    columns = np.broadcast_arrays(*(np.asarray(given[name], dtype=np.float64) for name in names))
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}


def _channels(shapes: Shapes) -> Array:
    """Return the channels of a query (or key) and its result (or value) of one head [rows]."""
    return np.asarray(shapes["head_size"] + shapes["value_size"])


def _keys(shapes: Shapes) -> Array:
    return np.maximum(np.minimum(shapes["context_tokens"], shapes["window_tokens"]), 1.0)


def _is_cut(shapes: Shapes) -> npt.NDArray[np.bool_]:
    """Return whether the window leaves keys out [rows]."""
    return np.asarray(shapes["context_tokens"] > shapes["window_tokens"])


def _uncached_share(kv_bytes: Array, warm: Array, device: HardwareSpec, parameters: Parameters) -> Array:
    """Return the time that is left of the DRAM time [rows] where the last call left its keys in the cache."""
    fill = np.minimum(kv_bytes / (parameters["cache_knee_ratio"] * device.cache_bytes), 1e6)
    kept = warm / (1.0 + fill**CACHE_SHARPNESS)
    return np.asarray(1.0 - kept * (1.0 - 1.0 / parameters["cache_speed_ratio"]))
