"""Small runs for tests of the gate, made from plain arrays instead of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from gates.plan import PlannedCell, cell_of, make_plan
from gates.policy import PolicySpec, parse_policy
from replay.assembly.run import LAYERS_SCHEMA, METRICS_SCHEMA, WINDOWS_SCHEMA, Run
from replay.execution.tables import COMPLETED, NEVER_FITS, STEPS_SCHEMA

TRACE_DIGEST = "sha256:" + "ab" * 32
WINDOWS_COUNT = 50
WINDOW_S = 10.0
LAYER_TYPES = ("attention", "mlp")

Column = Sequence[float | None] | np.ndarray


def make_run(
    latency_s: Column,
    *,
    metrics: Mapping[str, Column] | None = None,
    prompt_tokens: Sequence[int] | None = None,
    rejected: Sequence[int] = (),
    flops_scale: float = 1.0,
    stall_ratio: float = 0.3,
    request_ids: Sequence[str] | None = None,
    trace_digest: str = TRACE_DIGEST,
    windows_count: int = WINDOWS_COUNT,
    trace: str = "chat",
    hardware: str = "h100-sxm",
) -> Run:
    """Return a run whose latency metrics are all `latency_s` [requests] unless `metrics` names them; None is a missing value.

    `rejected` are positions of requests that never fit; `flops_scale` scales the FLOPs done in the same busy time.
    """
    n = len(latency_s)
    requests = _requests(latency_s, metrics or {}, prompt_tokens or [1000] * n, set(rejected), request_ids)
    return Run(
        trace=trace,
        trace_digest=trace_digest,
        hardware=hardware,
        model="tiny",
        mapping_digest="sha256:" + "cd" * 32,
        seed=1,
        requests=requests,
        steps=_steps(windows_count),
        layers=_layers(stall_ratio, windows_count),
        windows=_windows(windows_count, flops_scale, stall_ratio),
        window_s=WINDOW_S,
        reference_flops_per_s=1e15,
        rejected=(("kv_capacity", len(rejected)),) if rejected else (),
    )


def slower(run: Run, factor: float, metrics: Sequence[str] = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")) -> Run:
    """Return the run with the named metrics multiplied by `factor`."""
    table = run.requests
    for name in metrics:
        values = [None if value is None else value * factor for value in table[name].to_pylist()]
        table = table.set_column(table.column_names.index(name), METRICS_SCHEMA.field(name), pa.array(values, pa.float64()))
    return replace(run, requests=table)


def policy_of(text: str = "") -> PolicySpec:
    """Return the policy of a TOML text."""
    return parse_policy(text, "policy.toml")


def cell_for(baseline: Run, policy: PolicySpec, seed: int = 7) -> PlannedCell:
    """Return the planned cell of a baseline run."""
    return make_plan(policy, [cell_of(baseline)], seed).cells[0]


def lognormal_s(n: int, seed: int = 0, sigma: float = 0.6) -> np.ndarray:
    """Return independent lognormal latencies [n]."""
    return np.exp(sigma * np.random.default_rng(seed).standard_normal(n))


def _requests(
    latency_s: Column, metrics: Mapping[str, Column], prompt_tokens: Sequence[int], rejected: set[int], request_ids: Sequence[str] | None
) -> pa.Table:
    n = len(latency_s)
    columns: dict[str, pa.Array] = {
        "request_id": pa.array(request_ids if request_ids is not None else [f"r{index}" for index in range(n)], pa.string()),
        "arrival_s": pa.array(np.arange(n, dtype=float), pa.float64()),
        "prompt_tokens": pa.array(prompt_tokens, pa.int64()),
        "output_tokens": pa.array([100] * n, pa.int64()),
        "status": pa.array([NEVER_FITS if index in rejected else COMPLETED for index in range(n)], pa.string()),
        "preemptions_per_request": pa.array([int(value or 0) for value in metrics.get("preemptions_per_request", [0] * n)], pa.int64()),
    }
    columns["replica"], columns["sent_s"] = pa.array([0] * n, pa.int64()), columns["arrival_s"]
    columns["prefill_replica"], columns["kv_transfer_s"] = pa.nulls(n, pa.int64()), pa.nulls(n, pa.float64())
    columns["prefix_hit_tokens"] = pa.array([0] * n, pa.int64())
    for name in ("queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s"):
        values = metrics.get(name, latency_s)
        listed = [None if index in rejected or value is None else float(value) for index, value in enumerate(values)]
        columns[name] = pa.array(listed, pa.float64(), from_pandas=False)
    return pa.table({name: columns[name] for name in METRICS_SCHEMA.names}, schema=METRICS_SCHEMA)


def _steps(windows_count: int) -> pa.Table:
    rows = {field.name: [0] * windows_count for field in STEPS_SCHEMA}
    rows["start_s"] = [WINDOW_S * index for index in range(windows_count)]
    rows["end_s"] = [WINDOW_S * index + 8.0 for index in range(windows_count)]
    return pa.table(rows, schema=STEPS_SCHEMA)


def _layers(stall_ratio: float, windows_count: int) -> pa.Table:
    busy_s = 4.0 * windows_count
    row = {
        "time_s": busy_s, "compute_s": 3.0, "memory_s": 2.0, "launch_s": 0.1, "sync_s": 0.0,
        "memory_stall_s": busy_s * stall_ratio, "memory_stall_ratio": stall_ratio, "flops": 1e12, "bytes": 1e9,
    }  # fmt: skip
    return pa.Table.from_pylist([{"layer_type": layer, **row} for layer in LAYER_TYPES], schema=LAYERS_SCHEMA)


def _windows(windows_count: int, flops_scale: float, stall_ratio: float) -> pa.Table:
    """Each window is busy for 8 s (4 s in each layer type), with a load that rises and falls over the run."""
    rows = []
    for window in range(windows_count):
        load = 1.0 + 0.5 * np.sin(window / 5.0)
        for layer, time_s in (("all", 8.0), *((layer, 4.0) for layer in LAYER_TYPES)):
            rows.append(
                {
                    "window": window,
                    "layer_type": layer,
                    "time_s": time_s,
                    "memory_stall_s": time_s * stall_ratio * (1.0 + 0.1 * np.cos(window)),
                    "flops": 1e14 * load * time_s * flops_scale,
                    "tokens": round(1000 * load),
                }
            )
    return pa.Table.from_pylist(rows, schema=WINDOWS_SCHEMA)
