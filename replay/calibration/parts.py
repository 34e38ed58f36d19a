"""Parts: single kernels priced by a device's calibrations, and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from replay.calibration.whole import Prediction
from replay.lowering.kernel_plan import Kernel
from replay.lowering.op_graph import CollectiveShape
from replay.tiling.families import vector_gemm
from replay.tiling.families.arithmetic import FP16_MATRIX, FP32, Arithmetic
from replay.tiling.families.family import KernelFamily, Shapes
from replay.tiling.families.gemm import gemm_family, gemm_shapes
from replay.tiling.families.vector_gemm import VectorGemmFamily
from replay.tiling.library import SOURCES, Cost, KernelLibrary, weakest_needed
from replay.tiling.movement import price_collective
from replay.tiling.products import GEMM
from replay.tiling.terms import Array

BATCHED_VARIANTS = {FP32.name: ("fp32-batched", "fp32-linear"), FP16_MATRIX.name: (FP16_MATRIX.name,)}
"""Arithmetic of batched products -> calibrations that stand for them, in order of preference."""

Calls = tuple[Array | float, Cost]
"""How often kernels run [kernels], and what one call of each costs [kernels]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPricer:
    """Prices single kernels of one device under one software stack."""

    library: KernelLibrary
    stack: str

    def linear(self, rows: Array, *, columns: Array, depth: Array) -> Cost:
        """Return the cost of 16-bit products with weights on the matrix units [rows]."""
        found = self.library.find(GEMM, ("bf16",), self.stack)
        family = gemm_family("bf16", found.fit.stack if found else self.stack, self.library.device, cold=True)
        family = replace(family, units_count=self.library.units_count(found))
        return self.library.model(family, found).cost(gemm_shapes(rows, columns, depth), self.library.device)

    def linear_fp32(self, rows: Array, *, columns: Array, depth: Array) -> Cost:
        """Return the cost of fp32 products with weights on the vector units [rows]."""
        shapes = vector_gemm.gemm_shapes(rows, columns, depth)
        return self.kernel(VectorGemmFamily(arithmetic=FP32), ("fp32-linear",), shapes)

    def batched(self, arithmetic: Arithmetic, rows: Array, *, columns: Array, depth: Array, count: Array) -> Cost:
        """Return the cost of `count` independent products a call [rows]."""
        shapes = vector_gemm.gemm_shapes(rows, columns, depth, count=count)
        return self.kernel(VectorGemmFamily(arithmetic=arithmetic), BATCHED_VARIANTS[arithmetic.name], shapes)

    def all_reduce(self, rows: Array, *, elements: int, ranks: int) -> Cost:
        """Return the cost of the library's all-reduce of rows of 16-bit `elements` [rows]."""
        shape = CollectiveShape(elements=elements, ranks=ranks, kind="all_reduce")
        kernel = Kernel(id=shape.kind, layer_type="all_reduce", ops=(shape.kind,), shape=shape, axis="tokens", calls_count=1)
        return price_collective(kernel, rows, 0, self.library, self.stack)

    def kernel(self, family: KernelFamily, variants: tuple[str, ...], shapes: Shapes) -> Cost:
        """Return the cost of a family's kernels [rows] by the first of `variants` that is calibrated."""
        found = self.library.find(family.name, variants, self.stack)
        return self.library.model(family, found, wanted=variants[0]).cost(shapes, self.library.device)


def added(parts: Sequence[Calls]) -> Prediction:
    """Return the sum [1] of all calls of kernels that run one after another."""
    by_source = dict.fromkeys(SOURCES, 0.0)
    for calls, cost in parts:
        by_source[cost.source] += float((calls * cost.time_s).sum())
    return Prediction(seconds=np.array([sum(by_source.values())]), source=weakest_needed(by_source))
