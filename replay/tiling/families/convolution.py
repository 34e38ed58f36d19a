"""Two-dimensional convolutions, forward: the fastest of the algorithms that a shape allows.

- implicit GEMM: pixels x (channels x filter) times (channels x filter) x filters on `output_tiles`, one product per group; the depth
  is split on matrix units only;
- Winograd (Lavin and Gray 2016), square 3 x 3 and 5 x 5 filters of stride 1: tiles of t x t pixels become (t + r - 1)^2 products of
  tiles x channels with channels x filters. t = 2 transforms inside the kernel (3 x 3 only); t = 4 writes and reads the transformed
  pixels and filters in passes of their own, each with a launch, and the library's heuristic takes it from 16 images on (its speed
  over the operations of the definition jumps there in public timings);
- direct: every result by itself on the vector units - what is left where channels are few, and depthwise (a group per channel).

Matrix units want channels in multiples (`Arithmetic.aligned_elements`): others are padded, at an efficiency of its own, and Winograd is
not offered. They read channels innermost (NHWC); channels outermost (NCHW) cost a pass over pixels, as far as the kernel does not
do it on the way. Rows of pixels that a stride skips are not read. The algorithms and their limits are those of the cuDNN developer
guide, section on convolution forward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.arithmetic import FP32, Arithmetic
from replay.tiling.families.family import ParameterDefinition, Parameters, Shapes, joined_s
from replay.tiling.families.output_tiles import SPLITS, TILE_PARAMETERS, Product, fastest_terms
from replay.tiling.terms import TERM_NAMES, Array, Terms, in_sequence, nothing

FUSED_TILE, UNFUSED_TILE = 2, 4
UNFUSED_IMAGES = 16
WHOLE = (1,)

_PARAMETERS = (
    *TILE_PARAMETERS,
    ParameterDefinition(name="fused_winograd_efficiency_ratio", meaning="peak of t = 2", start=0.6, lower=0.1, upper=1.3),
    ParameterDefinition(name="unfused_winograd_efficiency_ratio", meaning="peak of t = 4", start=0.6, lower=0.1, upper=1.3),
    ParameterDefinition(name="transform_s", meaning="launches of the passes of t = 4", start=2e-5, lower=1e-6, upper=1e-4),
    ParameterDefinition(name="direct_efficiency_ratio", meaning="vector peak without tiles", start=0.2, lower=0.01, upper=0.6),
    ParameterDefinition(name="padded_efficiency_ratio", meaning="matrix units on padded channels", start=0.4, lower=0.05, upper=1.0),
    ParameterDefinition(name="layout_ratio", meaning="passes over the pixels to reorder them", start=0.3, lower=0.01, upper=3.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionFamily:
    """Convolutions in one arithmetic; shapes as `convolution_shapes` makes them."""

    arithmetic: Arithmetic = FP32
    name: str = "convolution"

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Those of output tiles, and of the algorithms."""
        return _PARAMETERS

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the columns of `features`."""
        return ("log_pixels", "log_filters", "log_depth", "log_channels", "filter_rows", "stride")

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the time of one call for each shape [rows].

        Raises:
            SpecError: the device has no rate for the arithmetic.
        """
        return joined_s(self, shapes, device, parameters)

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the terms of the fastest algorithm [rows]: pure ones, but for a pass that reorders pixels (`in_sequence`).

        Raises:
            SpecError: the device has no rate for the arithmetic.
        """
        exponent, everywhere = parameters["overlap_exponent"], np.ones(len(shapes["images"]), dtype=np.bool_)
        found = self._implicit(shapes, device, parameters)
        found = _with_faster(found, everywhere, self._direct(shapes, device, parameters), exponent)
        for tile, least_images in ((FUSED_TILE, 1), (UNFUSED_TILE, UNFUSED_IMAGES)):
            rows = self._winograd_rows(shapes, tile) & (shapes["images"] >= least_images)
            if rows.any():
                some = {name: column[rows] for name, column in shapes.items()}
                found = _with_faster(found, rows, self._winograd(some, tile, device, parameters), exponent)
        return found.with_sync(parameters["floor_s"])

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return the fitted p."""
        return parameters["overlap_exponent"]

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return the least time: the products of the leanest algorithm over the peak, and what exceeds the cache through memory."""
        taps, tile = shapes["filter_rows"], UNFUSED_TILE
        lean = np.where(self._winograd_rows(shapes, tile), ((tile + taps - 1) / (tile * taps)) ** 2, 1.0)
        peak = max(self.arithmetic.flops_per_s(device), device.vector_flops_per_s)
        beyond = np.maximum(_bytes_once(shapes, self.arithmetic) - device.cache_bytes, 0.0)
        return np.maximum(lean * _operations(shapes) / peak, beyond / device.memory_bytes_per_s)

    def features(self, shapes: Shapes) -> Array:
        """Return logarithms of result pixels, filters, depth of the product and channels, filter rows and stride [rows, 6]."""
        depth = shapes["channels"] / shapes["groups"] * shapes["filter_rows"] * shapes["filter_columns"]
        logs = (np.log2(column) for column in (_pixels(shapes), shapes["filters"], depth, shapes["channels"]))
        return np.stack([*logs, shapes["filter_rows"], 2.0 * shapes["row_stride"]], axis=1)

    def _implicit(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        groups, padding = shapes["groups"], _padding_ratio(shapes, self.arithmetic)
        efficiency = np.where(padding > 1, parameters["padded_efficiency_ratio"], 1.0) * parameters["compute_efficiency_ratio"]
        product = Product(
            rows=_pixels(shapes),
            columns=shapes["filters"] / groups,
            depth=shapes["channels"] / groups * padding * shapes["filter_rows"] * shapes["filter_columns"],
            count=groups,
            input_bytes=self.arithmetic.input_bytes,
            flops_per_s=efficiency * self.arithmetic.flops_per_s(device),
        )
        once, splits = _bytes_once(shapes, self.arithmetic), SPLITS if self.arithmetic.matrix_format else WHOLE
        found = fastest_terms(product, lambda tile: once, device, parameters, splits=splits)
        return in_sequence((found, self._layout(shapes, padding, device, parameters)), parameters["overlap_exponent"])

    def _layout(self, shapes: Shapes, padding: Array, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the terms of bringing pixels into the order, and channels to the count, that matrix units read."""
        if not self.arithmetic.matrix_format:
            return nothing(len(padding))
        moved = (1.0 + padding) * _input_elements(shapes) * self.arithmetic.input_bytes
        due = np.where((shapes["channels_last"] > 0) & (padding == 1), 0.0, parameters["layout_ratio"])
        return replace(nothing(len(moved)), memory_s=due * moved / _memory_rate(device, parameters), bytes=due * moved)

    def _direct(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        compute_s = _operations(shapes) / (parameters["direct_efficiency_ratio"] * device.vector_flops_per_s)
        once = _bytes_once(shapes, self.arithmetic)
        return replace(nothing(len(once)), compute_s=compute_s, memory_s=once / _memory_rate(device, parameters), bytes=once)

    def _winograd_rows(self, shapes: Shapes, tile: int) -> npt.NDArray[np.bool_]:
        """Return which shapes Winograd on tiles of `tile` pixels can do [rows]."""
        square = (shapes["filter_rows"] == shapes["filter_columns"]) & (shapes["row_stride"] == 1) & (shapes["column_stride"] == 1)
        size = (shapes["filter_rows"] == 3) | ((shapes["filter_rows"] == 5) & (tile == UNFUSED_TILE))
        dense = (shapes["groups"] == 1) & (shapes["dilation"] == 1)
        return np.asarray(square & size & dense & (_padding_ratio(shapes, self.arithmetic) == 1))

    def _winograd(self, shapes: Shapes, tile: int, device: HardwareSpec, parameters: Parameters) -> Terms:
        points = (tile + shapes["filter_rows"] - 1) ** 2
        tiles = shapes["images"] * np.ceil(shapes["result_rows"] / tile) * np.ceil(shapes["result_columns"] / tile)
        fused = tile == FUSED_TILE
        efficiency = parameters["fused_winograd_efficiency_ratio" if fused else "unfused_winograd_efficiency_ratio"]
        product = Product(
            rows=tiles,
            columns=shapes["filters"],
            depth=shapes["channels"],
            count=points,
            input_bytes=self.arithmetic.input_bytes,
            flops_per_s=np.asarray(efficiency * self.arithmetic.flops_per_s(device)),
        )
        once = _bytes_once(shapes, self.arithmetic)
        if fused:
            return fastest_terms(product, lambda tile: once, device, parameters, splits=WHOLE)
        passed = points * (tiles * (shapes["channels"] + shapes["filters"]) + shapes["channels"] * shapes["filters"])
        moved = once + 2.0 * passed * self.arithmetic.input_bytes
        return fastest_terms(product, lambda tile: moved, device, parameters, splits=WHOLE).with_sync(parameters["transform_s"])


def convolution_shapes(
    *,
    images: Array,
    channels: Array,
    filters: Array,
    rows: Array,
    columns: Array,
    filter_rows: Array,
    filter_columns: Array,
    row_padding: float | Array = 0.0,
    column_padding: float | Array = 0.0,
    row_stride: float | Array = 1.0,
    column_stride: float | Array = 1.0,
    dilation: float | Array = 1.0,
    groups: float | Array = 1.0,
    channels_last: float | Array = 0.0,
) -> Shapes:
    """Return the shapes of convolutions [rows]; `groups` = `channels` is depthwise, `channels_last` is 1 for NHWC and 0 for NCHW.

    `dilation` spreads the filter's elements over every so-manieth pixel.
    """
    sizes = (images, channels, filters, rows, columns, filter_rows, filter_columns)
    named: dict[str, float | Array] = dict(zip(_COLUMNS, sizes, strict=True))
    named |= {"row_stride": row_stride, "column_stride": column_stride}
    named |= {"dilation": dilation, "groups": groups, "channels_last": channels_last}
    named["result_rows"] = np.floor((rows + 2.0 * row_padding - dilation * (filter_rows - 1.0) - 1.0) / row_stride) + 1.0
    named["result_columns"] = np.floor((columns + 2.0 * column_padding - dilation * (filter_columns - 1.0) - 1.0) / column_stride) + 1.0
    whole = {name: np.asarray(column, dtype=np.float64) for name, column in named.items()}
    return dict(zip(whole, np.broadcast_arrays(*whole.values()), strict=True))


_COLUMNS = ("images", "channels", "filters", "rows", "columns", "filter_rows", "filter_columns")


def _with_faster(found: Terms, rows: npt.NDArray[np.bool_], other: Terms, exponent: float) -> Terms:
    """Return `found` with `other` in its place where that is faster; `rows` says which rows `other` is about."""
    whole = {name: np.array(getattr(found, name)) for name in TERM_NAMES}
    here = Terms(**{name: column[rows] for name, column in whole.items()})
    faster = other.where(other.time_s(exponent) < here.time_s(exponent), here)
    for name, column in whole.items():
        column[rows] = getattr(faster, name)
    return Terms(**whole)


def _pixels(shapes: Shapes) -> Array:
    return np.asarray(shapes["images"] * shapes["result_rows"] * shapes["result_columns"])


def _input_elements(shapes: Shapes) -> Array:
    return np.asarray(shapes["images"] * shapes["channels"] * shapes["rows"] * shapes["columns"])


def _operations(shapes: Shapes) -> Array:
    """Return the operations of the definition, multiply and add [rows]."""
    per_result = shapes["channels"] / shapes["groups"] * shapes["filter_rows"] * shapes["filter_columns"]
    return np.asarray(2.0 * _pixels(shapes) * shapes["filters"] * per_result)


def _bytes_once(shapes: Shapes, arithmetic: Arithmetic) -> Array:
    """Return pixels, filters and results, each once [rows]."""
    weights = shapes["filters"] * shapes["channels"] / shapes["groups"] * shapes["filter_rows"] * shapes["filter_columns"]
    results = _pixels(shapes) * shapes["filters"] * arithmetic.output_bytes
    touched = _input_elements(shapes) * np.minimum(1.0, shapes["filter_rows"] / shapes["row_stride"])
    return np.asarray((touched + weights) * arithmetic.input_bytes + results)


def _padding_ratio(shapes: Shapes, arithmetic: Arithmetic) -> Array:
    """Return channels of a group after padding over those before [rows]."""
    channels = shapes["channels"] / shapes["groups"]
    return np.asarray(np.ceil(channels / arithmetic.aligned_elements) * arithmetic.aligned_elements / channels)


def _memory_rate(device: HardwareSpec, parameters: Parameters) -> float:
    return parameters["memory_efficiency_ratio"] * device.memory_bytes_per_s
