"""Small step tables and traces for tests, built without the mapping half of the product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from replay.ingress.trace import TRACE_SCHEMA, Trace, build_trace
from replay.provenance import TraceProvenance
from replay.tiling.step_table import KERNEL_SCHEMA, STAGE_SCHEMA, TERMS, KvPool, StepLimits, StepPower, StepTable

AMPLE = 1_000_000


def make_trace(
    arrival_s: Sequence[float],
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    *,
    name: str = "test",
    prefix_blocks: Sequence[Sequence[int] | None] | None = None,
    prefix_block_tokens: int | None = None,
    priority: Sequence[int | None] | None = None,
) -> Trace:
    """A synthetic trace with ids r0, r1, ... in the order given (which a law may choose to be out of arrival order)."""
    count = len(arrival_s)
    columns = {
        "request_id": [f"r{index}" for index in range(count)],
        "arrival_s": pa.array(np.asarray(arrival_s, dtype=np.float64), from_pandas=True),  # NaN stands for none
        "prompt_tokens": pa.array(np.asarray(prompt_tokens, dtype=np.int64)),
        "output_tokens": pa.array(np.asarray(output_tokens, dtype=np.int64)),
    }
    if prefix_blocks is not None:
        columns["prefix_blocks"] = pa.array(prefix_blocks, pa.list_(pa.int64()))
    if priority is not None:
        columns["priority"] = pa.array(priority, pa.int64())
    provenance = TraceProvenance(
        kind="synthetic",
        origin="test",
        source_digest="sha256:" + "0" * 64,
        rows_read=count,
        rows_kept=count,
        prefix_block_tokens=prefix_block_tokens,
    )
    return build_trace(name=name, requests=pa.table(columns), provenance=provenance)


def make_kernel(name: str, axis: str, layer_type: str, **more: Any) -> dict[str, Any]:
    """A row of KERNEL_SCHEMA: one call, no FLOPs, the longer of compute and memory time, unless said otherwise."""
    row = {
        "kernel": name, "layer_type": layer_type, "axis": axis, "calls_count": 1, "overlap_exponent": math.inf, "source": "datasheet",
        "stack": "", "calibration": "", "error_ratio": 0.5,
        "flops_per_token": 0.0, "flops_per_sequence": 0.0, "flops_per_pair": 0.0,
    }  # fmt: skip
    return row | more


def make_limits(
    max_running: int = 8,
    max_batched_tokens: int = 64,
    max_context_tokens: int = AMPLE,
    window_tokens: int | None = None,
    **rules: Any,
) -> StepLimits:
    """Limits; full attention unless a window is given, and the default rules of a mapping unless others are."""
    window = max_context_tokens if window_tokens is None else window_tokens
    return StepLimits(
        max_running=max_running,
        max_batched_tokens=max_batched_tokens,
        max_context_tokens=max_context_tokens,
        attention_window_tokens=window,
        **rules,
    )


def make_pool(blocks_count: int = AMPLE, block_tokens: int = 16, block_swap_s: float = 0.0) -> KvPool:
    """A cache; ample unless said otherwise."""
    sizes = {"block_bytes": 1.0, "weights_bytes": 1.0, "workspace_bytes": 0.0, "block_swap_s": block_swap_s}
    return KvPool(blocks_count=blocks_count, block_tokens=block_tokens, **sizes)


def captured_table(limits: StepLimits, sizes: Sequence[int] = (), *, decode_only: bool = False) -> pa.Table:
    """Table of captured graphs: every step up to the largest size replays the next larger one."""
    rows = limits.max_batched_tokens + 1
    following = [min((size for size in sizes if size >= tokens), default=0) if tokens else 0 for tokens in range(rows)]
    prefill = [0] * rows if decode_only else following
    return pa.table({"phase": [0] * rows + [1] * rows, "tokens": list(range(rows)) * 2, "captured_tokens": following + prefill})


def assemble_table(
    kernels: list[dict[str, Any]],
    terms: dict[str, np.ndarray],
    knots: Sequence[float],
    *,
    grid: tuple[Sequence[float], Sequence[float]] = ((0.0,), (0.0,)),
    **more: Any,
) -> StepTable:
    """A step table of kernels and their term columns by ``<kernel>.<term>``; terms that are not given are 0.

    `knots` are decode's mean contexts, `grid` prefill's tokens and mean keys.

    `more` may give limits, pool, capture, host_launch_s, host_graph_launch_s, launches_count, prefill_launches_count and
    reference_flops_per_s.
    """
    limits = more.pop("limits", None) or make_limits()
    token_rows, sequence_rows = limits.max_batched_tokens + 1, limits.max_running + 1

    def part(axis: str, index: dict[str, Any], rows: int, names: Sequence[str]) -> pa.Table:
        ids = [kernel["kernel"] for kernel in kernels if kernel["axis"] == axis]
        return pa.table(index | {f"{name}.{term}": terms.get(f"{name}.{term}", np.zeros(rows)) for name in ids for term in names})

    phases = {"phase": np.repeat([0, 1], token_rows), "tokens": np.tile(np.arange(token_rows), 2)}
    decode = {"sequences": np.repeat(np.arange(sequence_rows), len(knots)), "context_tokens": np.tile(knots, sequence_rows)}
    prefill = {"tokens": np.repeat(grid[0], len(grid[1])), "keys_tokens": np.tile(grid[1], len(grid[0]))}
    fields = {
        "pool": make_pool(), "capture": captured_table(limits), "host_launch_s": 0.0, "host_graph_launch_s": 0.0,
        "launches_count": 1, "prefill_launches_count": 0, "reference_flops_per_s": 1e12,
    }  # fmt: skip
    return StepTable(
        kernels=pa.Table.from_pylist(kernels, schema=KERNEL_SCHEMA),
        token_terms=part("tokens", phases, 2 * token_rows, TERMS),
        sequence_terms=part("sequences", {"sequences": np.arange(sequence_rows)}, sequence_rows, TERMS),
        decode_terms=part("decode_attention", decode, sequence_rows * len(knots), TERMS),
        prefill_terms=part("prefill_attention", prefill, len(prefill["tokens"]), TERMS),
        limits=limits,
        **(fields | more),
    )


def constant_table(step_s: float, **more: Any) -> StepTable:
    """Every step takes `step_s`, whatever it computes (one kernel of compute time)."""
    return linear_table(step_s=step_s, **more)


def linear_table(
    *,
    step_s: float = 0.0,
    per_token_s: float = 0.0,
    per_sequence_s: float = 0.0,
    per_context_token_s: float = 0.0,
    per_pair_s: float = 0.0,
    memory_step_s: float = 0.0,
    **more: Any,
) -> StepTable:
    """A step takes max(step_s + per_token_s x tokens, memory_step_s) + per_sequence_s x sequences + per_context_token_s x
    (sum of decode contexts) + per_pair_s x (prefill pairs), in kernels `body` (mlp), `head` (lm_head), `attention_decode`
    and `attention_prefill` (attention). The FLOPs of each are 1 per token, sequence or pair."""
    limits = more.setdefault("limits", make_limits())
    token_rows, sequence_rows = limits.max_batched_tokens + 1, limits.max_running + 1
    tokens = np.tile(np.arange(token_rows), 2).astype(float)
    sequences = np.arange(sequence_rows).astype(float)
    knots = np.array([0.0, 1024.0])
    grid = ((0.0, 64.0), (0.0, 64.0))
    pairs = np.outer(*grid).ravel()  # bilinear in tokens and mean keys, so two knots each will do
    contexts = (sequences[:, None] * knots[None, :]).ravel()
    kernels = [
        make_kernel("body", "tokens", "mlp", flops_per_token=1.0),
        make_kernel("head", "sequences", "lm_head", flops_per_sequence=1.0),
        make_kernel("attention_decode", "decode_attention", "attention", flops_per_pair=1.0),
        make_kernel("attention_prefill", "prefill_attention", "attention", flops_per_pair=1.0),
    ]
    terms = {
        "body.compute_s": (step_s + per_token_s * tokens) * (tokens > 0),
        "body.memory_s": memory_step_s * (tokens > 0),
        "body.bytes": 100.0 * (tokens > 0),
        "head.compute_s": per_sequence_s * sequences,
        "attention_decode.compute_s": per_context_token_s * contexts,
        "attention_decode.bytes": contexts,
        "attention_prefill.compute_s": per_pair_s * pairs,
        "attention_prefill.bytes": pairs,
    }
    return assemble_table(kernels, terms, knots, grid=grid, **more)


def random_table(seed: int, **more: Any) -> StepTable:
    """Two kernels on each axis with arbitrary terms, calls and exponents; nothing about it is smooth or monotone."""
    draw = np.random.default_rng(seed)
    limits = more.setdefault("limits", make_limits())
    token_rows, sequence_rows = limits.max_batched_tokens + 1, limits.max_running + 1
    knots = np.sort(draw.choice(np.arange(1, 40), size=int(draw.integers(1, 5)), replace=False)).astype(float)
    grid = tuple(np.sort(draw.choice(np.arange(40), size=int(draw.integers(1, 5)), replace=False)).astype(float) for _ in range(2))
    rows = {"tokens": 2 * token_rows, "sequences": sequence_rows}
    rows |= {"decode_attention": sequence_rows * len(knots), "prefill_attention": len(grid[0]) * len(grid[1])}
    kernels, terms = [], {}
    for axis, count in rows.items():
        for index in range(2):
            name = f"{axis}_{index}"
            layer = str(draw.choice(["qkv", "mlp", "attention"]))
            exponent = float(draw.choice([math.inf, 1.0, 2.0, 4.3, 300.0]))
            kernels.append(make_kernel(name, axis, layer, calls_count=int(draw.integers(1, 33)), overlap_exponent=exponent))
            for term in TERMS:
                values = draw.uniform(0.0, 1e-3, count) * draw.integers(0, 2, count)
                terms[f"{name}.{term}"] = values
    for name in ("host_launch_s", "host_graph_launch_s"):
        more.setdefault(name, float(draw.uniform(0.0, 0.02)))
    return assemble_table(kernels, terms, knots, grid=grid, **more)


def staged(table: StepTable, calls: dict[str, Sequence[int]], **limits: Any) -> StepTable:
    """The table with its kernels' calls in each pipeline stage, as many as each says, and other limits."""
    rows = [
        {"kernel": kernel, "stage": stage, "calls_count": count} for kernel, counts in calls.items() for stage, count in enumerate(counts)
    ]
    stages = pa.Table.from_pylist(rows, schema=STAGE_SCHEMA)
    return replace(table, stages=stages, limits=replace(table.limits, pipeline_stages=len(next(iter(calls.values()))), **limits))


