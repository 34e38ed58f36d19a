"""Operators of a graph priced by kernel families: with a device's calibration where there is one, else with start values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from replay.lowering.op_graph import Op
from replay.specs.calibration import CalibrationDocument, FamilyCalibration
from replay.specs.hardware import HardwareSpec
from replay.tiling.families.family import KernelFamily, Shapes
from replay.tiling.families.gemm import GemmFamily, gemm_family
from replay.tiling.families.streams import bytes_bound_s
from replay.tiling.graph_costs import OpTerms
from replay.tiling.op_kernels import OpKernel, op_kernel
from replay.tiling.residual import residual_factor
from replay.tiling.terms import Array, Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPricer:
    """Prices operators on a device with kernels of the usual libraries."""

    device: HardwareSpec
    calibration: CalibrationDocument | None

    def terms(self, op: Op, rows: Array) -> OpTerms:
        """Return what one call of an operator costs for each number of rows [rows]."""
        assert op.traffic is not None
        moved = rows * (op.traffic.read_bytes + op.traffic.written_bytes) + op.traffic.shared_bytes
        kernel = op_kernel(op, rows, self.device)
        return self._by_bytes(moved, kernel) if isinstance(kernel, str) else self._by_family(kernel, moved)

    def _by_family(self, kernel: OpKernel, moved: Array) -> OpTerms:
        """Return the costs by a family: physics times residual, never below the bound (as `replay.calibration.fit.predict`)."""
        entry = self._entry(kernel)
        family, shapes = kernel.family, kernel.shapes
        if entry is not None and isinstance(family, GemmFamily):
            family = gemm_family(entry.variant, entry.stack, self.device, cold=True)
        parameters = entry.parameters if entry else {definition.name: definition.start for definition in family.parameters}
        if isinstance(family, GemmFamily):
            choice = family.choices(shapes, self.device, parameters)
            terms, physical = choice.terms, choice.seconds
        else:
            terms, physical = _limits(family, shapes, self.device, parameters), family.seconds(shapes, self.device, parameters)
        bound = family.bound_s(shapes, self.device)
        factor = residual_factor(entry.residual, family.features(shapes)) if entry else 1.0
        return OpTerms(
            kernel=kernel.kind,
            terms=replace(terms, bytes=moved),
            time_s=np.maximum(physical * factor, bound),
            bound_s=bound,
            source="datasheet" if entry is None else "calibrated",
        )

    def _by_bytes(self, moved: Array, reason: str) -> OpTerms:
        """Return the costs of an operator without a kernel: a launch, and its bytes at the rate of plain streams."""
        device = self.device
        memory_s = moved / (device.elementwise_memory_efficiency_ratio * device.memory_bytes_per_s)
        nothing, floor = np.zeros(len(moved)), np.full(len(moved), device.elementwise_floor_s)
        return OpTerms(
            kernel="none",
            terms=Terms(compute_s=nothing, memory_s=memory_s, launch_s=floor, sync_s=nothing, bytes=moved),
            time_s=floor + memory_s,
            bound_s=bytes_bound_s(moved, device),
            source="datasheet",
            missing_kernel=reason,
        )

    def _entry(self, kernel: OpKernel) -> FamilyCalibration | None:
        if self.calibration is None:
            return None
        entries = (self.calibration.find(kernel.family.name, variant, None) for variant in kernel.variants)
        return next((entry for entry in entries if entry is not None), None)


def _limits(family: KernelFamily, shapes: Shapes, device: HardwareSpec, parameters: dict[str, float]) -> Terms:
    """Return what a family's time is made of, by its limits: on a device with endless memory rate, and one that only moves."""
    floor_s = parameters["floor_s"]
    computing = replace(device, memory_bytes_per_s=inf)
    endless = dict.fromkeys(device.matrix_flops_per_s, inf)
    moving = replace(device, vector_flops_per_s=inf, matrix_flops_per_s=endless, clock_hz=inf, unit_cache_bytes_per_s=inf)
    without_waits = {name: 0.0 if name.endswith("_s") else value for name, value in parameters.items()}
    memory_s = family.seconds(shapes, moving, without_waits)
    return Terms(
        compute_s=np.maximum(family.seconds(shapes, computing, parameters) - floor_s, 0.0),
        memory_s=memory_s,
        launch_s=np.full(len(memory_s), floor_s),
        sync_s=np.zeros(len(memory_s)),
        bytes=np.zeros(len(memory_s)),
    )
