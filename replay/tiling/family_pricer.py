"""Operators of a graph priced by kernel families: with a device's calibrations where there are some, else with start values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from replay.lowering.op_graph import Op
from replay.tiling.families.gemm import GemmFamily, gemm_family
from replay.tiling.families.streams import ELEMENTWISE
from replay.tiling.graph_costs import OpTerms
from replay.tiling.library import Cost, KernelLibrary
from replay.tiling.op_kernels import KernelKind, OpKernel, op_kernel
from replay.tiling.terms import Array

INFERENCE_STACK = "deepbench_infer"
"""Convolutions and multiplies timed for inference come before those timed for training."""
PLAIN_STREAM = ("fp32-relu", "fp16-gelu")
"""Calibrations of a kernel that reads and writes each element once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPricer:
    """Prices operators on a device with kernels of the usual libraries."""

    library: KernelLibrary

    def terms(self, op: Op, rows: Array) -> OpTerms:
        """Return what one call of an operator costs for each number of rows [rows]."""
        assert op.traffic is not None
        moved = rows * (op.traffic.read_bytes + op.traffic.written_bytes) + op.traffic.shared_bytes
        kernel = op_kernel(op, rows, self.library.device)
        return self._by_bytes(moved, kernel) if isinstance(kernel, str) else self._by_family(kernel, moved)

    def _by_family(self, kernel: OpKernel, moved: Array) -> OpTerms:
        found, family = self.library.find(kernel.family.name, kernel.variants, INFERENCE_STACK), kernel.family
        if found is not None and isinstance(family, GemmFamily):
            family = gemm_family(family.format.name, found.fit.stack, self.library.device, cold=True)
            family = replace(family, units_count=self.library.units_count(found))
        cost = self.library.model(family, found).cost(kernel.shapes, self.library.device)
        return _op_terms(cost, kernel.kind, moved, family.bound_s(kernel.shapes, self.library.device))

    def _by_bytes(self, moved: Array, reason: str) -> OpTerms:
        """Return the costs of an operator without a kernel: those of a stream that moves its bytes."""
        shapes = {"rows": np.ones(len(moved)), "columns": moved / 4.0, "read_bytes": np.full(len(moved), 2.0)}
        shapes["written_bytes"] = shapes["read_bytes"]
        model = self.library.model(ELEMENTWISE, self.library.find(ELEMENTWISE.name, PLAIN_STREAM, ""), exact=False)
        found = _op_terms(model.cost(shapes, self.library.device), "none", moved, ELEMENTWISE.bound_s(shapes, self.library.device))
        return replace(found, missing_kernel=reason)


def _op_terms(cost: Cost, kind: KernelKind, moved: Array, bound_s: Array) -> OpTerms:
    terms = replace(cost.terms, bytes=moved)
    return OpTerms(kernel=kind, terms=terms, time_s=cost.time_s, bound_s=bound_s, source=cost.source)
