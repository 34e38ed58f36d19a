"""A StepTable as the structured arrays that the replay loop reads: one lookup or a few operations per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from replay.errors import InvariantError
from replay.execution.sources import sources_digest
from replay.execution.step_costs import Floats, Records, check_factors
from replay.tiling.step_table import TERMS, StepTable

TERM = np.dtype(
    [
        *((name, np.float64) for name in ("launch_s", "compute_s", "memory_s", "sync_s", "bytes", "weight", "exponent")),
        (f"sources_{sources_digest('loop_prices.py')}", np.int64),
    ]
)
"""One kernel at one row: what a call costs, calls per step x factor, and the overlap exponent. The last field makes the type, by
which compiled code is found, change with what is done with it."""
TOKEN_ROW = np.dtype(
    [
        ("device_s", np.float64),
        ("host_s", np.float64),
        ("captured_tokens", np.int64),
        ("eager_device_s", np.float64),
        ("eager_host_s", np.float64),
    ]
)
"""What (phase, tokens) decides: token-wise kernels (padded to the captured graph, where there is one), host time, graph size; and times
of a step that may not replay a graph."""


class CostArrays(NamedTuple):
    """What a step costs."""

    token_rows: Records
    """TOKEN_ROW by (phase, tokens): max_batched_tokens + 1 rows a phase."""
    sequence_s: Floats
    """Kernels by sequences [max_running + 1]."""
    decode: Records
    """TERM [kernels, (sequences, context knots)]"""
    context_knots: Floats
    """Mean context lengths of the decode rows, ascending."""
    prefill: Records
    """TERM [kernels, (token knots, keys knots)]"""
    token_knots: Floats
    """Prefill tokens of the prefill rows, ascending."""
    keys_knots: Floats
    """Mean keys of a query of the prefill rows, ascending."""
    stage_shares: Floats
    """Parts of a step's time in the pipeline stages that can hold a step each [stages]."""


def flatten(table: StepTable, kernel_factors: Mapping[str, float] | None = None) -> CostArrays:
    """Return the arrays of a table, each kernel's time scaled by its factor.

    Raises:
        InvariantError: the table breaks its own contract (missing rows, a graph larger than the token budget, limits below 1).
        SpecError: a factor names no kernel, or is not a finite number >= 0.
    """
    from replay.execution.loop_prices import sum_rows

    factors = check_factors(table, kernel_factors)
    _check_table(table)
    return CostArrays(
        token_rows=_token_rows(table, sum_rows(kernel_rows(table, "tokens", table.token_terms, factors))),
        sequence_s=sum_rows(kernel_rows(table, "sequences", table.sequence_terms, factors)),
        decode=kernel_rows(table, "decode_attention", table.decode_terms, factors),
        context_knots=table.context_knots,
        prefill=kernel_rows(table, "prefill_attention", table.prefill_terms, factors),
        token_knots=table.token_knots,
        keys_knots=table.keys_knots,
        stage_shares=_stage_shares(table),
    )


def _token_rows(table: StepTable, seconds: Floats) -> Records:
    captured = table.capture["captured_tokens"].to_numpy()
    phase_starts = np.repeat([0, table.limits.max_batched_tokens + 1], table.limits.max_batched_tokens + 1)
    rows = np.empty(len(captured), dtype=TOKEN_ROW)
    rows["captured_tokens"] = captured
    rows["device_s"] = np.where(captured > 0, seconds[phase_starts + captured], seconds)
    rows["eager_device_s"], rows["eager_host_s"] = seconds, table.eager_host_s(phase_starts > 0)
    rows["host_s"] = np.where(captured > 0, table.host_graph_launch_s, rows["eager_host_s"])
    return rows


def _stage_shares(table: StepTable) -> Floats:
    """Return each stage's part of what the token-wise kernels of a full prefill step take, and even parts where that is nothing [stages].

    One stage where only one step is under way, for it then does not matter when the step leaves which.
    """
    from replay.execution.loop_prices import sum_rows

    stages = table.limits.overlapping_stages
    rows = kernel_rows(table, "tokens", table.token_terms.slice(table.token_terms.num_rows - 1), {})
    kernels = [entry["kernel"] for entry in table.kernels.to_pylist() if entry["axis"] == "tokens"]
    seconds = []
    for stage in range(stages if stages > 1 else 0):
        calls = {entry["kernel"]: entry["calls_count"] for entry in table.stages.to_pylist() if entry["stage"] == stage}
        rows["weight"] = np.array([[calls.get(kernel, 0)] for kernel in kernels])
        seconds.append(float(sum_rows(rows)[0]))
    total_s = sum(seconds)
    return np.array([stage_s / total_s for stage_s in seconds] if total_s > 0.0 else [1.0 / stages] * stages)


def kernel_rows(table: StepTable, axis: str, terms: pa.Table, factors: Mapping[str, float]) -> Records:
    """Return TERM [kernels, rows] of the kernels of an axis, in the table's order."""
    entries = [entry for entry in table.kernels.to_pylist() if entry["axis"] == axis]
    values = np.empty((len(entries), terms.num_rows), dtype=TERM)
    for index, entry in enumerate(entries):
        kernel, row = entry["kernel"], values[index]
        row["weight"], row["exponent"] = entry["calls_count"] * factors.get(kernel, 1.0), entry["overlap_exponent"]
        for name in TERMS:
            row[name] = terms[f"{kernel}.{name}"].to_numpy()
    return values


def _check_table(table: StepTable) -> None:
    limits = table.limits
    token_rows, sequence_rows = limits.max_batched_tokens + 1, limits.max_running + 1
    knots = [len(found) for found in (table.context_knots, table.token_knots, table.keys_knots)]
    bounds = (limits.max_running, limits.max_batched_tokens, limits.attention_window_tokens, limits.inflight_steps)
    if min(*bounds, table.pool.block_tokens, *knots) < 1:
        raise InvariantError(f"a step table has a limit below 1: {limits}, {table.pool}, {knots} knots")
    if limits.scheduler != "chunked" and limits.max_context_tokens > limits.max_batched_tokens:
        raise InvariantError(f"the {limits.scheduler} scheduler computes prompts whole: a context beyond one step's tokens in {limits}")
    if limits.prefix_cache and limits.preemption == "swap":
        raise InvariantError(f"blocks that are found again cannot be swapped: {limits}")
    if limits.async_scheduling and limits.inflight_steps > 1:
        raise InvariantError(f"two rules say how many steps are in flight: {limits}")
    if limits.overlapping_stages > 1 and set(table.stages["stage"].to_pylist()) != set(range(limits.pipeline_stages)):
        raise InvariantError(f"the stages of a step table are not those of its {limits.pipeline_stages}-stage pipeline")
    for name, part, wanted in (
        ("token_terms", table.token_terms, 2 * token_rows),
        ("sequence_terms", table.sequence_terms, sequence_rows),
        ("decode_terms", table.decode_terms, sequence_rows * knots[0]),
        ("prefill_terms", table.prefill_terms, knots[1] * knots[2]),
        ("capture", table.capture, 2 * token_rows),
    ):
        if part.num_rows != wanted:
            raise InvariantError(f"{name} of a step table has {part.num_rows} rows; its limits ask for {wanted}")
    captured, tokens = table.capture["captured_tokens"].to_numpy(), np.tile(np.arange(token_rows), 2)
    if ((captured != 0) & ((captured < tokens) | (captured > limits.max_batched_tokens))).any():
        raise InvariantError("a step table captures a graph smaller than its step or larger than the token budget")
