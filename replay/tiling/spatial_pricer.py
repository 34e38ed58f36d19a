"""Operators of a graph priced on a device with systolic arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from replay.lowering.op_graph import BatchedMatmulShape, ConvolutionShape, MatmulShape, Op, StreamShape, UnknownShape
from replay.specs.hardware import HardwareSpec
from replay.tiling.graph_costs import OpTerms
from replay.tiling.op_kernels import KernelKind, convolution_columns
from replay.tiling.spatial.choice import SpatialChoice, overlap_exponent
from replay.tiling.spatial.formats import cell_format
from replay.tiling.spatial.product import spatial_convolution, spatial_product
from replay.tiling.spatial.stream import spatial_stream_terms
from replay.tiling.terms import Array, Terms

CELL_BYTES = {"fp32": 2.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "uint8": 1.0}
"""Format of activations -> bytes of an element on the cells: 32-bit graphs are multiplied in bf16, as compilers for such devices do by
default (JAX documentation, "default matmul precision")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpatialPricer:
    """Prices operators on one device: products and convolutions on its arrays, the rest by its vector unit and memory."""

    device: HardwareSpec

    def terms(self, op: Op, rows: Array) -> OpTerms:
        """Return what one call of an operator costs for each number of rows [rows].

        Raises:
            SpecError: no tile of the operator fits the buffers.
        """
        assert op.traffic is not None
        shape, moved = op.shape, rows * (op.traffic.read_bytes + op.traffic.written_bytes) + op.traffic.shared_bytes
        width = CELL_BYTES.get(op.activations_format or "")
        if isinstance(shape, UnknownShape):
            return self._stream(moved, np.zeros(len(rows)), "none", shape.reason)
        if isinstance(shape, StreamShape):
            return self._stream(moved, rows * shape.columns, "stream", None)
        if width is None:
            return self._stream(
                moved, np.zeros(len(rows)), "none", f"{self.device.name} has no kernel for {op.activations_format} products"
            )
        if isinstance(shape, ConvolutionShape):
            found = spatial_convolution(self.device, convolution_columns(shape, rows), element_bytes=width)
            return self._product(op, rows, moved, found, "convolution", width)
        if isinstance(shape, BatchedMatmulShape):
            sizes = (np.array(float(size)) for size in (shape.rows, shape.columns, shape.depth))
            found = spatial_product(self.device, *sizes, element_bytes=width, repeats=rows * shape.count)
            return self._product(op, rows, moved, found, "batched gemm", width)
        assert isinstance(shape, MatmulShape), "decoder graphs have kernels of their own"
        found = spatial_product(self.device, rows, np.array(float(shape.columns)), np.array(float(shape.depth)), element_bytes=width)
        return self._product(op, rows, moved, found, "gemm", width)

    def _product(self, op: Op, rows: Array, moved: Array, found: SpatialChoice, kind: KernelKind, width: float) -> OpTerms:
        flops = np.array([replace(op, axis="batch", rows_count=1, calls_count=1).flops(int(count)) for count in rows])
        bound_s = flops / cell_format(self.device, width).flops_per_s
        return self._priced(replace(found.terms, bytes=moved), kind, bound_s, None)

    def _stream(self, moved: Array, operations: Array, kind: KernelKind, missing: str | None) -> OpTerms:
        found = spatial_stream_terms(self.device, moved, operations)
        return self._priced(found, kind, moved / self.device.memory_bytes_per_s, missing)

    def _priced(self, terms: Terms, kind: KernelKind, bound_s: Array, missing: str | None) -> OpTerms:
        time_s = np.maximum(terms.time_s(overlap_exponent(self.device)), bound_s)
        return OpTerms(kernel=kind, terms=terms, time_s=time_s, bound_s=bound_s, source="datasheet", missing_kernel=missing)
