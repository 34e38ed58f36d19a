"""The Run of a replay, added up piece by piece, and its headline figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replay.assembly.layers import ALL_LAYERS, LayerSums, layer_table
from replay.assembly.metrics import request_metrics
from replay.assembly.percentile import percentile, weighted_percentile
from replay.assembly.power import PowerSums
from replay.assembly.run import Run, RunOutline
from replay.assembly.windows import window_count, window_length_s, window_table
from replay.execution.admission import REJECTION_REASONS, count_rejections
from replay.execution.tables import COMPLETED, Replay
from replay.ingress.streamed import StreamedTrace
from replay.ingress.trace import Trace
from replay.tiling.step_table import StepTable

SUMMARY_METRICS = ("queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s")
GAP_METRIC = "token_gap_s"
SUMMARY_PERCENTS = (50, 95, 99)


class Assembly:
    """A run of one arm, added up piece by piece; `table` and `kernel_factors` must be those that `trace` is replayed under.

    Windows have the length that `window_length_s` gives for the trace, whatever the arm.
    """

    def __init__(
        self,
        *,
        trace: Trace | StreamedTrace,
        table: StepTable,
        model: str,
        hardware: str,
        mapping_digest: str,
        seed: int,
        kernel_factors: Mapping[str, float] | None = None,
    ) -> None:
        self._about = {"trace": trace.name, "trace_digest": trace.digest, "hardware": hardware, "model": model}
        self._mapping_digest, self._seed, self._table, self._window_s = mapping_digest, seed, table, window_length_s(trace)
        self._layers = LayerSums(table, window_s=self._window_s, kernel_factors=kernel_factors)
        self._power = PowerSums(table, self._window_s)
        self._windows, self._rejected = 0, dict.fromkeys(REJECTION_REASONS.values(), 0)

    def add(self, piece: Replay) -> pa.Table:
        """Add the next piece of the replay, or all of it, and return METRICS_SCHEMA of its requests."""
        self._windows = max(self._windows, window_count(piece, self._window_s))
        self._layers.add(piece, self._windows)
        self._power.add(piece.steps, self._windows)
        for reason, count in count_rejections(piece.requests, self._table):
            self._rejected[reason] += count
        return request_metrics(piece)

    def outline(self) -> RunOutline:
        """Return the run so far, without the tables whose rows come piece by piece.

        Raises:
            InvariantError: the table or the factors are not those the replay ran under.
        """
        shares = self._layers.shares(self._windows)
        return RunOutline(
            **self._about,
            mapping_digest=self._mapping_digest,
            seed=self._seed,
            layers=layer_table(shares),
            windows=window_table(shares, self._power.columns(shares.tokens)),
            window_s=self._window_s,
            reference_flops_per_s=self._table.reference_flops_per_s,
            rejected=tuple((reason, count) for reason, count in self._rejected.items() if count),
            replicas_count=self._table.limits.all_replicas_count,
        )


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
    """Return everything measured about one arm: the `Assembly` of a single piece; errors as there."""
    assembly = Assembly(
        trace=trace,
        table=table,
        model=model,
        hardware=hardware,
        mapping_digest=mapping_digest,
        seed=seed,
        kernel_factors=kernel_factors,
    )
    requests, outline = assembly.add(replayed), assembly.outline()
    known = {field.name: getattr(outline, field.name) for field in fields(outline)}
    return Run(**known, requests=requests, steps=replayed.steps, token_gaps=replayed.token_gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a summary says of requests (METRICS_SCHEMA) and steps, without the tables; totals of pieces add up."""

    requests_count: int
    completed_count: int
    steps_count: int
    preemptions_count: int
    recomputed_tokens: int
    prefix_hit_tokens: int
    output_tokens: int
    span_s: float

    @classmethod
    def of(cls, requests: pa.Table, steps: pa.Table) -> Totals:
        """Return those of a run or a piece."""
        return cls(
            requests_count=requests.num_rows,
            completed_count=int(pc.sum(pc.equal(requests["status"], COMPLETED)).as_py() or 0),
            steps_count=steps.num_rows,
            preemptions_count=int(_total(steps, "preemptions")),
            recomputed_tokens=int(_total(steps, "recomputed_tokens")),
            prefix_hit_tokens=int(_total(steps, "prefix_hit_tokens")),
            output_tokens=int(_total(steps, "output_tokens")),
            span_s=float(pc.max(steps["end_s"]).as_py() or 0.0),
        )

    def __add__(self, other: Totals) -> Totals:
        added = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return Totals(**added | {"span_s": max(self.span_s, other.span_s)})


def summary(run: Run) -> dict[str, Any]:
    """Return the headline figures of a run for people and for `run.json`: `headline`, and percentiles.

    Percentiles are order statistics (`replay.assembly.percentile`) over the requests that have the metric, None where none has;
    those of `token_gap_s` are over all gaps between tokens, which `itl_s`, the worst gap of each request, is one of.
    """
    percentiles = {name: _percentiles(run.requests[name]) for name in SUMMARY_METRICS} | {GAP_METRIC: _gap_percentiles(run)}
    return headline(run, Totals.of(run.requests, run.steps), percentiles)


def headline(run: RunOutline, totals: Totals, percentiles: dict[str, dict[str, float | None]]) -> dict[str, Any]:
    """Return a summary of a run, of which the totals and percentiles are known.

    `span_s` runs from time 0 to the last step's end. `sustained_flops_per_s` and `throughput_tokens_per_s` are
    those of all replicas together over their mean busy time, as those of a tensor-parallel group are; `mfu_ratio` is over their peaks
    added up; the `wall_clock_` forms are over the span. All are 0 where nothing ran.
    `memory_stall_ratio` is by layer type, `host` and `all` (the whole busy time) included.
    `energy_j` is of all ranks of all replicas over the span, None where the device has no power, as what is divided from it.
    """
    whole = run.windows.filter(pc.equal(run.windows["layer_type"], ALL_LAYERS))
    flops, tokens, stall_s, busy_s = (_total(whole, name) for name in ("flops", "tokens", "memory_stall_s", "time_s"))
    energy_j, span_s = pc.sum(whole["energy_j"]).as_py(), totals.span_s
    replicas_span_s = run.replicas_count * span_s
    stall = {row["layer_type"]: row["memory_stall_ratio"] for row in run.layers.to_pylist()}
    return {
        "requests_count": totals.requests_count,
        "completed_count": totals.completed_count,
        "rejected": dict(run.rejected),
        "steps_count": totals.steps_count,
        "preemptions_count": totals.preemptions_count,
        "recomputed_tokens": totals.recomputed_tokens,
        "prefix_hit_tokens": totals.prefix_hit_tokens,
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
        "joules_per_output_token": _per(energy_j, totals.output_tokens),
        "wall_clock_mfu_ratio": _share(flops, replicas_span_s * run.reference_flops_per_s),
        "memory_stall_ratio": {**stall, ALL_LAYERS: _share(stall_s, busy_s)},
        "percentiles": percentiles,
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
