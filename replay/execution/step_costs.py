"""Prices of steps of given shapes, kernel by kernel, vectorised: what `replay.tiling.step_table` says, for many steps at once.

The compiled loop prices each step as it happens (`replay.execution.cost_arrays`); this form prices steps that are already
known: a candidate's table on a baseline's recorded steps, or the share of each kernel in a finished replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import InvariantError, SpecError, nearest
from replay.execution.tables import SHAPE_COLUMNS
from replay.tiling.step_table import TERMS, StepTable
from replay.tiling.terms import combine

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Records = Any
"""A structured array, or one record of it; the type checker knows no named fields of arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedKernel:
    """One kernel over some steps. Its terms are stored once per distinct row; `row` says which one each step uses.

    Arrays of terms are [rows] and stand for *one* call; `weight` is calls per step times the kernel's factor.
    """

    kernel: str
    layer_type: str
    axis: str
    weight: float
    overlap_exponent: float
    flops_per_token: float
    flops_per_sequence: float
    flops_per_pair: float
    compute_s: Floats
    memory_s: Floats
    launch_s: Floats
    sync_s: Floats
    bytes: Floats
    measured_ratio: Floats
    """Share of the row's cost that timings of the kernel decide, not its model."""
    row: Counts
    """[steps]"""

    @property
    def time_s(self) -> Floats:
        """Joined time of one call [rows]."""
        return combine(self.compute_s, self.memory_s, self.launch_s, self.sync_s, self.overlap_exponent)

    @property
    def stall_s(self) -> Floats:
        """Time of one call minus its time with infinite memory bandwidth [rows]."""
        without_memory = combine(self.compute_s, np.zeros_like(self.memory_s), self.launch_s, self.sync_s, self.overlap_exponent)
        return np.asarray(self.time_s - without_memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Times of steps [steps]."""

    device_s: Floats
    host_s: Floats
    captured_tokens: Counts
    """Size of the captured graph each step replays, 0 where it runs eagerly."""
    overlap: bool
    """Whether device and host work side by side."""

    @property
    def duration_s(self) -> Floats:
        """The larger of device and host time: the host prepares launches while the device works; without overlap, both."""
        return np.maximum(self.device_s, self.host_s) if self.overlap else self.device_s + self.host_s


def step_seconds(table: StepTable, steps: pa.Table, *, kernel_factors: Mapping[str, float] | None = None) -> StepSeconds:
    """Return the time that steps of the given shapes (SHAPE_COLUMNS of `steps`, and `swapped_blocks` if it has them) take under `table`.

    Agrees with a replay's own prices at the full clock to rounding (1e-12 relative). `kernel_factors` scales a kernel's whole time.

    Raises:
        InvariantError: a step is larger than the table's limits; select with `covered_steps` first.
        SpecError: a factor names no kernel, or is not a finite number >= 0.
    """
    device_s: Floats = np.zeros(steps.num_rows)
    for kernel in price_kernels(table, steps, kernel_factors=kernel_factors):
        device_s += (kernel.weight * kernel.time_s)[kernel.row]
    device_s += swap_seconds(table, steps)
    captured = _captured_tokens(table, _shapes(steps))
    host_s = np.where(captured > 0, table.host_graph_launch_s, table.eager_host_s(steps["prefill_tokens"].to_numpy() > 0))
    return StepSeconds(device_s=device_s, host_s=host_s, captured_tokens=captured, overlap=table.limits.host_overlap)


def swap_seconds(table: StepTable, steps: pa.Table) -> Floats:
    """Return the time for which each step moves cache blocks over the host link; 0 where steps do not say how many [steps]."""
    if "swapped_blocks" not in steps.column_names:
        return np.zeros(steps.num_rows)
    return np.asarray(steps["swapped_blocks"].to_numpy() * table.pool.block_swap_s)


def covered_steps(table: StepTable, steps: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which steps [steps] are within the table's token and sequence limits, so that it has a price for them."""
    shapes = _shapes(steps)
    return np.asarray((shapes["tokens"] <= table.limits.max_batched_tokens) & (shapes["sequences"] <= table.limits.max_running))


def price_kernels(table: StepTable, steps: pa.Table, *, kernel_factors: Mapping[str, float] | None = None) -> Iterator[PricedKernel]:
    """Yield every kernel of the table, in its order, with the terms that the given steps use; errors as `step_seconds`."""
    factors = check_factors(table, kernel_factors)
    if not covered_steps(table, steps).all():
        limits = table.limits
        raise InvariantError(f"steps beyond {limits.max_batched_tokens} tokens or {limits.max_running} sequences have no price")
    shapes = _shapes(steps)
    token_rows = _token_rows(table, shapes)
    for entry in table.kernels.to_pylist():
        name, axis = entry["kernel"], entry["axis"]
        if axis == "tokens":
            terms, rows = _row_terms(table, table.token_terms, name), token_rows
        elif axis == "sequences":
            terms, rows = _row_terms(table, table.sequence_terms, name), shapes["sequences"]
        else:
            priced, busy = (_decode_terms, "decode_sequences") if axis == "decode_attention" else (_prefill_terms, "prefill_tokens")
            terms, rows = _where_busy(priced, table, name, shapes, shapes[busy] > 0)
        fields: dict[str, Any] = {key: value for key, value in entry.items() if key in PricedKernel.__dataclass_fields__}
        yield PricedKernel(weight=entry["calls_count"] * factors.get(name, 1.0), row=rows, **fields, **terms)


def check_factors(table: StepTable, kernel_factors: Mapping[str, float] | None) -> dict[str, float]:
    """Return the factors as a dictionary.

    Raises:
        SpecError: a factor names no kernel, or is not a finite number >= 0.
    """
    factors = dict(kernel_factors or {})
    known = table.kernels["kernel"].to_pylist()
    for name, factor in factors.items():
        if name not in known:
            raise SpecError(
                "kernel_factors", f"unknown kernel {name!r}{nearest(name, known)}", ", ".join(known), "name a kernel of the table"
            )
        if not 0.0 <= factor < np.inf:
            raise SpecError("kernel_factors", f"{name} has the factor {factor}", "a finite number >= 0", "correct the factor")
    return factors


def _shapes(steps: pa.Table) -> dict[str, Counts]:
    return {name: steps[name].to_numpy() for name in SHAPE_COLUMNS}


def _row_terms(table: StepTable, terms: pa.Table, kernel: str) -> dict[str, Any]:
    """Return the terms of a kernel by row of its table, and `measured_ratio`: 1 where timings decide them, else 0."""
    measured = np.zeros(terms.num_rows)
    for entry in table.measured.filter(pc.equal(table.measured["kernel"], kernel)).to_pylist() if table.measured.num_rows else ():
        measured[entry["first_row"] : entry["last_row"] + 1] = 1.0
    return {**{name: terms[f"{kernel}.{name}"].to_numpy() for name in TERMS}, "measured_ratio": measured}


def _phase_rows(table: StepTable, shapes: dict[str, Counts]) -> Counts:
    """First row of each step's phase in the tables by (phase, tokens) [steps]."""
    return np.asarray((shapes["prefill_tokens"] > 0) * (table.limits.max_batched_tokens + 1), dtype=np.int64)


def _captured_tokens(table: StepTable, shapes: dict[str, Counts]) -> Counts:
    return np.asarray(table.capture["captured_tokens"].to_numpy()[_phase_rows(table, shapes) + shapes["tokens"]])


def _token_rows(table: StepTable, shapes: dict[str, Counts]) -> Counts:
    """Row of `token_terms` each step uses: a captured graph computes its own size, padding included [steps]."""
    captured = _captured_tokens(table, shapes)
    return _phase_rows(table, shapes) + np.where(captured > 0, captured, shapes["tokens"])


def _where_busy(
    priced: Callable[[StepTable, str, dict[str, Counts]], dict[str, Floats]],
    table: StepTable,
    kernel: str,
    shapes: dict[str, Counts],
    busy: npt.NDArray[np.bool_],
) -> tuple[dict[str, Floats], Counts]:
    """Return the terms of the steps that run a kernel, then of one that does not, and the row of each step among them."""
    some = {name: column[busy] for name, column in shapes.items()}
    terms = {name: np.append(column, 0.0) for name, column in priced(table, kernel, some).items()}
    return terms, np.where(busy, np.cumsum(busy) - 1, busy.sum())


def _decode_terms(table: StepTable, kernel: str, shapes: dict[str, Counts]) -> dict[str, Floats]:
    """Terms of a decode kernel for steps that decode: interpolated in the mean context, held constant below the first knot,
    continued in a straight line beyond the last (never below 0).
    """
    sequences = shapes["decode_sequences"]
    knots = table.context_knots
    low, high, share = _cells(knots, shapes["decode_context_tokens"] / sequences)
    terms: dict[str, Floats] = {}
    for name, column in _row_terms(table, table.decode_terms, kernel).items():
        grid = column.reshape(-1, len(knots))
        start = grid[sequences, low]
        terms[name] = np.maximum(start + (grid[sequences, high] - start) * share, 0.0)
    return terms | {"measured_ratio": np.minimum(terms["measured_ratio"], 1.0)}


def _prefill_terms(table: StepTable, kernel: str, shapes: dict[str, Counts]) -> dict[str, Floats]:
    """Terms of a prefill kernel for steps with prefill tokens: interpolated in tokens and in the mean keys of a query, as decode's are."""
    tokens = shapes["prefill_tokens"]
    few, many, token_share = _cells(table.token_knots, tokens.astype(np.float64))
    low, high, keys_share = _cells(table.keys_knots, shapes["prefill_pairs"] / tokens)
    terms: dict[str, Floats] = {}
    for name, column in _row_terms(table, table.prefill_terms, kernel).items():
        grid = column.reshape(len(table.token_knots), -1)
        start = grid[few, low] + (grid[few, high] - grid[few, low]) * keys_share
        end = grid[many, low] + (grid[many, high] - grid[many, low]) * keys_share
        terms[name] = np.maximum(start + (end - start) * token_share, 0.0)
    return terms | {"measured_ratio": np.minimum(terms["measured_ratio"], 1.0)}


def _cells(knots: Floats, values: Floats) -> tuple[Counts, Counts, Floats]:
    """Return the knots around each value and its place between them: below the first 0, beyond the last above 1."""
    low = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, max(len(knots) - 2, 0))
    high = np.minimum(low + 1, len(knots) - 1)
    gap = np.where(high > low, knots[high] - knots[low], 1.0)  # with a single knot both ends are the same
    return low, high, np.maximum(values - knots[low], 0.0) / gap
