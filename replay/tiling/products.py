"""Costs of matrix multiplies and experts of a kernel plan, by the calibrated families of a device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.lowering.kernel_plan import FORMAT_BYTES, MATRIX_RATES, Kernel
from replay.specs.hardware import KernelFit
from replay.tiling.bins import ProductBin, product_format
from replay.tiling.expert_rows import rank_rows
from replay.tiling.families import vector_gemm
from replay.tiling.families.arithmetic import FP16_STORED
from replay.tiling.families.expert_tiles import ExpertTiles, marlin_tiles, vllm_block_tiles, vllm_tiles
from replay.tiling.families.experts import EXPERTS
from replay.tiling.families.family import Shapes
from replay.tiling.families.gemm import GemmFamily, gemm_family, gemm_shapes, pinned_variant
from replay.tiling.families.gemm_paths import gemm_paths
from replay.tiling.families.vector_gemm import VectorGemmFamily
from replay.tiling.library import UNCALIBRATED_ERROR_RATIO, Cost, KernelLibrary, Timed
from replay.tiling.measured_hull import HULLS
from replay.tiling.terms import Array

GEMM = "gemm"
STAND_INS = {
    "fp8_block": ("fp8",),
    "int8_smooth": ("fp8",),
    "int8_weights": ("int4_weights", "bf16"),
    "int4_weights": ("int8_weights", "bf16"),
    "nvfp4": ("fp8_block", "fp8"),
}
"""Formats of dense multiplies whose parameters stand for those of a format without a calibration."""
EXPERT_STAND_INS = {"fp8_block": ("fp8",), "int8": ("fp8", "int4"), "int4": ("mxfp4",), "nvfp4": ("fp8", "mxfp4", "int4")}


SPARSE_LEAST_ROWS = 32.0
"""Rows that sparse kernels pad to (pytorch issue 111339: one row costs as much as 32)."""
SPARSE_KERNEL_SPEEDUP = 1.3
"""What sparse kernels gain where compute decides, of the doubled peak (pytorch tutorials 3236, TensorRT issue 2310: 1.0 to 1.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductChoice:
    """What runs for each row count [rows], beside its cost."""

    cost: Cost
    tile: npt.NDArray[np.int64]
    """[rows, 3]"""
    split: npt.NDArray[np.int64]
    waves: Array
    padding_ratio: Array


def price_product(kernel: Kernel, rows: Array, bin_: ProductBin, library: KernelLibrary, stack: str) -> ProductChoice:
    """Return the fastest allowed kernel of a matrix multiply for each row count [rows], at least 1."""
    shape = kernel.matmul
    if bin_.backend == "vector":
        return _on_vector_units(kernel, rows, library, stack)
    variant = product_format(kernel).name
    found = library.find(GEMM, (variant, *STAND_INS.get(variant, ("bf16",))), stack)
    family = gemm_family(variant, found.fit.stack if found else stack, library.device, cold=True)
    family = replace(family, units_count=library.units_count(found))
    if kernel.sparse:
        return _sparse_product(kernel, rows, bin_, library, family, found)
    one = shape.groups_count == 1
    tiles = None if bin_.tile is None else (bin_.tile,)
    split = bin_.called_split
    shapes = gemm_shapes(rows, np.array(float(shape.columns)), np.array(float(shape.depth)))
    timed = _timed_product(replace(family, tile=bin_.tile, split=split), shapes, library, stack, exact=one)
    model = library.model(family, found, wanted=variant, exact=one, timed=timed)
    choice = family.choices(shapes, library.device, model.parameters, tiles=tiles, split=split)
    # Groups of columns are priced as one product of all columns; what the further groups read of their own comes on top.
    read_bytes = (shape.groups_count - 1) * rows * shape.depth * FORMAT_BYTES[kernel.activations_format]
    rate = model.parameters["memory_efficiency_ratio"] * library.device.memory_bytes_per_s
    cost = model.cost(shapes, library.device, choice.terms.with_memory(read_bytes / rate, read_bytes))
    return ProductChoice(cost=cost, tile=choice.tile, split=choice.split, waves=choice.waves, padding_ratio=choice.padding_ratio)


def _sparse_product(
    kernel: Kernel, rows: Array, bin_: ProductBin, library: KernelLibrary, family: GemmFamily, found: KernelFit | None
) -> ProductChoice:
    """Return the product with sparse weights: half of them, at the sparse units' rate, and never fewer rows than a sparse tile has.

    No sparse kernel is calibrated: the dense one's parameters and residual stand for it, at the speed-up that public reports find.
    """
    gain = min(SPARSE_KERNEL_SPEEDUP, library.device.sparse_speedup_ratio or 1.0)
    rates = {name: rate * gain for name, rate in library.device.matrix_flops_per_s.items()}
    device = replace(library.device, matrix_flops_per_s=rates)
    family = replace(family, format=replace(family.format, weight_bytes=kernel.weight_bytes))
    model = library.model(family, found, wanted=family.format.name)
    sizes = np.array(float(kernel.matmul.columns)), np.array(float(kernel.matmul.depth))
    shapes = gemm_shapes(np.maximum(rows, SPARSE_LEAST_ROWS), *sizes)
    tiles = None if bin_.tile is None else (bin_.tile,)
    choice = family.choices(shapes, device, model.parameters, tiles=tiles, split=bin_.split)
    cost = replace(model.cost(shapes, device, choice.terms), source="datasheet", error_ratio=UNCALIBRATED_ERROR_RATIO)
    padding = 1.0 - (1.0 - choice.padding_ratio) * rows / np.maximum(rows, SPARSE_LEAST_ROWS)
    return ProductChoice(cost=cost, tile=choice.tile, split=choice.split, waves=choice.waves, padding_ratio=padding)


def _timed_product(family: GemmFamily, shapes: Shapes, library: KernelLibrary, stack: str, *, exact: bool) -> Timed | None:
    """Return the timings of a product with the family's tile and split; they ran with the weights in rotation.

    Where there are none, those with tiles that the library chose only say how far the model is off.
    """
    own = pinned_variant(family.format.name, family.tile, family.split)
    found = library.timings(GEMM, (own,), stack)
    if found is not None and not len(found.like(shapes, HULLS[GEMM]).seconds):
        found = None
    chosen = library.timings(GEMM, (family.format.name,), stack) if found is None else found
    rotation = gemm_paths(family.format.name, chosen.stack if chosen else stack, library.device.cache_bytes).rotation
    ran = replace(family, paths=replace(family.paths, rotation=rotation))
    if found is None:
        ran = replace(ran, tile=None, split=None)
    return Timed.of(chosen, family=ran, exact=exact and found is not None)


def _on_vector_units(kernel: Kernel, rows: Array, library: KernelLibrary, stack: str) -> ProductChoice:
    """Return the product in 16-bit operands and 32-bit arithmetic, on the vector units: no alignment is needed."""
    found = library.find("vector_gemm", (FP16_STORED.name, "fp32-linear"), stack)
    timed = Timed.of(library.timings("vector_gemm", (FP16_STORED.name,), stack))
    model = library.model(VectorGemmFamily(arithmetic=FP16_STORED), found, wanted=FP16_STORED.name, timed=timed)
    shape = kernel.matmul
    shapes = vector_gemm.gemm_shapes(rows, np.array(float(shape.columns)), np.array(float(shape.depth)))
    count = len(rows)
    return ProductChoice(
        cost=model.cost(shapes, library.device),
        tile=np.zeros((count, 3), dtype=np.int64),
        split=np.ones(count, dtype=np.int64),
        waves=np.ones(count),
        padding_ratio=np.zeros(count),
    )


def price_experts(kernel: Kernel, rows: Array, bin_: ProductBin, library: KernelLibrary, stack: str) -> ProductChoice:
    """Return a mixture of experts on one average rank for each number of tokens [rows], at least 1, routed at random by load."""
    shape, device = kernel.experts, library.device
    variant = kernel.weights_format if kernel.activations_format in MATRIX_RATES or FORMAT_BYTES[kernel.weights_format] < 1 else "bf16"
    found = library.find("experts", (variant, *EXPERT_STAND_INS.get(variant, ("bf16",))), stack)
    timed = Timed.of(library.timings("experts", (variant,), stack), exact=False)  # timed with other loads than are replayed
    model = library.model(EXPERTS, found, wanted=variant, timed=timed)
    ones = np.ones(len(rows))
    tiles = _expert_tiles(kernel, rows, bin_)
    load = rank_rows(shape, rows, tiles.rows)
    shapes = {
        "tokens": load.tokens,
        "choices": shape.experts_per_row * ones,
        "hidden": shape.hidden * ones,
        "inter": shape.width * ones,
        "matrices": 3.0 * ones,
        "experts": shape.experts_count * ones,
        "rows": load.rows,
        "active_experts": load.active_experts,
        "row_tiles": load.row_tiles,
        "tile_rows": tiles.rows,
        "tile_columns": tiles.columns,
        "tile_depth": tiles.depth,
        "tile_group": tiles.group,
        "tuned": tiles.tuned,
        "weight_bytes": FORMAT_BYTES[kernel.weights_format] * ones,
        "activation_bytes": FORMAT_BYTES[kernel.activations_format] * ones,
    }
    grid = load.row_tiles * np.ceil(2.0 * shape.width / tiles.columns)
    return ProductChoice(
        cost=model.cost(shapes, device),
        tile=np.stack([tiles.rows, tiles.columns, tiles.depth], axis=1).astype(np.int64),
        split=np.ones(len(rows), dtype=np.int64),
        waves=np.maximum(grid / device.units_count, 1.0),
        padding_ratio=1.0 - load.rows / (load.row_tiles * tiles.rows),
    )


def _expert_tiles(kernel: Kernel, rows: Array, bin_: ProductBin) -> ExpertTiles:
    """Return the pinned or tuned tile, or that of vLLM's kernel for the format (Marlin's for 4-bit weights)."""
    shape, ones = kernel.experts, np.ones(len(rows))
    if bin_.tile is not None:
        height, width, depth = (float(size) * ones for size in bin_.tile)
        group, tuned = (1, 0.0) if bin_.table is None else (bin_.table.entry.group, 1.0)
        return ExpertTiles(rows=height, columns=width, depth=depth, group=group * ones, tuned=tuned * ones)
    choices, experts = shape.experts_per_row * ones, shape.experts_count * ones
    if FORMAT_BYTES[kernel.weights_format] < FORMAT_BYTES["fp8"]:
        return marlin_tiles(rows, choices, experts)
    if kernel.weights_format == "fp8_block":
        return vllm_block_tiles(rows)
    return vllm_tiles(rows, choices, experts, eight_bit=kernel.activations_format in MATRIX_RATES)
