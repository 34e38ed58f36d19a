"""Schedule: tiles for every kernel and row count, tabulated as the `StepTable` that the replay runs on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from replay.errors import SpecError
from replay.lowering.kernel_plan import Decision, Kernel, KernelPlan
from replay.lowering.lower import lower
from replay.lowering.op_graph import STEP_AXES, AttentionShape, ExpertsShape, MatmulShape, OpGraph
from replay.specs.hardware import HardwareSpec
from replay.specs.knobs import KNOBS
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec
from replay.tiling.bins import tile_decisions
from replay.tiling.library import Cost, KernelLibrary
from replay.tiling.memory import kv_pool
from replay.tiling.power import power_decisions, step_power
from replay.tiling.pricing import Pricer
from replay.tiling.step_table import KERNEL_SCHEMA, MEASURED_SCHEMA, STAGE_SCHEMA, StepLimits, StepTable
from replay.tiling.table_decisions import table_decisions
from replay.tiling.tabulate import Tabulator


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
    pricer = Pricer(library=KernelLibrary(device=hardware), mapping=mapping)
    tabulator = Tabulator(pricer=pricer, limits=limits)
    terms = {axis: tabulator.terms(axis, [kernel for kernel in plan.kernels if kernel.axis == axis]) for axis in STEP_AXES}
    table = StepTable(
        kernels=_kernel_table(plan, model, tabulator.costs),
        token_terms=terms["tokens"],
        sequence_terms=terms["sequences"],
        decode_terms=terms["decode_attention"],
        prefill_terms=terms["prefill_attention"],
        capture=captured_graphs(mapping, limits),
        host_launch_s=hardware.host.launch_s,
        host_graph_launch_s=hardware.host.graph_launch_s * limits.pipeline_stages,
        launches_count=sum(kernel.launches_count for kernel in plan.kernels if kernel.axis != "prefill_attention"),
        prefill_launches_count=sum(kernel.launches_count for kernel in plan.kernels if kernel.axis == "prefill_attention"),
        pool=kv_pool(plan, model, hardware, mapping),
        limits=limits,
        reference_flops_per_s=hardware.reference_flops_per_s * plan.graph.ranks_count * limits.pipeline_stages,
        host_calls_s=_host_calls_s(plan, mapping, prefill=False),
        prefill_host_calls_s=_host_calls_s(plan, mapping, prefill=True),
        measured=_measured_table(tabulator.costs),
        power=None if limits.inflight_steps > 1 else step_power(plan, hardware, mapping),
        stages=_stage_table(plan),
    )
    decisions = (
        *plan.decisions,
        *pricer.stack_decisions(plan.kernels),
        *table_decisions(plan.kernels, hardware, mapping, limits.max_batched_tokens),
        *tile_decisions(plan.kernels, hardware, mapping, limits.max_batched_tokens),
        *serving_decisions(model, mapping, limits),
        *power_decisions(hardware, mapping, overlapping=limits.inflight_steps > 1),
    )
    return Schedule(plan=plan, table=table, decisions=decisions)


def step_limits(model: ModelSpec, mapping: MappingSpec) -> StepLimits:
    """Return the serving limits a mapping sets for a model.

    Raises:
        SpecError: the prefix cache is on and preempted sequences are swapped; asynchronous scheduling with several pipeline stages; or
            static batches with prefill replicas.
    """
    asked = mapping.value("batching.max_context_tokens")
    context = min(asked, model.max_context_tokens) if isinstance(asked, int) else model.max_context_tokens
    budget, scheduler = mapping.count("batching.max_batched_tokens"), str(mapping.value("batching.scheduler"))
    if scheduler != "chunked":  # prompts are computed whole, also those of preempted sequences with what they had generated
        context = min(context, budget)
    prefix_cache = mapping.value("kv.prefix_cache") is True and _finds_blocks_again(mapping)
    preemption = str(mapping.value("kv.preemption"))
    if prefix_cache and preemption == "swap":
        fix = 'turn one of them off (kv.preemption = "recompute")'
        raise SpecError("kv.preemption", '"swap" together with kv.prefix_cache = true', "one of the two", fix)
    sizes, most = mapping.value("batching.preferred_sizes"), mapping.count("batching.max_running")
    assert isinstance(sizes, tuple)
    return StepLimits(
        max_running=most,
        max_batched_tokens=budget,
        max_context_tokens=context,
        attention_window_tokens=min(context, model.attention_window_tokens or context),
        async_scheduling=mapping.value("batching.async_scheduling") is True,
        scheduler=scheduler,
        max_delay_s=mapping.number("batching.max_delay_s"),
        preferred_sizes=tuple(size for size in sizes if size <= most),
        queue=str(mapping.value("batching.queue")),
        unfit=str(mapping.value("batching.unfit")),
        preemption=preemption,
        prefix_cache=prefix_cache,
        host_overlap=mapping.value("host.overlap") is True,
        kv_policy=str(mapping.value("kv.policy")),
        kv_watermark_ratio=mapping.number("kv.watermark_ratio"),
        pipeline_stages=mapping.count("parallelism.pipeline"),
        compile_bins=bins if isinstance(bins := mapping.value("compile.bins"), tuple) else (),
        compile_variant_s=mapping.number("compile.variant_s"),
        compile_warmup=str(mapping.value("compile.warmup")),
        compile_max_variants=kept if isinstance(kept := mapping.value("compile.max_variants"), int) else None,
        inflight_steps=_inflight_steps(mapping),
        replicas_count=mapping.count("fleet.replicas"),
        prefill_replicas_count=_prefill_replicas(mapping, scheduler),
        routing=str(mapping.value("fleet.routing")),
    )


def _prefill_replicas(mapping: MappingSpec, scheduler: str) -> int:
    """Return the replicas that only compute prompts."""
    count = mapping.count("fleet.prefill_replicas")
    if count and scheduler == "static":
        fix = "choose one of those, or let each replica do both (fleet.prefill_replicas = 0)"
        raise SpecError("batching.scheduler", f'"static" with fleet.prefill_replicas = {count}', '"chunked" or "prefill_first"', fix)
    return count


def _finds_blocks_again(mapping: MappingSpec) -> bool:
    """Return whether the prefix cache works with the cache's format."""
    return mapping.value("kv.prefix_cache_formats") == "any" or mapping.value("formats.kv") != "fp8"


