"""Dense matrix multiplies on matrix units: output tiles in waves over the units, the reduction split where tiles are few.

For an output tile of r x c elements, pipeline steps of d elements along the depth, a split s, and S units::

    tiles    = ceil(rows / r) ceil(columns / c) s        w = tiles / S;  waves = 1 up to one, else a share a of w is rounded up
    work     = p3(2 r c d / (efficiency x peak / S),  operand bytes of a step / rate of a unit from the cache)
    execute  = p3(waves x steps x work,  steps x step latency x max(1, w / 4)) + waves x stores of a tile / serial store rate
    memory   = (weights + activations + results) bytes, each at the DRAM rate or, as far as found there, at the cache's
    time     = p-norm(floor + execute, floor + memory) + combining of a split + narrowing of activations

p3 is the cubic norm: parts that mostly overlap. Up to four tiles of a unit hide each other's step latency. The floor lies inside
both branches, so that it is charged once. The fastest of all legal tiles and splits is taken, as libraries choose by a model of
their own; no legal tile or split that is asked for is faster than the automatic choice. One row has a kernel of its own beside
them, which streams each column of weights through one thread block without tiles or combining. After the tile and wave
quantisation of NVIDIA's "Matrix Multiplication Background User's Guide" and Stream-K (Osama et al. 2023); the terms, and what
each buys on public kernel timings, were found on those timings (see `replay.calibration`).

Weights count as found in the cache while all copies in rotation (see `gemm_paths`) and the other operands fit a share of it,
activations and results while they and one copy do. More units means more of the same ones: units, peaks and traffic of a wave
grow together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.errors import SpecError
from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import ParameterDefinition, Parameters, Shapes
from replay.tiling.families.gemm_features import FEATURES, gemm_features
from replay.tiling.families.gemm_formats import RESULT_BYTES, SOURCE_BYTES, GemmFormat, gemm_format
from replay.tiling.families.gemm_parameters import gemm_parameters
from replay.tiling.families.gemm_paths import COLD, GemmPaths, gemm_paths
from replay.tiling.families.gemm_search import Fastest, Product, fastest
from replay.tiling.families.gemm_tiles import Tile, legal_tiles, tile_problem, tile_resources
from replay.tiling.families.tile_resources import spill_s
from replay.tiling.terms import Array, Terms, nothing

WARM_SHARPNESS = 8.0
"""How sharply data stop being found in the cache once they outgrow their share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmChoice:
    """What the chosen kernels of many shapes cost and look like [rows]."""

    terms: Terms
    overlap_exponent: float
    """Joins the terms (`Terms.time_s`)."""
    tile: npt.NDArray[np.int64]
    """[rows, 3]; (1, 1, step) is the kernel for one row."""
    split: npt.NDArray[np.int64]
    waves: Array
    padding_ratio: Array
    """Share of the computed output that lies outside the matrix."""
    seconds: Array
    """The joined terms, never below the physical bound."""


