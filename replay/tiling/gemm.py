"""Matrix multiplies: output tiles over compute units, waves, split reduction, and memory traffic beside them.

For an output tile (bm, bn), reduction depth bk and split s, on S units (after the tile and wave model of NVIDIA's "Matrix
Multiplication Background User's Guide", sections on tile and wave quantisation, and Stream-K, Osama et al. 2023)::

    steps   = ceil(k / (bk s))                      per tile
    tiles   = ceil(m / bm) ceil(n / bn) s           waves w = tiles / S, at least one
    step    = p-norm of  2 bm bn bk / (unit rate),  operand bytes / (unit cache rate),  step latency / clip(w, 1, 4)
    execute = waves x steps x step
    memory  = (weights + activations + output) bytes / DRAM rate

The first and second join with the launch floor inside both (see `replay.tiling.step_table`); a split adds the traffic of its
partial results to the memory time, and the latency of combining them.
Padding costs what a whole tile costs. Calibration parameters are in the hardware catalog with their source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.lowering.kernel_plan import FORMAT_BYTES, Kernel
from replay.specs.hardware import HardwareSpec
from replay.specs.knobs import Value
from replay.tiling.terms import TERM_NAMES, Array, Terms

TILE_ROWS = (16, 32, 64, 128, 256)
TILE_COLUMNS = (32, 64, 128, 256)
TILE_DEPTH = 64
SPLITS = (1, 2, 4, 8, 16, 32)
ACCUMULATOR_BYTES = 4.0
STAGES = 2
"""Operand tiles held at once: one is computed on while the next one loads (double buffering)."""
ACCUMULATOR_SHARE_RATIO = 0.5
"""Share of a unit's registers that accumulators may take; operands in flight, addresses and the next tile's epilogue need the
rest (the largest tiles of public kernel libraries, 256 x 128 in 32 bit, take this half on an SM)."""
LEAST_SPLIT_DEPTH = 128
"""A split leaves at least this much of the reduction to each part."""

Tile = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmChoice:
    """Terms for each row count, and the tile and split that were chosen [rows]."""

    terms: Terms
    tile: npt.NDArray[np.int64]
    """[rows, 3]"""
    split: npt.NDArray[np.int64]
    waves: Array
    padding_ratio: Array
    """Share of the computed output that lies outside the matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    terms: Terms
    waves: Array
    padding_ratio: Array


def tile_problem(tile: Tile, element_bytes: float, hardware: HardwareSpec) -> str | None:
    """Return why a tile cannot run on one unit, or None: its operands' stages and its accumulators must fit."""
    rows, columns, depth = tile
    operands = STAGES * (rows + columns) * depth * element_bytes
    accumulators = rows * columns * ACCUMULATOR_BYTES
    name = f"tile {rows}x{columns}x{depth}"
    if operands > hardware.unit_memory_bytes:
        return f"{name} needs {operands:.0f} bytes of unit memory, {hardware.name} has {hardware.unit_memory_bytes:.0f}"
    registers = ACCUMULATOR_SHARE_RATIO * hardware.unit_registers_bytes
    if accumulators > registers:
        return f"{name} needs {accumulators:.0f} bytes of accumulators, {hardware.name} has registers for {registers:.0f}"
    return None


def candidate_tiles(tile: Value, element_bytes: float, hardware: HardwareSpec) -> tuple[tuple[Tile, ...], str | None]:
    """Return the tiles to choose among, and why a pinned tile could not be taken (then: all that fit)."""
    fitting = tuple(
        (rows, columns, TILE_DEPTH)
        for rows in TILE_ROWS
        for columns in TILE_COLUMNS
        if tile_problem((rows, columns, TILE_DEPTH), element_bytes, hardware) is None
    )
    if tile == "auto":
        return fitting, None
    assert isinstance(tile, tuple)
    pinned: Tile = (tile[0], tile[1], tile[2])
    problem = tile_problem(pinned, element_bytes, hardware)
    return (fitting, problem) if problem else ((pinned,), None)


def choose(
    kernel: Kernel, rows: npt.NDArray[np.int64], backend: str, tiles: tuple[Tile, ...], split: Value, hardware: HardwareSpec
) -> GemmChoice:
    """Return the cheapest of the tiles and splits allowed for every row count in `rows` [rows]; of equals the first."""
    candidates = [(tile, parts) for tile in tiles for parts in _splits(split, kernel.matmul.depth)]
    best = np.zeros(len(rows), dtype=np.int64)
    best_s = np.full(len(rows), np.inf)
    if len(candidates) > 1:
        for index, (tile, parts) in enumerate(candidates):
            time_s = _cost(kernel, rows, backend, tile, parts, hardware).terms.time_s(hardware.gemm.overlap_exponent)
            better = time_s < best_s
            best[better], best_s[better] = index, time_s[better]
    return _gather(candidates, best, kernel, rows, backend, hardware)


def weight_bytes(kernel: Kernel) -> float:
    """Return the bytes of one call's weights on one rank, all experts included."""
    shape = kernel.matmul
    return shape.experts_count * shape.columns * shape.depth * FORMAT_BYTES[kernel.weights_format]


