"""Costs of a kernel plan on a device with systolic arrays: products by the mapper, attention by folds, the rest by the vector unit.

Attention keeps keys (then values) in the arrays and streams queries (then probabilities) past them, head by head::

    folds  = ceil(depth / array rows) ceil(columns / array columns)         of keys x head size, then of values
    cycles = heads x folds x max(rows, array rows)                           a fold loads while another one streams, if cells can
             heads x folds x (rows + array rows + array columns)             else: load, stream and drain (Samajdar et al. 2020)

Scores stay on the chip; softmax takes the vector unit, after the products. No kernel of such a device is calibrated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from replay.lowering.kernel_plan import FORMAT_BYTES, Kernel
from replay.specs.hardware import HardwareSpec
from replay.tiling.attention import equal_prompts
from replay.tiling.expert_rows import rank_rows
from replay.tiling.library import UNCALIBRATED_ERROR_RATIO, Cost
from replay.tiling.products import ProductChoice
from replay.tiling.spatial.choice import SpatialChoice, overlap_exponent
from replay.tiling.spatial.formats import cell_format, spatial_of
from replay.tiling.spatial.product import spatial_product
from replay.tiling.spatial.stream import spatial_stream_terms
from replay.tiling.terms import Array, Terms, in_sequence

SOFTMAX_OPERATIONS = 5.0
"""Vector operations per score: running maximum, difference, exponential, sum and scale (FlashAttention-2, Dao 2023, algorithm 1)."""
IO_BYTES = FORMAT_BYTES["bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpatialKernels:
    """Prices products and streams on one device."""

    device: HardwareSpec

    def product(self, kernel: Kernel, rows: Array) -> ProductChoice:
        """Return the fastest mapping of a matrix multiply for each row count [rows], at least 1."""
        shape = kernel.matmul
        found = self._mapped(kernel, rows, shape.columns, shape.depth, repeats=1.0)
        return _choice(found, self._cost(found.terms))

    def experts(self, kernel: Kernel, rows: Array) -> ProductChoice:
        """Return a mixture of experts on one average rank for each number of tokens [rows], at least 1, routed by load: up, then down."""
        shape = kernel.experts
        load = rank_rows(shape, rows, np.full(len(rows), np.inf))  # no tile is ever full: row tiles do not count here
        active = np.maximum(load.active_experts, 1.0)
        each = np.maximum(load.rows / active, 1.0)
        up = self._mapped(kernel, each, 2 * shape.width, shape.hidden, repeats=active)
        down = self._mapped(kernel, each, shape.hidden, shape.width, repeats=active)
        return _choice(up, self._cost(in_sequence([up.terms, down.terms], self._exponent)))

    def stream(self, kernel: Kernel, rows: Array) -> Cost:
        """Return the cost of an element-wise or row-wise kernel for each row count [rows]."""
        shape = kernel.elementwise
        moved = rows * (shape.read_elements + shape.written_elements) * shape.element_bytes
        return self._cost(spatial_stream_terms(self.device, moved, rows * shape.read_elements))

    def _mapped(self, kernel: Kernel, rows: Array, columns: int, depth: int, *, repeats: float | Array) -> SpatialChoice:
        """Return the mapping of a product; weights narrower than activations are widened on their way in, and cross memory as they are."""
        width = FORMAT_BYTES[kernel.activations_format]
        sizes = rows, np.array(float(columns)), np.array(float(depth))
        found = spatial_product(self.device, *sizes, element_bytes=width, repeats=repeats)
        saved = np.broadcast_to(np.asarray(repeats * float(columns) * depth) * (width - kernel.weight_bytes), found.dram_bytes.shape)
        spared_s = np.minimum(
            saved / (spatial_of(self.device).memory_efficiency_ratio * self.device.memory_bytes_per_s), found.terms.memory_s
        )
        terms = replace(
            found.terms, memory_s=found.terms.memory_s - np.maximum(spared_s, 0.0), bytes=found.terms.bytes - np.maximum(saved, 0.0)
        )
        return replace(found, terms=terms)

    def _cost(self, terms: Terms) -> Cost:
        return _datasheet(terms, self.device)

    @property
    def _exponent(self) -> float:
        return overlap_exponent(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpatialAttention:
    """Prices one attention kernel on one device."""

    kernel: Kernel
    device: HardwareSpec
    window: float
    """Keys a query sees at most; infinite for full attention."""

    def prefill(self, tokens: Array, keys: Array) -> Cost:
        """Return the cost of one call for steps with `tokens` >= 1 prompt tokens that see `keys` keys on average [points]."""
        sequences, prompt, prefix = equal_prompts(tokens, keys, self.window)
        read = sequences * np.minimum(prefix + prompt, prompt + self.window)
        return self._cost(sequences * self.kernel.attention.query_heads, prompt, keys, read + tokens, tokens)

    def decode(self, sequences: Array, context: Array) -> Cost:
        """Return the cost of one call for `sequences` >= 1 sequences of the mean context `context` [points]."""
        shape, keys = self.kernel.attention, np.clip(context, 1.0, self.window)
        group = np.full(len(keys), shape.query_heads / shape.kv_heads)
        return self._cost(sequences * shape.kv_heads, group, keys, sequences * keys, sequences)

    def tile(self, rows: int, context: int) -> tuple[tuple[int, int], int]:
        """Return what the arrays hold at once: (head size, keys), and that keys are not split."""
        spatial = spatial_of(self.device)
        return (spatial.array_rows_count, spatial.array_columns_count), 1

    def _cost(self, heads: Array, rows: Array, keys: Array, moved_keys: Array, queries: Array) -> Cost:
        """Return the cost of `heads` pairs of products of `rows` queries with `keys` keys each [points].

        `moved_keys` keys of each key-value head are read or written, and `queries` of each query head.
        """
        shape, spatial = self.kernel.attention, spatial_of(self.device)
        head, value = (np.full(len(keys), float(size)) for size in (shape.head_size, shape.value_size))
        cycles = heads * (self._fold_cycles(rows, keys, head) + self._fold_cycles(rows, value, keys))
        products_s = cycles / (spatial.arrays_count * cell_format(self.device, IO_BYTES).lanes * self.device.clock_hz)
        softmax_s = heads * rows * keys * SOFTMAX_OPERATIONS / self.device.vector_flops_per_s
        stored = shape.kv_heads * shape.stored_size * FORMAT_BYTES[self.kernel.kv_format]
        moved = moved_keys * stored + queries * shape.query_heads * (head + value) * IO_BYTES
        streamed = spatial_stream_terms(self.device, moved, np.zeros(len(keys)))
        return _datasheet(replace(streamed, compute_s=products_s + softmax_s), self.device)

    def _fold_cycles(self, rows: Array, columns: Array, depth: Array) -> Array:
        spatial = spatial_of(self.device)
        folds = np.ceil(depth / spatial.array_rows_count) * np.ceil(columns / spatial.array_columns_count)
        alone = rows + spatial.array_rows_count + spatial.array_columns_count
        return np.asarray(folds * (np.maximum(rows, spatial.array_rows_count) if spatial.folds_overlap else alone))


def _datasheet(terms: Terms, device: HardwareSpec) -> Cost:
    return Cost(
        terms=terms,
        overlap_exponent=overlap_exponent(device),
        source="datasheet",
        error_ratio=UNCALIBRATED_ERROR_RATIO,
        stack="",
        measured=np.zeros(len(terms.compute_s), dtype=np.bool_),
    )


def _choice(found: SpatialChoice, cost: Cost) -> ProductChoice:
    count = len(found.cycles)
    return ProductChoice(
        cost=cost,
        tile=found.tile,
        split=np.ones(count, dtype=np.int64),
        waves=np.ones(count),
        padding_ratio=1.0 - found.utilisation_ratio,
    )