def pinned_variant(format_name: str, tile: Tile | None, split: int | None) -> str:
    """Return the name of a product's variant: the format, and the tile and the split where a mapping pins them."""
    pins = [*(["x".join(map(str, tile))] if tile is not None else []), *([f"split {split}"] if split is not None else [])]
    return format_name + (f"@{' '.join(pins)}" if pins else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmFamily:
    """Products of one format by the kernels of one stack; shapes: `rows`, `columns`, `depth` of activations rows x depth."""

    format: GemmFormat
    paths: GemmPaths
    units_count: int
    """Units that the residual's features count waves over: those of the device it was fitted on."""
    name: str = "gemm"
    tile: Tile | None = None
    """The tile that runs; None for the automatic choice."""
    split: int | None = None

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Floor, efficiencies, latencies, overlap and cache; what splits, one row, narrowing and widening add where they occur."""
        return gemm_parameters(self.format, self.paths)

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the columns of `features`."""
        return FEATURES

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the time of the family's own tile and split, or of the automatic choice, for each shape [rows].

        Raises:
            SpecError: a size below 1, or the device has no rate for the format.
        """
        return self._own(shapes, device, parameters).seconds

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the terms of the same [rows], which `overlap_exponent` joins.

        Raises:
            SpecError: as `seconds`.
        """
        return self._own(shapes, device, parameters).terms

    def _own(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> GemmChoice:
        return self.choices(shapes, device, parameters, tiles=None if self.tile is None else (self.tile,), split=self.split)

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return the exponent that joins execution and memory time."""
        return parameters["overlap_exponent"]

    def seconds_at(
        self, shapes: Shapes, device: HardwareSpec, parameters: Parameters, *, tile: Tile | None = None, split: int | None = None
    ) -> Array:
        """Return the time with a pinned tile, a pinned split, or both, for each shape [rows].

        Raises:
            SpecError: as `choices`.
        """
        return self.choices(shapes, device, parameters, tiles=None if tile is None else (tile,), split=split).seconds

    def choices(
        self,
        shapes: Shapes,
        device: HardwareSpec,
        parameters: Parameters,
        *,
        tiles: tuple[Tile, ...] | None = None,
        split: int | None = None,
    ) -> GemmChoice:
        """Return the fastest kernels among `tiles` (default: all legal ones) and splits (default: all legal ones).

        A pinned split is taken down to the next power of two at which every part keeps its least depth, however crowded units are,
        and not at all where the stack has no split kernels (`GemmChoice.split`).

        Raises:
            SpecError: a size or split below 1, a tile that no unit can launch, or the device has no rate for the format.
        """
        self._check(shapes, device, tiles, split)
        product = self._product(shapes, device, parameters)
        found = fastest(
            product,
            legal_tiles(self.format, device) if tiles is None else tiles,
            device,
            parameters,
            split=split if self.paths.splits else 1,
            vector=self.paths.vector and tiles is None and split in (None, 1),
        )
        whole = Terms(
            compute_s=found.execute_s,
            memory_s=product.memory_s,
            launch_s=np.full(len(product.rows), parameters["floor_s"]),
            sync_s=np.zeros(len(product.rows)),
            bytes=product.dram_bytes,
        )
        after = _combining(found, parameters)
        if self.format.quantises:
            after = after.plus(self._narrowing(product, device, parameters))
        if tiles is not None:
            after = after.plus(self._spilling(found, product, device, parameters))
        exponent = self.overlap_exponent(parameters)
        terms = whole.with_memory_after(after.memory_s, after.bytes, exponent).with_sync(after.sync_s)
        return GemmChoice(
            terms=terms,
            overlap_exponent=exponent,
            tile=found.tile,
            split=found.split,
            waves=found.waves,
            padding_ratio=found.padding_ratio,
            seconds=np.maximum(terms.time_s(exponent), self.bound_s(shapes, device)),
        )

    def _spilling(self, found: Fastest, product: Product, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the terms [rows] of passing accumulators beyond the registers through memory."""
        needs = {tuple(tile): tile_resources(tuple(tile), self.format, device) for tile in np.unique(found.tile, axis=0).tolist()}
        spilled = np.array([needs[tuple(tile)].spilled_bytes for tile in found.tile.tolist()])
        steps = found.waves * np.ceil(product.depth / (found.tile[:, 2] * found.split))
        return nothing(len(steps)).with_memory(spill_s(spilled, steps, device, parameters["memory_efficiency_ratio"]))

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return FLOPs over the peak, or bytes over the caches' joint rate, or bytes that no cache can hold over the DRAM rate."""
        rows, columns, depth = _sizes(shapes)
        operations = 2.0 * rows * columns * depth
        once = columns * depth * self.format.weight_bytes + rows * depth * self.format.activation_bytes + rows * columns * RESULT_BYTES
        cached = once / (device.units_count * device.unit_cache_bytes_per_s)
        beyond = np.maximum(once - device.cache_bytes, 0.0) / device.memory_bytes_per_s
        return np.asarray(np.maximum(operations / self.format.flops_per_s(device), np.maximum(cached, beyond)))

    def features(self, shapes: Shapes) -> Array:
        """Return the features of `gemm_features` [rows, features]."""
        rows, columns, depth = _sizes(shapes)
        moved = columns * depth * self.format.weight_bytes + rows * depth * self.format.activation_bytes + rows * columns * RESULT_BYTES
        return gemm_features(rows, columns, depth, moved, self.units_count)

    def _check(self, shapes: Shapes, device: HardwareSpec, tiles: tuple[Tile, ...] | None, split: int | None) -> None:
        for name, column in zip(("rows", "columns", "depth"), _sizes(shapes), strict=True):
            if len(column) and not column.min() >= 1:
                raise SpecError(f"gemm {name}", f"{column.min():g}", "at least 1", "drop the empty product")
        for tile in tiles or ():
            problem = tile_problem(tile, self.format, device)
            if problem is not None:
                raise SpecError("gemm tile", problem, "a tile that one unit holds", "take a smaller tile")
        if split is not None and split < 1:
            raise SpecError("gemm split", str(split), "at least 1", "pin 1 to forbid splits, or leave the choice open")
        if tiles == ():
            raise SpecError("gemm tile", "no tile is allowed", "at least one", "allow a tile, or leave the choice open")

    def _product(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Product:
        """Return the product with its memory time: weights, and the other operands, cold or warm."""
        rows, columns, depth = _sizes(shapes)
        weights = columns * depth * self.format.weight_bytes
        rest = rows * depth * self.format.activation_bytes + rows * columns * RESULT_BYTES
        kept, cache = self.paths.rotation.set_bytes(weights), device.cache_bytes
        weights_warm = _warm(kept + rest, parameters["weights_cache_ratio"] * cache)
        rest_warm = _warm(weights + rest, parameters["activations_cache_ratio"] * cache)
        rate, faster = parameters["memory_efficiency_ratio"] * device.memory_bytes_per_s, parameters["cache_rate_ratio"]
        warm_bytes = weights * weights_warm + rest * rest_warm
        dram_bytes = weights + rest - warm_bytes
        return Product(
            rows=rows,
            columns=columns,
            depth=depth,
            activation_bytes=self.format.activation_bytes,
            weight_bytes=self.format.weight_bytes,
            step_elements=self.format.step_elements,
            flops_per_s=parameters["compute_efficiency_ratio"] * self.format.flops_per_s(device),
            widening_operations=parameters["widening_operations"] if self.format.dequantises else 0.0,
            memory_s=(dram_bytes + warm_bytes / faster) / rate,
            dram_bytes=dram_bytes,
        )

    def _narrowing(self, product: Product, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the terms [rows] of narrowing 16-bit activations before the product."""
        moved = product.rows * product.depth * (SOURCE_BYTES + self.format.activation_bytes)
        warm = _warm(moved, parameters["activations_cache_ratio"] * device.cache_bytes)
        rate = parameters["narrowing_rate_ratio"] * device.memory_bytes_per_s
        cold_bytes = moved * (1.0 - warm)
        memory_s = (cold_bytes + moved * warm / parameters["cache_rate_ratio"]) / rate
        return nothing(len(moved)).with_memory(memory_s, cold_bytes).with_sync(parameters["narrowing_floor_s"])


def gemm_family(variant: str, stack: str, device: HardwareSpec, *, cold: bool = False) -> GemmFamily:
    """Return the family of a format under a stack, as timed on `device`; with `cold`, weights come from DRAM on every use.

    Raises:
        SpecError: there is no such format.
    """
    paths = gemm_paths(variant, stack, device.cache_bytes)
    if cold:
        paths = GemmPaths(splits=paths.splits, vector=paths.vector, rotation=COLD)
    return GemmFamily(format=gemm_format(variant), paths=paths, units_count=device.units_count)


def gemm_shapes(rows: Array, columns: Array, depth: Array) -> Shapes:
    """Return the shapes of products of rows x depth activations with columns x depth weights, broadcast to [rows]."""
    named = (np.asarray(column, dtype=np.float64) for column in (rows, columns, depth))
    return dict(zip(("rows", "columns", "depth"), np.broadcast_arrays(*named), strict=True))


def _combining(found: Fastest, parameters: Parameters) -> Terms:
    """Return the terms [rows] of adding the parts of a split in a second pass."""
    floor_s = np.where(found.split > 1, parameters.get("split_combine_s", 0.0), 0.0)
    return nothing(len(floor_s)).with_memory(found.combine_s - floor_s, found.combine_bytes).with_sync(floor_s)


def _sizes(shapes: Shapes) -> tuple[Array, Array, Array]:
    return shapes["rows"], shapes["columns"], shapes["depth"]


def _warm(held_bytes: Array, room_bytes: float) -> Array:
    """Return the share of data found in the cache [rows] when `held_bytes` [rows] compete for `room_bytes`."""
    return np.asarray(1.0 / (1.0 + (held_bytes / room_bytes) ** WARM_SHARPNESS))