def _inflight_steps(mapping: MappingSpec) -> int:
    """Return the steps that may be under way at once: one without stages, else what is asked, or one for each stage."""
    stages, asked = mapping.count("parallelism.pipeline"), mapping.value("batching.inflight_microbatches")
    if stages > 1 and mapping.value("batching.async_scheduling") is True:
        raise SpecError(
            "batching.async_scheduling",
            f"true with parallelism.pipeline = {stages}",
            "false, for several stages (as vLLM V1 wanted at first)",
            "turn it off; batching.inflight_microbatches keeps the stages busy",
        )
    if stages == 1:
        return 1
    return asked if isinstance(asked, int) else stages


def serving_decisions(model: ModelSpec, mapping: MappingSpec, limits: StepLimits) -> tuple[Decision, ...]:
    """Return the serving knobs that do not get what they ask for."""
    found = []
    asked = mapping.value("batching.max_context_tokens")
    if limits.scheduler != "chunked" and limits.max_context_tokens == limits.max_batched_tokens:
        reason = f"the {limits.scheduler} scheduler computes prompts whole and batching.max_batched_tokens = {limits.max_batched_tokens}"
        found.append(_serving_decision("batching.max_context_tokens", asked, limits.max_context_tokens, reason))
    elif isinstance(asked, int) and asked > limits.max_context_tokens:
        reason = f"{model.name} has positions for {model.max_context_tokens} tokens"
        found.append(_serving_decision("batching.max_context_tokens", asked, limits.max_context_tokens, reason))
    sizes = mapping.value("graph.sizes")
    beyond = [size for size in sizes if size > limits.max_batched_tokens] if isinstance(sizes, tuple) else []
    if beyond and KNOBS["graph.sizes"].default != sizes:
        reason = f"no step has more than batching.max_batched_tokens = {limits.max_batched_tokens} tokens"
        found.append(_serving_decision("graph.sizes", f"sizes up to {beyond[-1]}", f"sizes up to {limits.max_batched_tokens}", reason))
    if mapping.value("kv.prefix_cache") is True and not limits.prefix_cache:
        reason = f"the server cannot find blocks of formats.kv = {mapping.value('formats.kv')!r} again (kv.prefix_cache_formats)"
        found.append(replace(_serving_decision("kv.prefix_cache", "true", "false", reason), stage="lowering"))
    steps = mapping.value("batching.inflight_microbatches")
    if isinstance(steps, int) and steps != limits.inflight_steps:
        reason = "parallelism.pipeline = 1: without stages one step is under way at a time"
        found.append(_serving_decision("batching.inflight_microbatches", steps, limits.inflight_steps, reason))
    rate = mapping.value("fleet.kv_link_bytes_per_s")
    if rate != "link" and not limits.prefill_replicas_count:
        found.append(_serving_decision("fleet.kv_link_bytes_per_s", rate, "none", "fleet.prefill_replicas = 0: no cache is sent"))
    if limits.max_delay_s > 0.0 and limits.scheduler != "static":
        reason = f"the {limits.scheduler} scheduler starts at once"
        found.append(_serving_decision("batching.max_delay_s", limits.max_delay_s, 0, reason))
    preferred = mapping.value("batching.preferred_sizes")
    if preferred and limits.scheduler != "static":
        found.append(_serving_decision("batching.preferred_sizes", preferred, "none", f"the {limits.scheduler} scheduler forms no batches"))
    elif preferred != limits.preferred_sizes:
        reason = f"no batch has more than batching.max_running = {limits.max_running} requests"
        found.append(_serving_decision("batching.preferred_sizes", preferred, limits.preferred_sizes, reason))
    return tuple(found)


