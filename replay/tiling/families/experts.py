"""Grouped matrix multiplies of a mixture of experts on one rank: up (and gate), activation, down, weighted sum.

The routed rows of every expert are padded to whole row tiles; each of the two multiplies g (N columns, K deep) runs

::

    tiles   = row tiles x ceil(N / tile columns)             waves w = tiles / units, at least one, partly rounded up
    steps   = ceil(K / tile depth)
    step    = |w x compute, w x operand load, latency x max(1, w / 4)|_p
    execute = launch + steps x step                          x the unaligned ratio where K is not a multiple of 16 elements
    memory  = launch + (weights of active experts + weights read again + activations) / rates
    time_g  = |execute, memory|_p

and all bytes between the kernels (unsorted rows of **all** choices, kept here or not) are added at a rate of their own.

- compute: 2 x tile volume over the unit's matrix rate; load: (tile rows + tile columns) x depth bytes over the unit's cache
  port, slower by the gather ratio where the gathered rows no longer fit the cache (tile and step model: NVIDIA, "Matrix
  Multiplication Background User's Guide"; grouped tiles and their order: the fused MoE kernel of vLLM and SGLang);
- weights stay in the cache from call to call only while weights and activations fit it - a sharp step, as the kernel streams
  through them in order (a least-recently-used cache keeps nothing of a stream that is a little too long);
- weights are read again for every further group of row tiles of an expert (the tile order's group size), unless they fit;
- a tuned tile file (see `expert_tiles`) raises the compute share by a fixed ratio.

Which tiles a stack takes is a path rule in `replay.tiling.families.expert_tiles`; how many rows each expert gets comes from
recorded routing or from a law of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import ParameterDefinition, Parameters, Shapes, joined_s
from replay.tiling.families.streams import bytes_bound_s, p_norm
from replay.tiling.terms import Array, Terms, in_sequence, nothing

PORT_BYTES_PER_CLOCK = 64.0
"""Width that the operand load is stated against; the fitted ratio makes it the device's."""
ALIGNED_ELEMENTS = 16
LATENCY_WAVES = 4.0
"""Tiles of one unit that hide each other's step latency."""
WEIGHT_SHARPNESS = 16.0
SHARPNESS = 2.0
TUNED_RATIO = 1.3
"""Compute share with a tuned tile file over the default's: fitted once on A100 timings under SGLang 0.5.10, and held."""
HALF_BYTES = 2.0
"""Activations between the kernels are 16-bit whatever the weights are."""

