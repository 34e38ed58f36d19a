"""A StepTable as the flat arrays that the replay loop reads: one lookup or a few operations per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from replay.errors import InvariantError
from replay.execution.step_costs import Counts, Floats, check_factors, context_knots
from replay.tiling.step_table import StepTable

LOOP_TERMS = ("launch_s", "compute_s", "memory_s", "sync_s")
LOOP_PREFILL_TERMS = ("launch_s", "compute_s_per_pair", "memory_s_per_pair", "memory_s_per_token", "memory_s_per_context_token")


class AxisTerms(NamedTuple):
    """The kernels of one axis. Compiled code takes named tuples, not dataclasses."""

    terms: Floats
    """[kernels, rows, terms] of one call; rows of decode attention are (sequences, knots)."""
    weight: Floats
    """Calls per step x factor [kernels]."""
    exponent: Floats
    """[kernels]"""


class CostArrays(NamedTuple):
    """What a step costs."""

    tokens: AxisTerms
    """Rows are (phase, tokens) with max_batched_tokens + 1 rows a phase."""
    sequences: AxisTerms
    decode: AxisTerms
    prefill: AxisTerms
    knots: Floats
    """Context lengths of the decode rows, ascending [knots]."""
    captured_tokens: Counts
    """Graph size by (phase, tokens), 0 = eager."""
    eager_host_s: float
    captured_host_s: float


def flatten(table: StepTable, kernel_factors: Mapping[str, float] | None = None) -> CostArrays:
    """Return the arrays of a table, each kernel's time scaled by its factor.

    Raises:
        InvariantError: the table breaks its own contract (missing rows, a graph larger than the token budget, limits below 1).
        SpecError: a factor names no kernel, or is not a finite number >= 0.
    """
    factors = check_factors(table, kernel_factors)
    _check_table(table)
    return CostArrays(
        tokens=_axis(table, "tokens", table.token_terms, LOOP_TERMS, factors),
        sequences=_axis(table, "sequences", table.sequence_terms, LOOP_TERMS, factors),
        decode=_axis(table, "decode_attention", table.decode_terms, LOOP_TERMS, factors),
        prefill=_axis(table, "prefill_attention", table.prefill_terms, LOOP_PREFILL_TERMS, factors),
        knots=context_knots(table),
        captured_tokens=np.array(table.capture["captured_tokens"].to_numpy(), dtype=np.int64),
        eager_host_s=float(table.launches_count * table.host_launch_s),
        captured_host_s=float(table.host_graph_launch_s),
    )


def _axis(table: StepTable, axis: str, terms: pa.Table, names: tuple[str, ...], factors: Mapping[str, float]) -> AxisTerms:
    entries = [entry for entry in table.kernels.to_pylist() if entry["axis"] == axis]
    values = np.empty((len(entries), terms.num_rows, len(names)))
    for index, entry in enumerate(entries):
        for column, name in enumerate(names):
            values[index, :, column] = terms[f"{entry['kernel']}.{name}"].to_numpy()
    weight = [entry["calls_count"] * factors.get(entry["kernel"], 1.0) for entry in entries]
    exponent = [entry["overlap_exponent"] for entry in entries]
    return AxisTerms(terms=values, weight=np.array(weight, dtype=np.float64), exponent=np.array(exponent, dtype=np.float64))


def _check_table(table: StepTable) -> None:
    limits = table.limits
    token_rows, sequence_rows = limits.max_batched_tokens + 1, limits.max_running + 1
    knots = len(context_knots(table))
    rows = (
        ("token_terms", table.token_terms, 2 * token_rows),
        ("sequence_terms", table.sequence_terms, sequence_rows),
        ("decode_terms", table.decode_terms, sequence_rows * knots),
        ("prefill_terms", table.prefill_terms, token_rows),
        ("capture", table.capture, 2 * token_rows),
    )
    if min(limits.max_running, limits.max_batched_tokens, limits.attention_window_tokens, table.pool.block_tokens, knots) < 1:
        raise InvariantError(f"a step table has a limit below 1: {limits}, {table.pool}, {knots} knots")
    for name, part, wanted in rows:
        if part.num_rows != wanted:
            raise InvariantError(f"{name} of a step table has {part.num_rows} rows; its limits ask for {wanted}")
    captured = table.capture["captured_tokens"].to_numpy()
    tokens = np.tile(np.arange(token_rows), 2)
    if ((captured != 0) & ((captured < tokens) | (captured > limits.max_batched_tokens))).any():
        raise InvariantError("a step table captures a graph smaller than its step or larger than the token budget")