def _serving_decision(knob: str, requested: object, effective: object, reason: str) -> Decision:
    return Decision(knob=knob, requested=str(requested), effective=str(effective), reason=reason, stage="execution")


def _kernel_table(plan: KernelPlan, model: ModelSpec, costs: dict[str, Cost]) -> pa.Table:
    whole = lower(model, ranks=1)  # ranks repeat work they cannot share; what the model needs does not depend on them
    rows = [
        {
            "kernel": kernel.id,
            "layer_type": kernel.layer_type,
            "axis": kernel.axis,
            "calls_count": kernel.calls_count,
            "overlap_exponent": costs[kernel.id].overlap_exponent,
            "source": costs[kernel.id].source,
            "stack": costs[kernel.id].stack,
            "calibration": costs[kernel.id].calibration,
            "error_ratio": costs[kernel.id].error_ratio,
            **_model_flops(kernel, whole),
        }
        for kernel in plan.kernels
    ]
    return pa.Table.from_pylist(rows, schema=KERNEL_SCHEMA)


def _host_calls_s(plan: KernelPlan, mapping: MappingSpec, *, prefill: bool) -> float:
    """Return the host time beside launches of an eager step's kernels, or of those that only steps with prefill tokens have."""
    kernels = [kernel for kernel in plan.kernels if (kernel.axis == "prefill_attention") == prefill]
    return float(sum(kernel.calls_count * mapping.number("host.call_s", layer=kernel.layer_type) for kernel in kernels))


def _stage_table(plan: KernelPlan) -> pa.Table:
    """Return the calls of each kernel in each pipeline stage (STAGE_SCHEMA)."""
    rows = [
        {"kernel": kernel.id, "stage": stage, "calls_count": calls}
        for kernel in plan.kernels
        for stage, calls in enumerate(kernel.stage_calls)
        if calls
    ]
    return pa.Table.from_pylist(rows, schema=STAGE_SCHEMA)


def _measured_table(costs: dict[str, Cost]) -> pa.Table:
    """Return the measured rows of each kernel (MEASURED_SCHEMA)."""
    rows = []
    for kernel, cost in costs.items():
        edges = np.flatnonzero(np.diff(np.concatenate([[0], cost.measured, [0]]).astype(np.int8)))
        rows += [{"kernel": kernel, "first_row": first, "last_row": after - 1} for first, after in edges.reshape(-1, 2).tolist()]
    return pa.Table.from_pylist(rows, schema=MEASURED_SCHEMA)


def _model_flops(kernel: Kernel, whole: OpGraph) -> dict[str, float]:
    """Return FLOPs per unit of the kernel's operators in the unsharded model: two per weight and row, and per pair and channel."""
    flops = dict.fromkeys(("flops_per_token", "flops_per_sequence", "flops_per_pair"), 0.0)
    for op in (whole.op(name) for name in kernel.ops if name in whole.names):
        if isinstance(op.shape, MatmulShape):
            unit = "flops_per_sequence" if op.axis == "sequences" else "flops_per_token"
            flops[unit] += 2.0 * op.shape.columns * op.shape.depth * op.calls_count
        elif isinstance(op.shape, ExpertsShape):
            flops["flops_per_token"] += 2.0 * op.shape.expert_weights * op.shape.experts_per_row * op.calls_count
        elif isinstance(op.shape, AttentionShape):
            flops["flops_per_pair"] += 2.0 * op.shape.query_heads * (op.shape.head_size + op.shape.value_size) * op.calls_count
    return flops


def captured_graphs(mapping: MappingSpec, limits: StepLimits) -> pa.Table:
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
