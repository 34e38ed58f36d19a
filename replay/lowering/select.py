"""Kernel selection: formats, units, layout transforms - the requested mapping against the effective one."""

from __future__ import annotations

from dataclasses import dataclass

from replay.lowering.expert_ranks import rank_loads
from replay.lowering.fuse import Group, fuse
from replay.lowering.kernel_plan import FORMAT_BYTES, MATRIX_RATES, Backend, BackendBin, Decision, Kernel, KernelPlan
from replay.lowering.lower import lower
from replay.lowering.op_graph import ATTENTION_PHASES, ElementwiseShape, ExpertsShape, MatmulShape, Op
from replay.lowering.parallel_decisions import parallel_decisions
from replay.lowering.stages import split_layers
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec
from replay.specs.routing import ExpertLoad
from replay.specs.scopes import PHASES

MATRIX_ALIGNMENT_BYTES = 16
"""Operand rows must start on this boundary for matrix units to load them (CUTLASS documentation, "alignment" of operands)."""


def plan_kernels(model: ModelSpec, hardware: HardwareSpec, mapping: MappingSpec, routing: ExpertLoad | None = None) -> KernelPlan:
    """Return the kernels of one step of `model` on `hardware` under `mapping`, with every decision.

    `routing` is how often the experts are chosen; None where that is not known, and one group of ranks is taken to see it evenly.

    Raises:
        SpecError: tensor-parallel ranks, stages or expert-parallel ranks do not divide the model, or routing is needed.
    """
    loads = rank_loads(model, mapping, routing)
    stages = mapping.count("parallelism.pipeline")
    stage_layers = split_layers(model, stages) if stages > 1 else ()
    graph = lower(model, ranks=mapping.count("parallelism.tensor"), loads=loads, stage_layers=stage_layers)
    selector = _Selector(model=model, hardware=hardware, mapping=mapping, decisions={})
    kernels: list[Kernel] = []
    for group in fuse(graph, mapping):
        kernels.extend(selector.select(group))
    spread = parallel_decisions(model, mapping, graph, loads)
    return KernelPlan(graph=graph, kernels=tuple(kernels), decisions=(*selector.decisions.values(), *spread))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formats:
    weights: str
    activations: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selector:
    model: ModelSpec
    hardware: HardwareSpec
    mapping: MappingSpec
    decisions: dict[tuple[str, str], Decision]

    def select(self, group: Group) -> list[Kernel]:
        """Return the kernels of a fusion group: transforms it needs first, then the kernel itself."""
        op, _ = group
        if isinstance(op.shape, MatmulShape | ExpertsShape):
            return self._product(group, op.shape)
        kv_format = self._kv_format()
        if op.axis in ATTENTION_PHASES:
            phase = ATTENTION_PHASES[op.axis]
            backend = str(self.mapping.value("attention.backend", layer="attention", phase=phase))
            self._decide("attention.backend", f"@{phase}", backend, backend, None)
            return [self._kernel(group, kv_format=kv_format, attention_backend=backend)]
        return [self._kernel(group, kv_format=kv_format)]

    def _product(self, group: Group, shape: MatmulShape | ExpertsShape) -> list[Kernel]:
        """Return a product; narrowing its activations is part of it, for that is how such kernels are timed and priced."""
        op, _ = group
        in_groups = isinstance(shape, MatmulShape) and shape.groups_count > 1
        formats = self._base_formats() if in_groups else self._formats(op)
        transforms = []
        if self.mapping.value("layout.activations", layer=op.layer_type) == "column_major":
            reason = "kernels read row-major activations: a transposing kernel runs before each product"
            self._decide("layout.activations", f"@{op.layer_type}", "column_major", "row_major after a transform", reason)
            transforms.append(self._transpose(op, shape.depth if isinstance(shape, MatmulShape) else shape.hidden))
        kernel = self._kernel(
            group,
            weights_format=formats.weights,
            activations_format=formats.activations,
            sparse=self._sparse(op.layer_type, shape),
            backends=self._backends(op.layer_type, shape, formats),
        )
        return [*transforms, kernel]

    def _formats(self, op: Op) -> _Formats:
        """Return the effective formats of a product.

        A low-precision product needs both operands in one such format and a matrix rate for it; otherwise weights are widened
        to 16 bit while they are loaded (weight-only quantisation) and the product runs at the 16-bit rate. A 32-bit checkpoint
        is loaded in 16 bit, as servers do; activations follow a low-precision checkpoint where the device can. Quantised checkpoints
        leave LM head and router in 16 bit.
        """
        base, layer = self._base_format, op.layer_type
        kept = op.name in ("lm_head", "router") or self.model.weights_format == "fp32"
        checkpoint = base if kept else self.model.weights_format
        asked_weights = str(self.mapping.value("formats.weights", layer=layer))
        asked = str(self.mapping.value("formats.activations", layer=layer))
        weights = checkpoint if asked_weights == "model" else asked_weights
        follows = asked == "model" and weights == checkpoint and MATRIX_RATES.get(weights) in self.hardware.matrix_flops_per_s
        activations = (weights if follows else base) if asked == "model" else asked
        reason = None
        if activations in MATRIX_RATES:
            if MATRIX_RATES[activations] not in self.hardware.matrix_flops_per_s:
                reason = f"{self.hardware.name} has no {MATRIX_RATES[activations]} matrix rate"
            elif weights != activations:
                reason = f"the weights are {weights}, and a product needs both operands in one format"
        effective = base if reason else activations
        self._decide("formats.weights", f"@{layer}", weights, weights, None)
        self._decide("formats.activations", f"@{layer}", activations, effective, reason)
        return _Formats(weights=weights, activations=effective)

    def _sparse(self, layer: str, shape: MatmulShape | ExpertsShape) -> bool:
        """Return whether a layer type's weights are sparse; grouped products and devices without sparse units keep them dense."""
        asked = str(self.mapping.value("formats.sparsity", layer=layer))
        reason = None
        if asked != "none" and isinstance(shape, ExpertsShape):
            reason = "grouped products have no sparse kernels"
        elif asked != "none" and self.hardware.sparse_speedup_ratio is None:
            reason = f"{self.hardware.name} has no sparse matrix units"
        self._decide("formats.sparsity", f"@{layer}", asked, "none" if reason else asked, reason)
        return asked != "none" and reason is None

    def _base_formats(self) -> _Formats:
        """Return the 16-bit formats of products by heads, whatever is asked: servers widen those weights once, when they load them."""
        return _Formats(weights=self._base_format, activations=self._base_format)

    @property
    def _base_format(self) -> str:
        return self.model.weights_format if self.model.weights_format in ("bf16", "fp16") else "bf16"

    def _backends(self, layer: str, shape: MatmulShape | ExpertsShape, formats: _Formats) -> tuple[BackendBin, ...]:
        rows_to = max(self.mapping.count("batching.max_batched_tokens"), self.mapping.count("batching.max_running"))
        grouped = isinstance(shape, ExpertsShape)
        problem = _misalignment(shape, formats) if isinstance(shape, MatmulShape) else "grouped products run on matrix units only"
        bins = []
        for index, phase in ((0, PHASES[1]), (1, PHASES[0])):
            spans = self.mapping.row_bins("gemm.backend", layer=layer, phase=phase, rows_to=rows_to)
            for first, last, asked in spans:
                effective: Backend = "vector" if not grouped and (asked == "vector" or problem) else "matrix"
                where = f"@{layer}.{phase}" + ("" if (first, last) == (1, rows_to) else f"[rows {first}-{last}]")
                self._decide("gemm.backend", where, str(asked), effective, problem if effective != asked else None)
                bins.append(BackendBin(phase=index, first_row=first, last_row=last, backend=effective))
        return tuple(bins)

    def _kv_format(self) -> str:
        asked = str(self.mapping.value("formats.kv"))
        effective = self._base_format if asked == "model" else asked
        self._decide("formats.kv", "", effective, effective, None)
        return effective

    def _transpose(self, op: Op, elements: int) -> Kernel:
        return Kernel(
            id=f"transpose_{op.name}",
            layer_type="transform",
            ops=(f"transpose:{op.name}",),
            shape=ElementwiseShape(read_elements=elements, written_elements=elements),
            axis=op.axis,
            calls_count=op.calls_count,
            stage_calls=op.stage_calls,
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
            stage_calls=op.stage_calls,
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
