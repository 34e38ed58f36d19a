"""The Run of a replay, and its headline figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replay.assembly.layers import ALL_LAYERS, layer_table, share_time
from replay.assembly.metrics import request_metrics
from replay.assembly.percentile import percentile, weighted_percentile
from replay.assembly.power import window_power
from replay.assembly.run import Run
from replay.assembly.windows import window_count, window_length_s, window_table
from replay.execution.admission import count_rejections
from replay.execution.tables import COMPLETED, Replay
from replay.ingress.trace import Trace
from replay.tiling.step_table import StepTable

SUMMARY_METRICS = ("queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s")
SUMMARY_PERCENTS = (50, 95, 99)


def assemble(
    *,
    trace: Trace,
    table: StepTable,
    replayed: Replay,
    model: str,
    hardware: str,
    mapping_digest: str,
    seed: int,
    kernel_factors: Mapping[str, float] | None = None,
) -> Run:
    """Return everything measured about one arm; `table` and `kernel_factors` must be those `trace` was replayed under.

    Windows have the length that `window_length_s` gives for the trace, whatever the arm.

    Raises:
        InvariantError: the table or the factors are not those the replay ran under.
    """
    window_s = window_length_s(trace)
    windows = window_count(replayed, window_s)
    shares = share_time(replayed, table, window_s=window_s, windows=windows, kernel_factors=kernel_factors)
    return Run(
        trace=trace.name,
        trace_digest=trace.digest,
        hardware=hardware,
        model=model,
        mapping_digest=mapping_digest,
        seed=seed,
        requests=request_metrics(replayed),
        steps=replayed.steps,
        layers=layer_table(shares),
        windows=window_table(shares, window_power(replayed, table, shares.tokens, window_s)),
        window_s=window_s,
        reference_flops_per_s=table.reference_flops_per_s,
        rejected=count_rejections(replayed.requests, table),
        replicas_count=table.limits.all_replicas_count,
        token_gaps=replayed.token_gaps,
    )


def summary(run: Run) -> dict[str, Any]:
    """Return the headline figures of a run for people and for `run.json`.

    Percentiles are order statistics (`replay.assembly.percentile`) over the requests that have the metric, None where none has;
    those of `token_gap_s` are over all gaps between tokens, which `itl_s`, the worst gap of each request, is one of.
    `span_s` runs from time 0 to the last step's end. `sustained_flops_per_s` and `throughput_tokens_per_s` are
    those of all replicas together over their mean busy time, as those of a tensor-parallel group are; `mfu_ratio` is over their peaks
    added up; the `wall_clock_` forms are over the span. All are 0 where nothing ran.
    `memory_stall_ratio` is by layer type, `host` and `all` (the whole busy time) included.
    `energy_j` is of all ranks of all replicas over the span, None where the device has no power, as what is divided from it.
    """
    totals = run.windows.filter(pc.equal(run.windows["layer_type"], ALL_LAYERS))
    flops, tokens, stall_s = (_total(totals, name) for name in ("flops", "tokens", "memory_stall_s"))
    busy_s, span_s = run.busy_s, float(pc.max(run.steps["end_s"]).as_py() or 0.0)
    energy_j = pc.sum(totals["energy_j"]).as_py()
    replicas_span_s = run.replicas_count * span_s
    stall = {row["layer_type"]: row["memory_stall_ratio"] for row in run.layers.to_pylist()}
    return {
        "requests_count": run.requests.num_rows,
        "completed_count": int(pc.sum(pc.equal(run.requests["status"], COMPLETED)).as_py() or 0),
        "rejected": dict(run.rejected),
        "steps_count": run.steps.num_rows,
        "preemptions_count": int(_total(run.steps, "preemptions")),
        "recomputed_tokens": int(_total(run.steps, "recomputed_tokens")),
        "prefix_hit_tokens": int(_total(run.steps, "prefix_hit_tokens")),
        "span_s": span_s,
        "busy_s": busy_s,
        "busy_ratio": _share(busy_s, replicas_span_s),
        "tokens": int(tokens),
        "throughput_tokens_per_s": _share(tokens, busy_s / run.replicas_count),
        "wall_clock_throughput_tokens_per_s": _share(tokens, span_s),
        "flops": flops,
        "reference_flops_per_s": run.reference_flops_per_s,
        "sustained_flops_per_s": _share(flops, busy_s / run.replicas_count),
        "mfu_ratio": _share(flops, busy_s * run.reference_flops_per_s),
        "energy_j": energy_j,
        "joules_per_token": _per(energy_j, tokens),
        "joules_per_output_token": _per(energy_j, _total(run.steps, "output_tokens")),
        "wall_clock_mfu_ratio": _share(flops, replicas_span_s * run.reference_flops_per_s),
        "memory_stall_ratio": {**stall, ALL_LAYERS: _share(stall_s, busy_s)},
        "percentiles": {name: _percentiles(run.requests[name]) for name in SUMMARY_METRICS} | {"token_gap_s": _gap_percentiles(run)},
    }


def _percentiles(column: pa.ChunkedArray) -> dict[str, float | None]:
    values = column.drop_null().to_numpy()
    return {f"p{percent}": percentile(values, percent) if len(values) else None for percent in SUMMARY_PERCENTS}


def _gap_percentiles(run: Run) -> dict[str, float | None]:
    gaps_s, tokens = (run.token_gaps[name].to_numpy() for name in run.token_gaps.column_names)
    return {f"p{percent}": weighted_percentile(gaps_s, tokens, percent) if len(tokens) else None for percent in SUMMARY_PERCENTS}


def _total(table: pa.Table, name: str) -> float:
    return float(pc.sum(table[name]).as_py() or 0.0)


def _per(amount: float | None, units: float) -> float | None:
    return None if amount is None or units == 0 else amount / units


def _share(amount: float, whole: float) -> float:
    return amount / whole if whole > 0 else 0.0
