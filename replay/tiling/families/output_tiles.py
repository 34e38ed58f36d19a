"""Matrix products on output tiles, for kernels that run on the vector units and for the products inside a convolution.

For an output tile of r x c elements, steps of 16 along the depth and a split s of it, on S units::

    tiles   = ceil(rows / r) ceil(columns / c) count s          waves w = tiles / S, at least one; a share of it is rounded up
    compute = 2 r c 16 (1 + edge (1/r + 1/c)) / (efficiency x peak / S)       a small tile feeds each operand to fewer products
    load    = (min(r, rows) + min(c, columns)) 16 bytes / rate of a unit from the cache
    execute = steps x p-norm(w compute, w load, step latency x max(1, w / 8))  up to 8 tiles of a unit hide each other's latency
    time    = p-norm(execute, memory) + (combine latency + (s + 1) partial results through memory, where s > 1)

and the fastest tile and split is taken, as libraries choose by a model of their own. After the tile and wave quantisation of
NVIDIA's "Matrix Multiplication Background User's Guide"; splits after Stream-K (Osama et al. 2023). Tile sizes are those in
the names of cuBLAS and CUTLASS fp32 kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import ParameterDefinition, Parameters
from replay.tiling.terms import Array, Terms, nothing

Tile = tuple[int, int]
TILES: tuple[Tile, ...] = ((32, 32), (32, 128), (128, 32), (64, 64), (128, 64), (128, 128))
SPLITS = (1, 2, 4, 8, 16, 32)
STEP_ELEMENTS = 16
LEAST_SPLIT_STEPS = 4
"""A split leaves each part at least this many steps."""
MOST_TILES_PER_UNIT = 8
"""Tiles of a unit beyond which no library splits, and that hide each other's latency."""
ACCUMULATOR_BYTES = 4.0

TILE_PARAMETERS = (
    ParameterDefinition(name="floor_s", meaning="launch, first loads and last stores", start=6e-6, lower=3e-7, upper=5e-5),
    ParameterDefinition(name="compute_efficiency_ratio", meaning="peak reached inside a large tile", start=0.85, lower=0.05, upper=1.3),
    ParameterDefinition(name="memory_efficiency_ratio", meaning="DRAM rate reached", start=0.75, lower=0.3, upper=1.2),
    ParameterDefinition(name="step_latency_s", meaning="one step of a tile alone on its unit", start=1e-7, lower=1e-8, upper=5e-6),
    ParameterDefinition(name="overlap_exponent", meaning="p of the p-norms", start=3.0, lower=1.2, upper=8.0),
    ParameterDefinition(name="split_combine_s", meaning="adding the parts of a split", start=5e-6, lower=1e-8, upper=5e-5),
    ParameterDefinition(
        name="wave_smoothness_ratio", meaning="share of waves rounded up", start=0.5, lower=0.0, upper=1.0, logarithmic=False
    ),
    ParameterDefinition(name="cache_rate_ratio", meaning="share of a unit's cache rate that is reached", start=1.0, lower=0.02, upper=8.0),
    ParameterDefinition(name="edge_elements", meaning="work of a tile's edge over that of its area", start=2.0, lower=0.1, upper=40.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Products [rows of a table] of a rows x depth with a depth x columns matrix, `count` of them independent."""

    rows: Array
    columns: Array
    depth: Array
    count: Array
    input_bytes: float
    flops_per_s: Array
    """What the units reach together: efficiency times peak."""


def fastest_terms(
    product: Product,
    moved_bytes: Callable[[Tile], Array],
    device: HardwareSpec,
    parameters: Parameters,
    *,
    splits: tuple[int, ...] = SPLITS,
) -> Terms:
    """Return the terms [rows] on the fastest tile and split, without the launch floor.

    `moved_bytes` gives the traffic [rows] of a tile; adding the parts of a split comes after it. The time is infinite where no
    split is allowed.
    """
    exponent = parameters["overlap_exponent"]
    partial_bytes = product.rows * product.columns * product.count * ACCUMULATOR_BYTES
    rate = parameters["memory_efficiency_ratio"] * device.memory_bytes_per_s
    best_s = np.full(len(product.rows), np.inf)
    best = replace(nothing(len(best_s)), sync_s=best_s)
    for tile in TILES:
        grid = tiles_count(product, tile)
        per_wave = _step_s(product, tile, device, parameters) ** exponent
        moved = moved_bytes(tile)
        traffic = (moved / rate) ** exponent
        for split in splits:
            tiles = grid * split
            waves = _waves(tiles / device.units_count, parameters["wave_smoothness_ratio"])
            latency = parameters["step_latency_s"] * np.maximum(1.0, waves / MOST_TILES_PER_UNIT)
            steps = np.ceil(product.depth / (STEP_ELEMENTS * split))
            execute = steps**exponent * (waves**exponent * per_wave + latency**exponent)
            parts_bytes = (split + 1) * partial_bytes if split > 1 else np.zeros(len(best_s))
            combine_s = parameters["split_combine_s"] + parts_bytes / rate if split > 1 else np.zeros(len(best_s))
            time_s = (execute + traffic) ** (1.0 / exponent) + combine_s
            if split > 1:
                allowed = (product.depth >= LEAST_SPLIT_STEPS * STEP_ELEMENTS * split) & (tiles <= MOST_TILES_PER_UNIT * device.units_count)
                time_s = np.where(allowed, time_s, np.inf)
            powers = replace(best, compute_s=execute, memory_s=moved / rate, sync_s=combine_s, bytes=moved + parts_bytes)
            faster = time_s < best_s
            best, best_s = powers.where(faster, best), np.minimum(best_s, time_s)
    return replace(best, compute_s=best.compute_s ** (1.0 / exponent))


def tiles_count(product: Product, tile: Tile) -> Array:
    """Return the output tiles of all products [rows]."""
    return np.asarray(np.ceil(product.rows / tile[0]) * np.ceil(product.columns / tile[1]) * product.count)


def _step_s(product: Product, tile: Tile, device: HardwareSpec, parameters: Parameters) -> Array:
    """Return the p-norm of computing and loading one step of one tile [rows]."""
    rows, columns = tile
    exponent = parameters["overlap_exponent"]
    edge = 1.0 + parameters["edge_elements"] * (1.0 / rows + 1.0 / columns)
    compute = 2.0 * rows * columns * STEP_ELEMENTS * edge * device.units_count / product.flops_per_s
    operands = (np.minimum(rows, product.rows) + np.minimum(columns, product.columns)) * STEP_ELEMENTS * product.input_bytes
    load = operands / (parameters["cache_rate_ratio"] * device.unit_cache_bytes_per_s)
    return np.asarray((compute**exponent + load**exponent) ** (1.0 / exponent))


def _waves(occupancy: Array, smoothness: float) -> Array:
    return np.where(occupancy <= 1, 1.0, (1.0 - smoothness) * occupancy + smoothness * np.ceil(occupancy))
