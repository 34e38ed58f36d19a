"""Dense and batched matrix multiplies of the classic libraries: fp32 on the vector units, and their kin in other arithmetic.

Execution is that of `output_tiles`. Memory traffic for a tile of r x c::

    once   = operands and result, each once
    panels = (rows + columns of 256 neighbouring tiles) x depth            what must stay cached for tiles to share operands
    again  = reread / (1 + (reach x cache / panels)^3) x tiles (r + c) depth     operands of each tile, as far as panels overflow

Deep products on devices with a small cache (Pascal, Turing) fall to half their rate by the last term: tiles that share operands
drift apart along the depth. How many tiles are in flight is a constant, not the device's units: more units are never slower.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.arithmetic import FP32, Arithmetic
from replay.tiling.families.family import ParameterDefinition, Parameters, Shapes, joined_s
from replay.tiling.families.output_tiles import TILE_PARAMETERS, Product, Tile, fastest_terms, tiles_count
from replay.tiling.terms import Array, Terms

TILES_IN_FLIGHT = 256.0
REREAD_SHARPNESS = 3.0
"""How abruptly panels stop fitting the cache."""
FEATURE_TILE: Tile = (128, 128)

_PARAMETERS = (
    *TILE_PARAMETERS,
    ParameterDefinition(name="panel_reach_ratio", meaning="panels that share operands, over the cache", start=10.0, lower=0.1, upper=300.0),
    ParameterDefinition(name="reread_ratio", meaning="bytes moved per operand byte that is not shared", start=1.0, lower=0.1, upper=5.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorGemmFamily:
    """Multiplies in one arithmetic.

    Shapes: rows, columns, depth, count (independent products), left_transposed and right_transposed (0 or 1, a feature only).
    """

    arithmetic: Arithmetic = FP32
    name: str = "vector_gemm"

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Those of output tiles, and two of the cache."""
        return _PARAMETERS

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the columns of `features`."""
        return ("log_rows", "log_columns", "log_depth", "log_count", "log_tiles", "left_transposed", "right_transposed")

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the time of one call for each shape [rows].

        Raises:
            SpecError: the device has no rate for the arithmetic.
        """
        return joined_s(self, shapes, device, parameters)

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the pure terms of one call [rows] on the fastest tile and split; nothing overlaps with the floor and a split's sum.

        Raises:
            SpecError: the device has no rate for the arithmetic.
        """
        product = self._product(shapes, parameters["compute_efficiency_ratio"] * self.arithmetic.flops_per_s(device))
        once = self._bytes_once(shapes)

        def moved_bytes(tile: Tile) -> Array:
            return once + self._again_bytes(product, tile, device.cache_bytes, parameters)

        return fastest_terms(product, moved_bytes, device, parameters).with_sync(parameters["floor_s"])

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return the fitted p."""
        return parameters["overlap_exponent"]

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return the least time: operations over the peak, and what exceeds the cache once through memory."""
        operations = 2.0 * shapes["rows"] * shapes["columns"] * shapes["depth"] * shapes["count"]
        beyond = np.maximum(self._bytes_once(shapes) - device.cache_bytes, 0.0)
        return np.maximum(operations / self.arithmetic.flops_per_s(device), beyond / device.memory_bytes_per_s)

    def features(self, shapes: Shapes) -> Array:
        """Return logarithms of sizes and of tiles of 128 x 128, and the transposes [rows, 7]."""
        tiles = tiles_count(self._product(shapes, 1.0), FEATURE_TILE)
        sizes = (np.log2(shapes[name]) for name in ("rows", "columns", "depth", "count"))
        return np.stack([*sizes, np.log2(tiles), shapes["left_transposed"], shapes["right_transposed"]], axis=1)

    def _product(self, shapes: Shapes, flops_per_s: float) -> Product:
        sizes = {name: shapes[name] for name in ("rows", "columns", "depth", "count")}
        return Product(input_bytes=self.arithmetic.input_bytes, flops_per_s=np.asarray(flops_per_s), **sizes)

    def _bytes_once(self, shapes: Shapes) -> Array:
        rows, columns, depth = shapes["rows"], shapes["columns"], shapes["depth"]
        operands = (rows + columns) * depth * self.arithmetic.input_bytes
        return np.asarray(shapes["count"] * (operands + rows * columns * self.arithmetic.output_bytes))

    def _again_bytes(self, product: Product, tile: Tile, cache_bytes: float, parameters: Parameters) -> Array:
        """Return operand bytes read again by tiles that do not find them cached [rows]."""
        depth_bytes = product.depth * product.input_bytes
        grid = tiles_count(product, tile)
        across, down = np.ceil(product.columns / tile[1]), np.ceil(product.rows / tile[0])
        flight = np.minimum(grid, TILES_IN_FLIGHT)
        panels = (np.minimum(flight, across) * tile[1] + np.clip(flight / across, 1.0, down) * tile[0]) * depth_bytes
        unshared = 1.0 / (1.0 + (parameters["panel_reach_ratio"] * cache_bytes / panels) ** REREAD_SHARPNESS)
        return np.asarray(parameters["reread_ratio"] * unshared * grid * (tile[0] + tile[1]) * depth_bytes)


def gemm_shapes(
    rows: Array, columns: Array, depth: Array, *, count: float | Array = 1.0, left: float | Array = 0.0, right: float | Array = 0.0
) -> Shapes:
    """Return the shapes of products of rows x depth with depth x columns [rows]; `left`, `right`: 1 where stored transposed."""
    named = {"rows": rows, "columns": columns, "depth": depth, "count": count, "left_transposed": left, "right_transposed": right}
    whole = {name: np.asarray(column, dtype=np.float64) for name, column in named.items()}
    return dict(zip(whole, np.broadcast_arrays(*whole.values()), strict=True))
