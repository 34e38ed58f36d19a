"""Prefill attention: streaming tiles under a causal mask (FlashAttention-2, Dao 2023), every query of a prompt at once.

A tile of query rows walks the keys cached before (`prefix_tokens`) and the key blocks up to its last query, or from the start of the
window. Each block costs its two matrix products and one exponential a pair, which overlap in part; tiles share the units, and the last
tile of a prompt is the longest::

    block    = p-norm of products / (efficiency x unit matrix rate), pairs / (exponentials per clock x clock)
    start    = tile start x balance of (tiles / units, 1)
    execute  = block x balance of (blocks of all tiles / units, blocks of the longest tile)
    memory   = (queries + outputs + keys + values) / DRAM rate, times what the cache keeps; plus writing the new keys and values
    time     = join(floor + start + execute, floor + start + memory)

where the balance is a p-norm: 1 = the longest tile starts last, infinity = perfect packing. Terms join by the rule of
`replay.tiling.step_table`. Prompts of one token run a decode kernel, which no prefill calibration has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.decode_paths import hardware_generation
from replay.tiling.families.family import ParameterDefinition, Parameters, Shapes
from replay.tiling.terms import Array, Terms

IO_BYTES = 2.0
FULL_WINDOW = 1e9
"""`window_tokens` of full attention."""
CACHE_SHARPNESS = 4.0
CACHE_SHARE_RATIO = 0.7
"""Share of the cache within which a call finds what the one before left."""
COLUMNS = (
    "sequences", "prompt_tokens", "prefix_tokens", "query_heads", "kv_heads", "head_size", "value_size", "window_tokens",
    "cache_warm_ratio",
)  # fmt: skip

_PARAMETERS = (
    ParameterDefinition(name="floor_s", meaning="launch and first reads", start=8e-6, lower=5e-7, upper=3e-5),
    ParameterDefinition(name="tile_s", meaning="start and end of one query tile", start=1e-6, lower=1e-8, upper=1e-5),
    ParameterDefinition(name="matrix_efficiency_ratio", meaning="share of the matrix peak reached", start=0.7, lower=0.2, upper=1.0),
    ParameterDefinition(name="exponentials_per_clock", meaning="exponentials of one unit per clock", start=16.0, lower=2.0, upper=64.0),
    ParameterDefinition(name="softmax_overlap_exponent", meaning="p of products and exponentials", start=1.5, lower=1.0, upper=8.0),
    ParameterDefinition(name="balance_exponent", meaning="p of average work and longest tile", start=3.0, lower=1.0, upper=12.0),
    ParameterDefinition(name="dram_efficiency_ratio", meaning="share of the DRAM rate reached", start=0.8, lower=0.2, upper=1.0),
    ParameterDefinition(name="cache_speed_ratio", meaning="cache rate over DRAM rate", start=2.0, lower=1.0, upper=8.0),
    ParameterDefinition(name="write_passes", meaning="passes over new keys and values to cache them", start=2.0, lower=0.05, upper=20.0),
    ParameterDefinition(name="overlap_exponent", meaning="p of the join of execution and memory", start=2.0, lower=1.0, upper=8.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPath:
    """One prefill attention kernel."""

    name: str
    tile_rows: float
    block_keys: float
    packs_group: bool
    """Query heads of one key-value head fill a tile together; else a tile has rows of one query head."""
    most_head_size: float = 512.0
    """Largest head the kernel supports; stacks run another one above."""
    missing_head_sizes: tuple[float, ...] = ()
    """Heads below that which the kernel lacks all the same."""
    window_apart: bool = False
    """Its kernels under a window are others, calibrated apart."""

    def kernel(self, *, windowed: bool) -> str:
        """Return the name that calibrations give the kernel that runs with or without a window."""
        return f"{self.name}-window" if windowed and self.window_apart else self.name

    def supports(self, head_sizes: Array) -> npt.NDArray[np.bool_]:
        """Return whether the kernel has these heads [rows]."""
        return np.asarray((head_sizes <= self.most_head_size) & ~np.isin(head_sizes, self.missing_head_sizes))


FLASH2 = PrefillPath(name="flash2", tile_rows=64, block_keys=64, packs_group=False, most_head_size=256)
FLASH3 = PrefillPath(name="flash3", tile_rows=128, block_keys=64, packs_group=True, most_head_size=256)
FLASHINFER = PrefillPath(name="flashinfer", tile_rows=64, block_keys=64, packs_group=True, missing_head_sizes=(192.0,))
TRTLLM_GEN = PrefillPath(
    name="trtllm_gen", tile_rows=128, block_keys=128, packs_group=False, most_head_size=256, missing_head_sizes=(192.0,)
)
FUSED = PrefillPath(name="trtllm_fused", tile_rows=128, block_keys=64, packs_group=False, window_apart=True)
PATHS = {path.name: path for path in (FLASH2, FLASH3, FLASHINFER, TRTLLM_GEN, FUSED)}


def prefill_path(stack: str, cache_format: str, device: HardwareSpec) -> PrefillPath:
    """Return the kernel that a stack (``vllm_0.24.0``) runs."""
    generation, framework = hardware_generation(device), stack.split("_", maxsplit=1)[0]
    if generation == "blackwell":
        return TRTLLM_GEN
    if framework == "trtllm":
        return FUSED
    if generation == "hopper":
        return FLASH3
    return FLASH2 if framework == "vllm" and cache_format == "bf16" else FLASHINFER


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAttention:
    """The family for one kernel; shapes have COLUMNS (`prefill_shapes` fills them)."""

    path: PrefillPath
    math_bytes: float = IO_BYTES
    """Bytes of one value in the products: 1 takes the fp8 rate where the device has one."""

    @property
    def name(self) -> str:
        """Name of the family."""
        return "prefill_attention"

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Calibrated parameters."""
        return _PARAMETERS

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the residual's features: binary logarithms."""
        return ("context_tokens", "sequence_heads", "query_rows", "group", "head_size", "sequences", "kv_heads", "context_over_window")

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the time of one call [rows], s."""
        joined = self.terms(shapes, device, parameters).time_s(self.overlap_exponent(parameters))
        return np.maximum(joined, self.bound_s(shapes, device))

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return the p that joins execution and memory."""
        return parameters["overlap_exponent"]

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the pure terms of one call [rows]; `time_s(overlap_exponent)` joins them. No sequences cost nothing."""
        busy = (shapes["sequences"] > 0).astype(np.float64)
        io_bytes, read_bytes, new_bytes = _bytes(shapes)
        dram = parameters["dram_efficiency_ratio"] * device.memory_bytes_per_s
        moved = io_bytes + read_bytes
        kept = shapes["cache_warm_ratio"] / (1.0 + (moved / (CACHE_SHARE_RATIO * device.cache_bytes)) ** CACHE_SHARPNESS)
        share = 1.0 - kept * (1.0 - 1.0 / parameters["cache_speed_ratio"])
        written = parameters["write_passes"] * new_bytes
        tiles, mean_blocks, longest_blocks = self._work(shapes)
        balance, each = parameters["balance_exponent"], tiles / device.units_count
        return Terms(
            compute_s=self._block_s(shapes, device, parameters) * _p_norm(each * mean_blocks, longest_blocks, balance) * busy,
            memory_s=(moved * share + written) / dram,
            launch_s=(parameters["floor_s"] + parameters["tile_s"] * _p_norm(each, np.ones(len(each)), balance)) * busy,
            sync_s=np.zeros(len(each)),
            bytes=moved + new_bytes,
        )

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return the larger of: products of the pairs over the matrix peak; bytes beyond the cache over the DRAM rate."""
        flops = 2.0 * shapes["sequences"] * shapes["query_heads"] * _channels(shapes) * _pairs(shapes)
        io_bytes, read_bytes, _ = _bytes(shapes)
        outside = np.maximum(io_bytes + read_bytes - device.cache_bytes * shapes["cache_warm_ratio"], 0.0)
        return np.maximum(flops / self._peak(device), outside / device.memory_bytes_per_s)

    def features(self, shapes: Shapes) -> Array:
        """Return the residual's features [rows, 8]; what is cached before counts as part of a longer prompt with few query rows."""
        heads = shapes["sequences"] * shapes["query_heads"]
        group = shapes["query_heads"] / shapes["kv_heads"]
        context = shapes["prefix_tokens"] + shapes["prompt_tokens"]
        columns = (
            context,
            heads,
            heads * shapes["prompt_tokens"],
            group,
            shapes["head_size"],
            shapes["sequences"],
            shapes["kv_heads"],
            context / shapes["window_tokens"],
        )
        return np.stack([np.log2(np.maximum(column, 1.0)) for column in columns], axis=1)

    def _work(self, shapes: Shapes) -> tuple[Array, Array, Array]:
        """Return [rows] each: tiles of all sequences, mean key blocks of a tile, key blocks of the longest one."""
        tokens, prefix, window = shapes["prompt_tokens"], shapes["prefix_tokens"], _window(shapes)
        context = prefix + tokens
        packed = shapes["query_heads"] / shapes["kv_heads"] if self.path.packs_group else np.ones(len(tokens))
        tiles = np.ceil(tokens * packed / self.path.tile_rows)
        span, block = self.path.tile_rows / packed, self.path.block_keys
        growing = np.clip(np.floor((window - prefix) / span), 0.0, tiles)
        windowed = (growing * prefix + growing * span * (growing + 1) / 2 + (tiles - growing) * (window + span)) / tiles
        keys = np.where(window >= context, np.minimum(context, prefix + span * (tiles + 1) / 2), np.minimum(windowed, context))
        # The last block of a tile is cut by the diagonal: half a block is wasted where a tile is narrower than a block.
        wasted = 0.5 * np.maximum(1.0 - span / block, 0.0)
        longest = np.ceil(np.minimum(context, window + span) / block)
        mean = np.clip(keys / block + wasted, 1.0, longest)
        return shapes["sequences"] * shapes["query_heads"] / packed * tiles, mean, longest

    def _block_s(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        pairs = self.path.tile_rows * self.path.block_keys
        rate = parameters["matrix_efficiency_ratio"] * self._peak(device) / device.units_count
        products_s = 2.0 * pairs * _channels(shapes) / rate
        exponentials_s = np.full(len(products_s), pairs / (parameters["exponentials_per_clock"] * device.clock_hz))
        return _p_norm(products_s, exponentials_s, parameters["softmax_overlap_exponent"])

    def _peak(self, device: HardwareSpec) -> float:
        """Return the matrix rate of the products' format; a format that the device lacks runs as bf16."""
        rates = device.matrix_flops_per_s
        return rates["fp8"] if self.math_bytes < IO_BYTES and "fp8" in rates else rates["bf16"]


def prefill_shapes(counts: Mapping[str, Array]) -> dict[str, Array]:
    """Return shapes with COLUMNS from `counts` (columns [rows], or numbers that hold for every row).

    `prefix_tokens` may be left out where nothing of the sequences is cached before, `value_size` where it is `head_size`,
    `window_tokens` for full attention, and
    `cache_warm_ratio` where nothing is left in the cache (within a served step: 0; the same call repeated: 1). A step of several
    prompts is so many equal ones: numbers need not be whole.
    """
    defaults = {"prefix_tokens": 0.0, "value_size": counts["head_size"], "window_tokens": FULL_WINDOW, "cache_warm_ratio": 0.0}
    given = {**defaults, **counts}
    columns = np.broadcast_arrays(*(np.asarray(given[name], dtype=np.float64) for name in COLUMNS))
    return dict(zip(COLUMNS, (np.array(column) for column in columns), strict=True))


def _channels(shapes: Shapes) -> Array:
    """Return the channels of a query (or key) and its result (or value) of one head [rows]."""
    return np.asarray(shapes["head_size"] + shapes["value_size"])


def _window(shapes: Shapes) -> Array:
    """Return the keys that a query sees at most [rows]."""
    return np.asarray(np.minimum(shapes["window_tokens"], shapes["prefix_tokens"] + shapes["prompt_tokens"]))


def _pairs(shapes: Shapes) -> Array:
    """Return the (query, key) pairs of one sequence and head under the causal mask and the window [rows]."""
    window, prefix = _window(shapes), shapes["prefix_tokens"]
    return _triangle(prefix + shapes["prompt_tokens"], window) - _triangle(prefix, np.minimum(window, prefix))


def _triangle(tokens: Array, window: Array) -> Array:
    """Return the pairs of `tokens` queries from the start of a sequence on, each with at most `window` <= `tokens` keys."""
    return np.asarray(tokens * window - window * (window - 1.0) / 2)


def _bytes(shapes: Shapes) -> tuple[Array, Array, Array]:
    """Return the bytes of queries and outputs, of keys and values that are read, and of new ones [rows]."""
    head_bytes = shapes["sequences"] * _channels(shapes) * IO_BYTES
    # The first new query sees the last window - 1 keys of the prefix.
    seen = np.minimum(shapes["prefix_tokens"], _window(shapes) - 1.0) + shapes["prompt_tokens"]
    new = head_bytes * shapes["prompt_tokens"]
    return new * shapes["query_heads"], head_bytes * seen * shapes["kv_heads"], new * shapes["kv_heads"]


def _p_norm(first: Array, second: Array, exponent: float) -> Array:
    larger = np.maximum(first, second)
    return np.asarray(larger * (1.0 + (np.minimum(first, second) / larger) ** exponent) ** (1.0 / exponent))