_PARAMETERS = (
    ParameterDefinition(name="floor_s", meaning="sorting, launches and sum of one call", start=2e-5, lower=3e-6, upper=8e-5),
    ParameterDefinition(name="multiply_floor_s", meaning="launch and first tile of each multiply", start=2e-6, lower=1e-7, upper=3e-5),
    ParameterDefinition(name="compute_efficiency_ratio", meaning="matrix rate reached inside a tile", start=0.6, lower=0.1, upper=1.5),
    ParameterDefinition(name="memory_efficiency_ratio", meaning="DRAM rate of streamed weights", start=0.8, lower=0.3, upper=1.0),
    ParameterDefinition(name="step_latency_s", meaning="latency of 64 steps of depth", start=2e-7, lower=1e-8, upper=3e-6),
    ParameterDefinition(name="overlap_exponent", meaning="p of the p-norms", start=2.5, lower=1.0, upper=8.0, logarithmic=False),
    ParameterDefinition(
        name="wave_roundness_ratio", meaning="share of the waves that is rounded up", start=0.3, lower=0.0, upper=1.0, logarithmic=False
    ),
    ParameterDefinition(name="weight_cache_ratio", meaning="rate of cached weights over the DRAM rate", start=3.0, lower=1.0, upper=12.0),
    ParameterDefinition(name="weight_share_ratio", meaning="share of the cache that keeps weights", start=0.9, lower=0.5, upper=1.5),
    ParameterDefinition(name="between_efficiency_ratio", meaning="DRAM rate of bytes between the kernels", start=0.7, lower=0.1, upper=1.0),
    ParameterDefinition(
        name="between_cache_ratio", meaning="their rate from the cache over the DRAM rate", start=2.0, lower=1.0, upper=8.0
    ),
    ParameterDefinition(
        name="activation_share_ratio", meaning="share of the cache that keeps activations", start=0.6, lower=0.05, upper=3.0
    ),
    ParameterDefinition(name="port_ratio", meaning="operand load rate of a unit over 64 bytes a clock", start=1.5, lower=0.1, upper=20.0),
    ParameterDefinition(name="gather_ratio", meaning="extra load time of rows gathered from DRAM", start=0.3, lower=0.01, upper=4.0),
    ParameterDefinition(
        name="unaligned_ratio", meaning="time of a multiply of unaligned depth over an aligned one", start=1.5, lower=1.0, upper=10.0
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Multiply:
    """One grouped multiply [rows]: N columns, K deep, and the bytes of the tensor that its rows are gathered from."""

    columns: Array
    depth: Array
    source_bytes: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """Rates of weights and activations [rows], and the shares of them that stay cached from call to call."""

    streamed_rate: float
    weight_rate: Array
    weights_kept: Array
    rate: Array
    kept: Array

    def between(self, moved: Array) -> Terms:
        """Return the terms of moving `moved` bytes [rows] of activations."""
        return replace(nothing(len(moved)), memory_s=moved / self.rate, bytes=moved * (1.0 - self.kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsFamily:
    """One rank's experts for a batch of tokens.

    Shapes: tokens (of which some choice is computed here), choices per token, hidden, inter (the rank's share of an expert's
    width), matrices (3 with a gate, 2 without), rows (token-choice pairs multiplied here), active_experts, row_tiles, tile_rows,
    tile_columns, tile_depth, tile_group (row tiles that share one pass over the weights), tuned (0 or 1), weight_bytes and
    activation_bytes (per element; 1 means an 8-bit multiply where the device has one).
    """

    name: str = "experts"

    @property
    def parameters(self) -> tuple[ParameterDefinition, ...]:
        """Its calibrated parameters."""
        return _PARAMETERS

    @property
    def residual_features(self) -> tuple[str, ...]:
        """Names of the columns of `features`."""
        return ("log_rows", "log_active", "log_hidden", "log_inter", "log_tile_rows", "log_tiles_per_expert", "log_choices")

    def seconds(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Array:
        """Return the time of one call for each shape [rows]."""
        return joined_s(self, shapes, device, parameters)

    def terms(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> Terms:
        """Return the terms of one call [rows]: both multiplies and the bytes between them in sequence, and the floor.

        Compute, memory and launch of the three are summed and scaled by one factor; no tokens cost nothing.
        """
        hidden, up = shapes["hidden"], (shapes["matrices"] - 1.0) * shapes["inter"]
        pairs = shapes["tokens"] * shapes["choices"]
        traffic = self._traffic(shapes, device, parameters)
        first = _Multiply(columns=up, depth=hidden, source_bytes=shapes["tokens"] * hidden * HALF_BYTES)
        middle_bytes = pairs * shapes["inter"] * shapes["activation_bytes"]
        second = _Multiply(columns=hidden, depth=shapes["inter"], source_bytes=middle_bytes)
        parts = [self._multiply(shapes, device, parameters, multiply, traffic) for multiply in (first, second)]
        found = in_sequence([*parts, traffic.between(_between_bytes(shapes))], parameters["overlap_exponent"])
        return found.with_sync(parameters["floor_s"]).where(pairs > 0, nothing(len(pairs)))

    def overlap_exponent(self, parameters: Parameters) -> float:
        """Return the fitted p."""
        return parameters["overlap_exponent"]

    def _traffic(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters) -> _Traffic:
        """Return at which rates weights and activations move, by what stays cached of them."""
        hidden, up = shapes["hidden"], (shapes["matrices"] - 1.0) * shapes["inter"]
        pairs = shapes["tokens"] * shapes["choices"]
        buffers = HALF_BYTES * (shapes["tokens"] * hidden + pairs * (up + hidden))
        weights = shapes["active_experts"] * shapes["matrices"] * hidden * shapes["inter"] * shapes["weight_bytes"]
        dram, cache = device.memory_bytes_per_s, device.cache_bytes
        weights_kept = _kept((weights + np.minimum(buffers, cache)) / (parameters["weight_share_ratio"] * cache), WEIGHT_SHARPNESS)
        kept = _kept((buffers + np.minimum(weights, cache)) / (parameters["activation_share_ratio"] * cache), SHARPNESS)
        streamed_rate = parameters["memory_efficiency_ratio"] * dram
        return _Traffic(
            streamed_rate=streamed_rate,
            weight_rate=streamed_rate * (1.0 + (parameters["weight_cache_ratio"] - 1.0) * weights_kept),
            weights_kept=weights_kept,
            rate=parameters["between_efficiency_ratio"] * dram * (1.0 + (parameters["between_cache_ratio"] - 1.0) * kept),
            kept=kept,
        )

    def _multiply(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters, multiply: _Multiply, traffic: _Traffic) -> Terms:
        """Return the terms [rows] of one grouped multiply."""
        expert = multiply.columns * multiply.depth * shapes["weight_bytes"]
        again = np.maximum(shapes["row_tiles"] / shapes["tile_group"] - shapes["active_experts"], 0.0)
        again = again * (1.0 - _kept(expert / (parameters["weight_share_ratio"] * device.cache_bytes), SHARPNESS))
        once, activations = shapes["active_experts"] * expert, shapes["rows"] * multiply.depth * shapes["activation_bytes"]
        moved = traffic.between(activations)
        streamed_s = once / traffic.weight_rate + again * expert / traffic.streamed_rate
        return replace(
            moved,
            compute_s=self._execute_s(shapes, device, parameters, multiply),
            memory_s=moved.memory_s + streamed_s,
            launch_s=np.full(len(expert), parameters["multiply_floor_s"]),
            bytes=moved.bytes + once * (1.0 - traffic.weights_kept) + again * expert,
        )

    def _execute_s(self, shapes: Shapes, device: HardwareSpec, parameters: Parameters, multiply: _Multiply) -> Array:
        """Return the time [rows] of all steps of all tiles without waiting for weights."""
        columns, depth = multiply.columns, multiply.depth
        tile_rows, tile_columns, tile_depth = shapes["tile_rows"], shapes["tile_columns"], shapes["tile_depth"]
        load = shapes["row_tiles"] * np.ceil(columns / tile_columns) / device.units_count
        roundness = parameters["wave_roundness_ratio"]
        waves = np.where(load <= 1.0, 1.0, (1.0 - roundness) * load + roundness * np.ceil(load))
        efficiency = parameters["compute_efficiency_ratio"] * np.where(shapes["tuned"] > 0, TUNED_RATIO, 1.0)
        compute_s = 2.0 * tile_rows * tile_columns * tile_depth * device.units_count / (efficiency * _matrix_rate(shapes, device))
        cold = 1.0 - _kept(multiply.source_bytes / (parameters["activation_share_ratio"] * device.cache_bytes), SHARPNESS)
        operands = (tile_rows * shapes["activation_bytes"] + tile_columns * shapes["weight_bytes"]) * tile_depth
        port = parameters["port_ratio"] * PORT_BYTES_PER_CLOCK * device.clock_hz
        load_s = operands / port * (1.0 + parameters["gather_ratio"] * cold)
        latency_s = parameters["step_latency_s"] * tile_depth / 64.0 * np.maximum(1.0, load / LATENCY_WAVES)
        step_s = p_norm(parameters["overlap_exponent"], waves * compute_s, waves * load_s, latency_s)
        unaligned = np.where(np.mod(depth, ALIGNED_ELEMENTS) != 0, parameters["unaligned_ratio"], 1.0)
        return np.asarray(np.ceil(depth / tile_depth) * step_s * unaligned)

    def bound_s(self, shapes: Shapes, device: HardwareSpec) -> Array:
        """Return the least time: the rows' FLOPs over the peak, or active weights, inputs and results once over memory."""
        volume = shapes["matrices"] * shapes["hidden"] * shapes["inter"]
        flops_s = 2.0 * shapes["rows"] * volume / _matrix_rate(shapes, device)
        ends = 2.0 * HALF_BYTES * shapes["tokens"] * shapes["hidden"]
        return np.asarray(np.maximum(flops_s, bytes_bound_s(shapes["active_experts"] * volume * shapes["weight_bytes"] + ends, device)))

    def features(self, shapes: Shapes) -> Array:
        """Return logarithms of rows, active experts, widths, tile rows, tiles per expert and choices [rows, 7]."""
        parts = (
            shapes["rows"] + 1.0,
            shapes["active_experts"] + 0.01,
            shapes["hidden"],
            shapes["inter"],
            shapes["tile_rows"],
            (shapes["row_tiles"] + 0.01) / (shapes["active_experts"] + 0.01),
            np.maximum(shapes["tokens"] * shapes["choices"], 1.0),
        )
        return np.stack([np.log(part) for part in parts], axis=1)


def _between_bytes(shapes: Shapes) -> Array:
    """Return the bytes [rows] that kernels around and between the multiplies move, over all choices.

    Five passes over the width lie between the multiplies: the product is written (twice the width with a gate), the activation
    reads it and writes one width; without a gate the square is a second element-wise kernel, which comes to the same. The down
    product is written and read again by the weighted sum; tokens are read and written.
    """
    pairs = shapes["tokens"] * shapes["choices"]
    return np.asarray(HALF_BYTES * (pairs * (5.0 * shapes["inter"] + 2.0 * shapes["hidden"]) + 2.0 * shapes["tokens"] * shapes["hidden"]))


def _matrix_rate(shapes: Shapes, device: HardwareSpec) -> Array:
    """Return the peak [rows] of the format that is multiplied: 8-bit floats where both operands are and the device can."""
    rates = device.matrix_flops_per_s
    return np.where(shapes["activation_bytes"] < HALF_BYTES, rates.get("fp8", rates["bf16"]), rates["bf16"])


def _kept(filled_ratio: Array, sharpness: float) -> Array:
    """Return the share [rows] that stays in a cache that is `filled_ratio` full: a smooth step from 1 to 0 at 1."""
    return np.asarray(1.0 / (1.0 + np.minimum(filled_ratio, 1e6) ** sharpness))


EXPERTS = ExpertsFamily()