def _splits(split: Value, depth: int) -> tuple[int, ...]:
    if split == "auto":
        return tuple(parts for parts in SPLITS if parts == 1 or depth // parts >= LEAST_SPLIT_DEPTH)
    assert isinstance(split, int)
    return (effective_split(split, depth),)


def effective_split(split: int, depth: int) -> int:
    """Return the parts a reduction is really split into: each keeps at least LEAST_SPLIT_DEPTH of it."""
    return max(1, min(split, depth // LEAST_SPLIT_DEPTH))


def _cost(kernel: Kernel, rows: npt.NDArray[np.int64], backend: str, tile: Tile, split: int, hardware: HardwareSpec) -> _Cost:
    shape, fit = kernel.matmul, hardware.gemm
    experts, rows_each = _expert_load(shape.experts_count, shape.experts_per_row, rows)
    tile_rows, tile_columns, tile_depth = tile
    row_tiles, column_tiles = np.ceil(rows_each / tile_rows), float(np.ceil(shape.columns / tile_columns))
    tiles = experts * row_tiles * column_tiles * split
    occupancy = tiles / hardware.units_count
    smooth = fit.wave_smoothness_ratio
    waves = np.where(occupancy <= 1, 1.0, (1 - smooth) * occupancy + smooth * np.ceil(occupancy))
    peak = hardware.vector_flops_per_s if backend == "vector" else hardware.matrix_flops_per_s[kernel.compute_format]
    rate = fit.compute_efficiency_ratio * peak / hardware.units_count
    compute_s = 2.0 * tile_rows * tile_columns * tile_depth / rate
    used = np.minimum(tile_rows, rows_each) * FORMAT_BYTES[kernel.activations_format]
    operand = (used + min(tile_columns, shape.columns) * FORMAT_BYTES[kernel.weights_format]) * tile_depth
    step_s = _pnorm(
        fit.overlap_exponent, compute_s, operand / hardware.unit_cache_bytes_per_s, fit.step_latency_s / np.clip(occupancy, 1, 4)
    )
    steps = float(np.ceil(shape.depth / (tile_depth * split)))
    traffic = _traffic(kernel, rows, experts)
    combine_bytes = ACCUMULATOR_BYTES * split * rows * shape.experts_per_row * shape.columns if split > 1 else np.zeros(len(rows))
    dram_rate = fit.memory_efficiency_ratio * hardware.memory_bytes_per_s
    full = row_tiles * tile_rows * column_tiles * tile_columns
    terms = Terms(
        compute_s=waves * steps * step_s,
        memory_s=(traffic + combine_bytes) / dram_rate,
        launch_s=np.full(len(rows), fit.floor_s),
        sync_s=np.full(len(rows), fit.split_combine_s if split > 1 else 0.0),
        bytes=traffic + combine_bytes,
    )
    return _Cost(terms=terms, waves=waves, padding_ratio=1.0 - rows_each * shape.columns / full)


def _expert_load(experts_count: int, per_row: int, rows: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """Return (experts with work, rows of each) under uniform routing: an expert is idle with (1 - k/E)^rows."""
    if experts_count == 1:
        return np.ones(len(rows)), rows.astype(np.float64)
    active = experts_count * (1.0 - (1.0 - per_row / experts_count) ** rows)
    active = np.maximum(active, min(per_row, experts_count))
    return active, rows * per_row / active


def _traffic(kernel: Kernel, rows: npt.NDArray[np.int64], experts: Array) -> Array:
    """Return DRAM bytes [rows]: weights of the active experts once, activations in, 16-bit results out."""
    shape = kernel.matmul
    weights = experts * shape.columns * shape.depth * FORMAT_BYTES[kernel.weights_format]
    routed = rows * shape.experts_per_row
    return np.asarray(weights + routed * (shape.depth * FORMAT_BYTES[kernel.activations_format] + shape.columns * FORMAT_BYTES["bf16"]))


def _pnorm(exponent: float, *parts: Array | float) -> Array:
    if np.isinf(exponent):
        return np.asarray(np.maximum.reduce(np.broadcast_arrays(*parts)))
    return np.asarray(sum(part**exponent for part in parts) ** (1.0 / exponent))


def _gather(
    candidates: list[tuple[Tile, int]],
    chosen: npt.NDArray[np.int64],
    kernel: Kernel,
    rows: npt.NDArray[np.int64],
    backend: str,
    hardware: HardwareSpec,
) -> GemmChoice:
    """Return the costs of the chosen candidate of each row count, priced candidate by candidate."""
    terms = Terms(**{name: np.empty(len(rows)) for name in TERM_NAMES})
    waves, padding = np.empty(len(rows)), np.empty(len(rows))
    for index in np.unique(chosen):
        mask = chosen == index
        tile, split = candidates[index]
        cost = _cost(kernel, rows[mask], backend, tile, split, hardware)
        for name in TERM_NAMES:
            getattr(terms, name)[mask] = getattr(cost.terms, name)
        waves[mask], padding[mask] = cost.waves, cost.padding_ratio
    return GemmChoice(
        terms=terms,
        tile=np.array([tile for tile, _ in candidates], dtype=np.int64)[chosen],
        split=np.array([split for _, split in candidates], dtype=np.int64)[chosen],
        waves=waves,
        padding_ratio=padding,
    )
