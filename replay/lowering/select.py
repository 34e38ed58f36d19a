"""Kernel selection: formats, units, layout transforms - the requested mapping against the effective one."""

from __future__ import annotations

from dataclasses import dataclass

from replay.lowering.fuse import Group, fuse
from replay.lowering.kernel_plan import FORMAT_BYTES, Backend, BackendBin, Decision, Kernel, KernelPlan
from replay.lowering.lower import lower
from replay.lowering.op_graph import AttentionShape, ElementwiseShape, MatmulShape
from replay.specs.hardware import HardwareSpec
from replay.specs.knobs import PHASES
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec

MATRIX_ALIGNMENT_BYTES = 16
"""Operand rows must start on this boundary for matrix units to load them (CUTLASS documentation, "alignment" of operands)."""


def plan_kernels(model: ModelSpec, hardware: HardwareSpec, mapping: MappingSpec) -> KernelPlan:
    """Return the kernels of one step of `model` on `hardware` under `mapping`, with every decision.

    Raises:
        SpecError: the tensor-parallel ranks do not divide the model.
    """
    ranks = mapping.count("parallelism.tensor")
    graph = lower(model, ranks=ranks)
    selector = _Selector(model=model, hardware=hardware, mapping=mapping, decisions={})
    kernels: list[Kernel] = []
    for group in fuse(graph, mapping):
        kernels.extend(selector.select(group))
    return KernelPlan(graph=graph, kernels=tuple(kernels), decisions=tuple(selector.decisions.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formats:
    weights: str
    activations: str
    compute: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selector:
    model: ModelSpec
    hardware: HardwareSpec
    mapping: MappingSpec
    decisions: dict[tuple[str, str], Decision]

    def select(self, group: Group) -> list[Kernel]:
        """Return the kernels of a fusion group: transforms it needs first, then the kernel itself."""
        op, members = group
        if isinstance(op.shape, MatmulShape):
            return self._matmul(group)
        kv_format = self._kv_format()
        if isinstance(op.shape, AttentionShape):
            phase = op.name.removeprefix("attention_")
            backend = str(self.mapping.value("attention.backend", layer="attention", phase=phase))
            self._decide("attention.backend", f"@{phase}", backend, backend, None)
            kernel = self._kernel(group, kv_format=kv_format, attention_backend=backend)
            return [kernel]
        return [self._kernel((op, members), kv_format=kv_format)]

    def _matmul(self, group: Group) -> list[Kernel]:
        op, _ = group
        shape = op.shape
        assert isinstance(shape, MatmulShape)
        formats = self._formats(op.layer_type)
        transforms = []
        if self.mapping.value("layout.activations", layer=op.layer_type) == "column_major":
            reason = "kernels read row-major activations: a transposing kernel runs before each product"
            self._decide("layout.activations", f"@{op.layer_type}", "column_major", "row_major after a transform", reason)
            transforms.append(self._transform(group, "transpose", 2.0, 2.0))
        if FORMAT_BYTES[formats.activations] < FORMAT_BYTES["bf16"]:
            transforms.append(self._transform(group, "quantise", 2.0, FORMAT_BYTES[formats.activations]))
        kernel = self._kernel(
            group,
            weights_format=formats.weights,
            activations_format=formats.activations,
            compute_format=formats.compute,
            backends=self._backends(op.layer_type, shape, formats),
        )
        return [*transforms, kernel]

    def _formats(self, layer: str) -> _Formats:
        """Return the effective formats of a layer type's matrix multiplies.

        A low-precision product needs both operands in that format and a native rate; otherwise weights are widened to 16 bit
        while they are loaded (weight-only quantisation) and the product runs at the 16-bit rate.
        """
        base = "bf16" if self.model.weights_format in ("fp32", "fp8") else self.model.weights_format
        asked_weights = str(self.mapping.value("formats.weights", layer=layer))
        asked = str(self.mapping.value("formats.activations", layer=layer))
        weights = self.model.weights_format if asked_weights == "model" else asked_weights
        activations = base if asked == "model" else asked
        reason = None
        if FORMAT_BYTES[activations] < FORMAT_BYTES["bf16"]:
            if activations not in self.hardware.matrix_flops_per_s:
                reason = f"{self.hardware.name} has no {activations} matrix rate"
            elif weights != activations:
                reason = f"the weights are {weights}, and a product needs both operands in one format"
        effective = base if reason else activations
        self._decide("formats.weights", f"@{layer}", weights, weights, None)
        self._decide("formats.activations", f"@{layer}", activations, effective, reason)
        compute = effective if effective in self.hardware.matrix_flops_per_s else "bf16"
        return _Formats(weights=weights, activations=effective, compute=compute)

    def _backends(self, layer: str, shape: MatmulShape, formats: _Formats) -> tuple[BackendBin, ...]:
        rows_to = max(self.mapping.count("batching.max_batched_tokens"), self.mapping.count("batching.max_running"))
        problem = _misalignment(shape, formats)
        bins = []
        for index, phase in ((0, PHASES[1]), (1, PHASES[0])):
            spans = self.mapping.row_bins("gemm.backend", layer=layer, phase=phase, rows_to=rows_to)
            for first, last, asked in spans:
                effective: Backend = "vector" if asked == "vector" or problem else "matrix"
                where = f"@{layer}.{phase}" + ("" if (first, last) == (1, rows_to) else f"[rows {first}-{last}]")
                self._decide("gemm.backend", where, str(asked), effective, problem if effective != asked else None)
                bins.append(BackendBin(phase=index, first_row=first, last_row=last, backend=effective))
        return tuple(bins)

    def _kv_format(self) -> str:
        asked = str(self.mapping.value("formats.kv"))
        fallback = "bf16" if self.model.weights_format in ("fp32", "fp8") else self.model.weights_format
        effective = fallback if asked == "model" else asked
        self._decide("formats.kv", "", effective, effective, None)
        return effective

    def _transform(self, group: Group, what: str, read_bytes: float, written_bytes: float) -> Kernel:
        op, _ = group
        assert isinstance(op.shape, MatmulShape)
        elements = op.shape.depth * op.shape.experts_per_row
        shape = ElementwiseShape(read_elements=elements, written_elements=elements, element_bytes=(read_bytes + written_bytes) / 2)
        return Kernel(
            id=f"{what}_{op.name}",
            layer_type="transform",
            ops=(f"{what}:{op.name}",),
            shape=shape,
            axis=op.axis,
            calls_count=op.calls_count,
        )

    def _kernel(self, group: Group, **choices: object) -> Kernel:
        op, members = group
        return Kernel(
            id=op.name,
            layer_type=op.layer_type,
            ops=members,
            shape=op.shape,
            axis=op.axis,
            calls_count=op.calls_count,
            **choices,  # type: ignore[arg-type]
        )

    def _decide(self, knob: str, where: str, requested: str, effective: str, reason: str | None) -> None:
        """Record a decision; of several kernels at one place the first that does not get what is asked for stands."""
        before = self.decisions.get((knob, where))
        if before is None or before.reason is None:
            decision = Decision(knob=knob + where, requested=requested, effective=effective, reason=reason, stage="lowering")
            self.decisions[(knob, where)] = decision


def _misalignment(shape: MatmulShape, formats: _Formats) -> str | None:
    """Return why matrix units cannot load the operands, or None."""
    for name, size, element in (("depth", shape.depth, formats.activations), ("columns", shape.columns, "bf16")):
        width = size * FORMAT_BYTES[element]
        if width % MATRIX_ALIGNMENT_BYTES:
            return f"{size} {name} in {element} are {width:.0f} bytes, not a multiple of {MATRIX_ALIGNMENT_BYTES}"
    return None
