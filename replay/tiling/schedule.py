"""Schedule: tiles for every kernel and row count, tabulated as the `StepTable` that the replay runs on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.lowering.kernel_plan import Decision, Kernel, KernelPlan
from replay.lowering.lower import lower
from replay.lowering.op_graph import AttentionShape, CollectiveShape, MatmulShape, OpGraph
from replay.specs.hardware import HardwareSpec
from replay.specs.knobs import KNOBS
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec
from replay.tiling import attention, gemm
from replay.tiling.bins import GemmBin, attention_bins, gemm_bins, tile_decisions
from replay.tiling.memory import kv_pool, weights_on_host
from replay.tiling.step_table import KERNEL_SCHEMA, StepLimits, StepTable
from replay.tiling.stream import collective_terms, elementwise_terms
from replay.tiling.terms import Terms, join, nothing

KNOTS_PER_OCTAVE = 2
"""Context lengths at which decode attention is tabulated, per doubling; in between its terms are near linear."""
LEAST_KNOT_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A kernel plan with tiles chosen, placed in memory and priced."""

    plan: KernelPlan
    table: StepTable
    decisions: tuple[Decision, ...]
    """Lowering's decisions, then tiling's."""


def schedule(plan: KernelPlan, model: ModelSpec, hardware: HardwareSpec, mapping: MappingSpec) -> Schedule:
    """Return the schedule of `plan`; every kernel is priced for every step composition the serving limits allow."""
    limits = step_limits(model, mapping)
    tabulator = _Tabulator(hardware=hardware, mapping=mapping, limits=limits)
    by_axis = {axis: [kernel for kernel in plan.kernels if kernel.axis == axis] for axis in ("tokens", "sequences", "attention")}
    prefill, decode = by_axis["attention"]
    table = StepTable(
        kernels=_kernel_table(plan, model, hardware),
        token_terms=tabulator.token_terms(by_axis["tokens"]),
        sequence_terms=tabulator.sequence_terms(by_axis["sequences"]),
        decode_terms=tabulator.decode_terms(decode),
        prefill_terms=tabulator.prefill_terms(prefill),
        capture=_capture(mapping, limits),
        host_launch_s=hardware.host.launch_s,
        host_graph_launch_s=hardware.host.graph_launch_s,
        launches_count=sum(_launches(kernel) for kernel in plan.kernels if kernel is not prefill),
        prefill_launches_count=_launches(prefill),
        pool=kv_pool(plan, model, hardware, mapping),
        limits=limits,
        reference_flops_per_s=hardware.reference_flops_per_s * plan.graph.ranks_count,
    )
    tiled = tile_decisions(plan.kernels, hardware, mapping, limits.max_batched_tokens)
    decisions = (*plan.decisions, *tiled, *serving_decisions(model, mapping, limits))
    return Schedule(plan=plan, table=table, decisions=decisions)


def step_limits(model: ModelSpec, mapping: MappingSpec) -> StepLimits:
    """Return the serving limits a mapping sets for a model."""
    asked = mapping.value("batching.max_context_tokens")
    context = min(asked, model.max_context_tokens) if isinstance(asked, int) else model.max_context_tokens
    return StepLimits(
        max_running=mapping.count("batching.max_running"),
        max_batched_tokens=mapping.count("batching.max_batched_tokens"),
        max_context_tokens=context,
        attention_window_tokens=min(context, model.attention_window_tokens or context),
    )


def _launches(kernel: Kernel) -> int:
    """Return the launches of a step's calls: unfused attention is three kernels."""
    unfused = kernel.axis == "attention" and kernel.attention_backend == "unfused"
    return kernel.calls_count * (attention.UNFUSED_KERNELS if unfused else 1)


def serving_decisions(model: ModelSpec, mapping: MappingSpec, limits: StepLimits) -> tuple[Decision, ...]:
    """Return the serving knobs that do not get what they ask for."""
    found = []
    asked = mapping.value("batching.max_context_tokens")
    if isinstance(asked, int) and asked > limits.max_context_tokens:
        reason = f"{model.name} has positions for {model.max_context_tokens} tokens"
        found.append(_serving_decision("batching.max_context_tokens", asked, limits.max_context_tokens, reason))
    sizes = mapping.value("graph.sizes")
    beyond = [size for size in sizes if size > limits.max_batched_tokens] if isinstance(sizes, tuple) else []
    if beyond and KNOBS["graph.sizes"].default != sizes:
        reason = f"no step has more than batching.max_batched_tokens = {limits.max_batched_tokens} tokens"
        found.append(_serving_decision("graph.sizes", f"sizes up to {beyond[-1]}", f"sizes up to {limits.max_batched_tokens}", reason))
    return tuple(found)