def powered(
    table: StepTable, *, flop_energy_j: float = 0.0, ranks_count: int = 1, clocks_hz: Sequence[float] = (1e9,), **more: float
) -> StepTable:
    """The table on a device of 1 GHz that idles at 100 W and 30 degrees and has no limits unless `more`, fields of StepPower, says so."""
    figures = {
        "idle_w": 100.0, "cap_w": math.inf, "average_s": 1.0, "ambient_c": 30.0, "throttle_c": math.inf, "thermal_resistance_k_per_w": 0.0,
        "thermal_s": 10.0, "memory_energy_j_per_byte": 0.0,
    }  # fmt: skip
    energies = (flop_energy_j,) * table.kernels.num_rows
    power = StepPower(full_clock_hz=1e9, clocks_hz=tuple(clocks_hz), ranks_count=ranks_count, flop_energy_j=energies, **(figures | more))
    return replace(table, power=power)


def random_power(seed: int, table: StepTable) -> StepTable:
    """The table with arbitrary FLOPs on a device whose limits are felt in some steps and not in others."""
    draw = np.random.default_rng(seed)
    kernels = table.kernels
    for place, name in enumerate(kernels.column_names):
        if name.startswith("flops_"):
            kernels = kernels.set_column(place, kernels.schema.field(name), pa.array(draw.uniform(0.0, 1.0, kernels.num_rows)))
    clocks = np.sort(draw.uniform(0.2e9, 1e9, int(draw.integers(1, 12))))[::-1]
    return powered(
        replace(table, kernels=kernels),
        flop_energy_j=float(draw.choice([0.0, 0.01, 0.1])),
        ranks_count=int(draw.integers(1, 4)),
        clocks_hz=[1e9, *clocks],
        cap_w=float(draw.choice([50.0, 101.0, 110.0, 150.0, 1000.0])),
        memory_energy_j_per_byte=float(draw.choice([0.0, 1.0, 100.0])),
        average_s=float(draw.choice([1e-4, 0.1, 10.0])),
        thermal_resistance_k_per_w=float(draw.choice([0.0, 0.1])),
        throttle_c=float(draw.choice([40.5, 42.0, 90.0])),
        thermal_s=float(draw.choice([1e-3, 1.0])),
    )


def length_only_trace() -> Trace:
    """Two requests without arrival times."""
    table = pa.table(
        {
            "request_id": ["a", "b"], "arrival_s": pa.nulls(2, pa.float64()), "prompt_tokens": [4, 4], "output_tokens": [2, 2],
            "prefix_blocks": pa.nulls(2, TRACE_SCHEMA.field("prefix_blocks").type), "session_id": pa.nulls(2, pa.string()),
            "model": pa.nulls(2, pa.string()),
        }
    )  # fmt: skip
    provenance = TraceProvenance(kind="recorded", origin="test", source_digest="sha256:" + "0" * 64, rows_read=2, rows_kept=2)
    return build_trace(name="lengths", requests=table, provenance=provenance)
