"""Attention over a paged cache: streaming tiles in prefill, split keys in decode (FlashAttention-2, Dao 2023; Flash-Decoding).

Prefill, tile (bq, bk), per pair of a query and a key over all query heads: matrix work at the calibrated rate **plus** one
exponential a pair and head, or loading the key/value tile from the shared cache where that takes longer; scaled by the waves
of query tiles. Decode: bytes of the keys and values (rounded up to the key tile) over the DRAM rate, or over the units that
have work where they are fewer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.lowering.kernel_plan import FORMAT_BYTES, Kernel
from replay.specs.hardware import HardwareSpec
from replay.specs.knobs import Value
from replay.tiling.terms import Array, Terms

PREFILL_TILE = (128, 64)
DECODE_TILE = (64, 128)
EXPONENTIALS_PER_CLOCK = 16.0
"""Exponentials of one unit per clock (CUDA C++ Programming Guide, arithmetic throughput of special functions, 8.x and 9.0)."""
SCORE_BYTES = 2.0 * 4
"""Unfused attention writes and reads the scores, then the probabilities, in 16 bit: four passes per pair and head."""
UNFUSED_KERNELS = 3
"""Scores, probabilities, and their product with the values."""

Tile = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTerms:
    """Costs of one prefill attention call for each number of prefill tokens [tokens]."""

    compute_s_per_pair: Array
    memory_s_per_pair: Array
    memory_s_per_token: Array
    memory_s_per_context_token: Array
    launch_s: Array
    bytes_per_pair: Array
    bytes_per_token: Array
    bytes_per_context_token: Array

    def columns(self, kernel: str) -> dict[str, Array]:
        """Return the columns ``<kernel>.<term>`` of the prefill term table."""
        return {f"{kernel}.{name}": getattr(self, name) for name in self.__slots__}


def tile_problem(tile: Tile, kernel: Kernel, hardware: HardwareSpec) -> str | None:
    """Return why an attention tile cannot run on one unit, or None: queries, and two stages of keys and values, must fit."""
    queries, keys = tile
    shape = kernel.attention
    needed = (queries * FORMAT_BYTES["bf16"] + 2 * keys * FORMAT_BYTES[kernel.kv_format]) * shape.head_size
    if needed > hardware.unit_memory_bytes:
        return f"tile {queries}x{keys} needs {needed:.0f} bytes of unit memory, {hardware.name} has {hardware.unit_memory_bytes:.0f}"
    accumulators = 4.0 * queries * (shape.head_size + keys)
    if accumulators > hardware.unit_registers_bytes:
        return f"tile {queries}x{keys} needs {accumulators:.0f} bytes of registers, {hardware.name} has {hardware.unit_registers_bytes:.0f}"
    return None


def prefill_terms(kernel: Kernel, tokens: npt.NDArray[np.int64], tile: Tile, hardware: HardwareSpec) -> PrefillTerms:
    """Return the prefill costs for each number of query tokens in a step [tokens]."""
    shape, fit = kernel.attention, hardware.attention
    queries, keys = tile
    units = hardware.units_count
    rate = fit.prefill_compute_efficiency_ratio * hardware.matrix_flops_per_s["bf16"] / units
    # One tile of bq x bk pairs of one head on one unit: two products of 2 x head_size FLOPs a pair, then the exponentials.
    product_s = 4.0 * queries * keys * shape.head_size / rate
    exponential_s = queries * keys / (EXPONENTIALS_PER_CLOCK * hardware.clock_hz)
    load_s = 2.0 * keys * shape.head_size * FORMAT_BYTES[kernel.kv_format] / hardware.unit_cache_bytes_per_s
    tile_s = max(product_s + exponential_s, load_s)
    tiles = np.ceil(np.maximum(tokens, 1) / queries) * shape.query_heads
    occupancy = tiles / units
    # Tiles differ in length under a causal mask, so a partial wave is filled by work stealing unless units are idle.
    idle = np.maximum(occupancy, 1.0) / occupancy
    padding = np.ceil(np.maximum(tokens, 1) / queries) * queries / np.maximum(tokens, 1)
    per_pair = shape.query_heads * tile_s / (queries * keys) / units * idle * padding
    dram = fit.decode_memory_efficiency_ratio * hardware.memory_bytes_per_s
    ones = np.ones(len(tokens))
    query_bytes = 2.0 * shape.query_heads * shape.head_size * FORMAT_BYTES["bf16"]
    cache_bytes = 2.0 * shape.kv_heads * shape.head_size * FORMAT_BYTES[kernel.kv_format]
    score_bytes = SCORE_BYTES * shape.query_heads if kernel.attention_backend == "unfused" else 0.0
    return PrefillTerms(
        compute_s_per_pair=per_pair,
        memory_s_per_pair=ones * score_bytes / dram,
        memory_s_per_token=ones * query_bytes / dram,
        memory_s_per_context_token=ones * cache_bytes / dram,
        launch_s=ones * fit.prefill_floor_s * (UNFUSED_KERNELS if kernel.attention_backend == "unfused" else 1),
        bytes_per_pair=ones * score_bytes,
        bytes_per_token=ones * query_bytes,
        bytes_per_context_token=ones * cache_bytes,
    )


def decode_terms(kernel: Kernel, sequences: Array, context: Array, tile: Tile, kv_split: Value, hardware: HardwareSpec) -> Terms:
    """Return decode terms for `sequences` sequences of mean context length `context` (both [points]); zero sequences cost nothing."""
    shape, fit = kernel.attention, hardware.attention
    group_rows, key_tile = tile
    group = shape.query_heads / shape.kv_heads
    items = sequences * shape.kv_heads * np.ceil(group / group_rows)
    keys = np.ceil(context / key_tile) * key_tile
    blocks = np.maximum(keys / key_tile, 1.0)
    wanted = np.ceil(hardware.units_count / np.maximum(items, 1.0)) if kv_split == "auto" else np.full(len(items), float(kv_split))  # type: ignore[arg-type]
    split = np.clip(wanted, 1.0, blocks)
    occupancy = items * split / hardware.units_count
    key_bytes = 2.0 * shape.head_size * FORMAT_BYTES[kernel.kv_format]
    read = sequences * shape.kv_heads * keys * key_bytes
    scores = sequences * shape.query_heads * keys * SCORE_BYTES if kernel.attention_backend == "unfused" else np.zeros(len(items))
    # The longest chain of one unit: with fewer items than units only those with an item pull data.
    unit_s = np.maximum(np.ceil(occupancy), 1.0) * np.ceil(blocks / split) * key_tile * key_bytes / hardware.unit_cache_bytes_per_s
    dram = fit.decode_memory_efficiency_ratio * hardware.memory_bytes_per_s
    padded_rows = np.ceil(group / 16.0) * 16.0  # matrix units take 16 rows at least
    flops = 4.0 * sequences * shape.kv_heads * padded_rows * shape.head_size * keys
    # Partial results in 32 bit, written by each part and read by the one that combines them.
    combined = np.where(split > 1, 2.0 * sequences * shape.query_heads * split * shape.head_size * 4.0, 0.0)
    busy = (sequences > 0).astype(np.float64)
    launches = UNFUSED_KERNELS if kernel.attention_backend == "unfused" else 1
    return Terms(
        compute_s=flops / (fit.prefill_compute_efficiency_ratio * hardware.matrix_flops_per_s["bf16"]),
        memory_s=np.maximum((read + scores + combined) / dram, unit_s) * busy,
        launch_s=fit.decode_floor_s * launches * busy,
        sync_s=np.where(split > 1, fit.decode_combine_s, 0.0) * busy,
        bytes=read + scores + combined,
    )