def _serving_decision(knob: str, requested: object, effective: object, reason: str) -> Decision:
    return Decision(knob=knob, requested=str(requested), effective=str(effective), reason=reason, stage="execution")


def context_knots(longest: int) -> npt.NDArray[np.float64]:
    """Return the mean context lengths at which decode attention is tabulated: 0, then a geometric grid up to `longest`."""
    octaves = np.log2(max(longest, 2 * LEAST_KNOT_TOKENS) / LEAST_KNOT_TOKENS)
    count = int(np.ceil(octaves * KNOTS_PER_OCTAVE)) + 1
    grid = np.round(LEAST_KNOT_TOKENS * 2.0 ** (np.arange(count) / KNOTS_PER_OCTAVE))
    return np.concatenate([[0.0], grid])


def gemm_terms(kernel: Kernel, choice: gemm.GemmChoice, hardware: HardwareSpec, mapping: MappingSpec) -> Terms:
    """Return a choice's terms with its weights where the mapping places them: from the host they cross the link each call."""
    if not weights_on_host(kernel, mapping):
        return choice.terms
    return choice.terms.with_memory(gemm.weight_bytes(kernel) / hardware.host_link_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tabulator:
    hardware: HardwareSpec
    mapping: MappingSpec
    limits: StepLimits

    def token_terms(self, kernels: list[Kernel]) -> pa.Table:
        rows_to = self.limits.max_batched_tokens
        tokens = np.arange(rows_to + 1, dtype=np.int64)
        columns: dict[str, object] = {"phase": np.repeat(np.array([0, 1]), rows_to + 1), "tokens": np.tile(tokens, 2)}
        for kernel in kernels:
            if isinstance(kernel.shape, MatmulShape):
                terms = join(self._gemm(kernel, rows_to))
            else:
                once = self._stream(kernel, tokens)
                terms = join([once, once])
            columns |= terms.columns(kernel.id)
        return pa.table(columns)

    def sequence_terms(self, kernels: list[Kernel]) -> pa.Table:
        rows_to = self.limits.max_running
        sequences = np.arange(rows_to + 1, dtype=np.int64)
        columns: dict[str, object] = {"sequences": sequences}
        for kernel in kernels:
            terms = self._gemm(kernel, rows_to)[0] if isinstance(kernel.shape, MatmulShape) else self._stream(kernel, sequences)
            columns |= terms.columns(kernel.id)
        return pa.table(columns)

    def decode_terms(self, kernel: Kernel) -> pa.Table:
        knots = context_knots(self.limits.attention_window_tokens)
        rows_to = self.limits.max_running
        sequences = np.repeat(np.arange(rows_to + 1, dtype=np.int64), len(knots))
        context = np.tile(knots, rows_to + 1)
        parts = []
        for bin_ in attention_bins(kernel, self.hardware, self.mapping, rows_to):
            mask = (sequences >= bin_.first_row) & (sequences <= bin_.last_row)
            counts = sequences[mask].astype(np.float64)
            parts.append(attention.decode_terms(kernel, counts, context[mask], bin_.tile, bin_.split, self.hardware))
        columns: dict[str, object] = {"sequences": sequences, "context_tokens": context}
        return pa.table(columns | join(parts).columns(kernel.id))

    def prefill_terms(self, kernel: Kernel) -> pa.Table:
        parts = []
        for bin_ in attention_bins(kernel, self.hardware, self.mapping, self.limits.max_batched_tokens):
            tokens = np.arange(bin_.first_row, bin_.last_row + 1, dtype=np.int64)
            terms = attention.prefill_terms(kernel, tokens, bin_.tile, self.hardware)
            parts.append(pa.table({"tokens": tokens, **terms.columns(kernel.id)}))
        return pa.concat_tables(parts).combine_chunks()

    def _gemm(self, kernel: Kernel, rows_to: int) -> list[Terms]:
        """Return the terms for 0..rows_to rows of each phase; row 0 costs nothing."""
        bins = list(gemm_bins(kernel, self.hardware, self.mapping, rows_to))
        priced: dict[GemmBin, Terms] = {}
        for bin_ in bins:
            phaseless = replace(bin_, phase=0)  # most mappings treat both phases alike: price once
            if phaseless not in priced:
                rows = np.arange(bin_.first_row, bin_.last_row + 1, dtype=np.int64)
                choice = gemm.choose(kernel, rows, bin_.backend, bin_.tiles, bin_.split, self.hardware)
                priced[phaseless] = gemm_terms(kernel, choice, self.hardware, self.mapping)
        by_phase = [[priced[replace(bin_, phase=0)] for bin_ in bins if bin_.phase == phase] for phase in (0, 1)]
        return [join([nothing(1), *parts]) for parts in by_phase]

    def _stream(self, kernel: Kernel, rows: npt.NDArray[np.int64]) -> Terms:
        if isinstance(kernel.shape, CollectiveShape):
            terms = collective_terms(kernel, rows, self.mapping.count("all_reduce.one_shot_max_bytes"), self.hardware)
        else:
            terms = elementwise_terms(kernel, rows, self.hardware)
        return terms.where(rows > 0, nothing(len(rows)))


def _kernel_table(plan: KernelPlan, model: ModelSpec, hardware: HardwareSpec) -> pa.Table:
    whole = lower(model, ranks=1)  # ranks repeat work they cannot share; what the model needs does not depend on them
    rows = []
    for kernel in plan.kernels:
        axis = f"{kernel.id.removeprefix('attention_')}_attention" if kernel.axis == "attention" else str(kernel.axis)
        rows.append(
            {
                "kernel": kernel.id,
                "layer_type": kernel.layer_type,
                "axis": axis,
                "calls_count": kernel.calls_count,
                "overlap_exponent": _overlap_exponent(kernel, hardware),
                "source": hardware.calibration,
                **_model_flops(kernel, whole),
            }
        )
    return pa.Table.from_pylist(rows, schema=KERNEL_SCHEMA)


def _overlap_exponent(kernel: Kernel, hardware: HardwareSpec) -> float:
    """Return the exponent a kernel's terms were fitted to join with: decode attention was fitted with that of the products."""
    fitted = isinstance(kernel.shape, MatmulShape) or kernel.id == "attention_decode"
    return hardware.gemm.overlap_exponent if fitted else inf


def _model_flops(kernel: Kernel, whole: OpGraph) -> dict[str, float]:
    """Return FLOPs per unit of the kernel's operators in the unsharded model: two per weight and row, four per pair and channel."""
    flops = dict.fromkeys(("flops_per_token", "flops_per_sequence", "flops_per_pair"), 0.0)
    for op in (whole.op(name) for name in kernel.ops if name in whole.names):
        if isinstance(op.shape, MatmulShape):
            unit = "flops_per_token" if op.axis == "tokens" else "flops_per_sequence"
            flops[unit] += 2.0 * op.shape.columns * op.shape.depth * op.shape.experts_per_row * op.calls_count
        elif isinstance(op.shape, AttentionShape):
            flops["flops_per_pair"] += 4.0 * op.shape.query_heads * op.shape.head_size * op.calls_count
    return flops


def _capture(mapping: MappingSpec, limits: StepLimits) -> pa.Table:
    """Return the graph each (phase, tokens) replays: the smallest captured size that covers it, 0 for none."""
    tokens = np.arange(limits.max_batched_tokens + 1, dtype=np.int64)
    mode, asked = mapping.value("graph.mode"), mapping.value("graph.sizes")
    assert isinstance(asked, tuple)
    sizes = np.array([size for size in asked if size <= limits.max_batched_tokens], dtype=np.int64)
    covered = np.append(sizes, 0)[np.searchsorted(sizes, tokens)]
    covered[0] = 0
    eager = np.zeros_like(covered)
    by_phase = [eager if mode == "none" else covered, covered if mode == "full" else eager]
    phases = np.repeat(np.array([0, 1]), len(tokens))
    return pa.table({"phase": phases, "tokens": np.tile(tokens, 2), "captured_tokens": np.concatenate(by_phase)})
