"""Tabulate: the terms of every kernel over every step composition the serving limits allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.lowering.kernel_plan import Kernel
from replay.lowering.op_graph import Axis, ExpertsShape, WaitShape
from replay.tiling.attention import equal_prompts
from replay.tiling.bins import attention_bins, product_bins
from replay.tiling.library import Cost, in_order, merged
from replay.tiling.pricing import Pricer
from replay.tiling.step_table import StepLimits
from replay.tiling.terms import TERM_NAMES, Array, Terms, nothing

KNOTS_PER_OCTAVE = 2
"""Mean contexts and mean keys at which attention is tabulated, per doubling; in between its terms are near linear."""
ROW_KNOTS_PER_OCTAVE = 8
"""Prefill tokens and, beyond DENSE_ROWS, decode sequences at which attention is priced, per doubling."""
DENSE_ROWS = 256
LEAST_KNOT_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabulator:
    """Makes the term tables of a step table; `costs` collects what else is known of each kernel."""

    pricer: Pricer
    limits: StepLimits
    costs: dict[str, Cost] = field(default_factory=dict)

    def terms(self, axis: Axis, kernels: Sequence[Kernel]) -> pa.Table:
        """Return the term table of an axis (see `replay.tiling.step_table`)."""
        make: dict[Axis, Callable[[Sequence[Kernel]], pa.Table]] = {
            "tokens": self._token_terms,
            "sequences": self._sequence_terms,
            "prefill_attention": self._prefill_terms,
            "decode_attention": self._decode_terms,
        }
        return make[axis](kernels)

    def _token_terms(self, kernels: Sequence[Kernel]) -> pa.Table:
        rows_to = self.limits.max_batched_tokens
        index: dict[str, Array] = {"phase": np.repeat([0, 1], rows_to + 1), "tokens": np.tile(np.arange(rows_to + 1), 2)}

        def price(kernel: Kernel) -> Cost:
            if isinstance(kernel.shape, WaitShape):
                return self._wait(next(one for one in kernels if isinstance(one.shape, ExpertsShape)), rows_to)
            return self._by_rows(kernel, rows_to)

        return pa.table(index | self._columns(kernels, price))

    def _wait(self, experts: Kernel, rows_to: int) -> Cost:
        """Return what an average rank, priced before, waits for the busiest one's experts to end: all of it is `sync_s`."""
        busiest = self._by_rows(replace(experts, shape=experts.experts.of_busiest), rows_to)
        wait_s = np.maximum(busiest.time_s - self.costs[experts.id].time_s, 0.0)
        return replace(busiest.unmeasured(nothing(len(wait_s)).with_sync(wait_s)), overlap_exponent=np.inf)

    def _sequence_terms(self, kernels: Sequence[Kernel]) -> pa.Table:
        rows_to = self.limits.max_running
        index: dict[str, Array] = {"sequences": np.arange(rows_to + 1)}
        return pa.table(index | self._columns(kernels, lambda kernel: self._by_rows(kernel, rows_to)))

    def _columns(self, kernels: Sequence[Kernel], price: Callable[[Kernel], Cost]) -> dict[str, Array]:
        columns: dict[str, Array] = {}
        for kernel in kernels:
            cost = self.costs[kernel.id] = price(kernel)
            columns |= cost.terms.columns(kernel.id)
        return columns

    def _by_rows(self, kernel: Kernel, rows_to: int) -> Cost:
        """Return the cost for 0..rows_to rows, one of the kernel's phases after the other; row 0 costs nothing."""
        if not kernel.backends:
            cost = self.pricer.movement(kernel, np.arange(1.0, rows_to + 1.0)).after_nothing(1)
            return merged([cost] * len(kernel.step_phases))
        costs: list[Cost] = []
        priced: dict[object, Cost] = {}
        for bin_ in product_bins(kernel, self.pricer.library.device, self.pricer.mapping, rows_to):
            phaseless = replace(bin_, phase=0)  # most mappings treat both phases alike: price once
            if phaseless not in priced:
                rows = np.arange(float(bin_.first_row), bin_.last_row + 1.0)
                priced[phaseless] = self.pricer.product(kernel, rows, bin_).cost
            cost = priced[phaseless]
            costs.append(cost.after_nothing(1) if bin_.first_row == 1 else cost)
        return merged(costs)

    def by_keys(self, kernel: Kernel, tokens: Array, keys: Array) -> Cost:
        """Return the cost of a kernel whose rows are all keys of the prompts of a step, cached ones included [points].

        A product of more rows than a step has tokens takes the settings of the most tokens.
        """
        sequences, prompt, prefix = equal_prompts(tokens, keys, self.limits.attention_window)
        rows, place = np.unique(np.round(sequences * (prompt + prefix)), return_inverse=True)
        if not kernel.backends:
            cost = self.pricer.movement(kernel, rows)
        else:
            rows_to, costs, places = self.limits.max_batched_tokens, [], []
            for bin_ in product_bins(kernel, self.pricer.library.device, self.pricer.mapping, rows_to):
                covered = np.minimum(rows, rows_to)
                places.append(np.flatnonzero((covered >= bin_.first_row) & (covered <= bin_.last_row)))
                costs.append(self.pricer.product(kernel, rows[places[-1]], bin_).cost)
            cost = in_order(costs, places)
        return cost.take(place)

    def _decode_terms(self, kernels: Sequence[Kernel]) -> pa.Table:
        knots, rows_to = context_knots(self.limits.attention_window_tokens), self.limits.max_running
        index = {"sequences": np.repeat(np.arange(rows_to + 1), len(knots)), "context_tokens": np.tile(knots, rows_to + 1)}

        def price(kernel: Kernel) -> Cost:
            if kernel.phase is None:  # runs for each sequence, whatever its context
                cost = self._by_rows(kernel, rows_to)
                return cost.take(np.repeat(np.arange(rows_to + 1), len(knots)))
            costs = []
            for bin_ in attention_bins(kernel, self.pricer.library.device, self.pricer.mapping, rows_to):
                first = max(bin_.first_row, 1)
                rows = row_knots(first, bin_.last_row, dense=DENSE_ROWS)
                points = np.repeat(rows, len(knots)), np.tile(knots, len(rows))
                cost = self.pricer.attention(kernel, bin_, self.limits.attention_window).decode(*points)
                cost = _spread(cost, rows, np.arange(first, bin_.last_row + 1), len(knots))
                costs.append(cost.after_nothing(len(knots)) if bin_.first_row == 0 else cost)
            return merged(costs)

        return pa.table(index | self._columns(kernels, price))

    def _prefill_terms(self, kernels: Sequence[Kernel]) -> pa.Table:
        keys, rows_to = keys_knots(self.limits.attention_window_tokens), self.limits.max_batched_tokens
        device, mapping = self.pricer.library.device, self.pricer.mapping
        bins = {kernel.id: list(attention_bins(kernel, device, mapping, rows_to)) for kernel in kernels if kernel.phase is not None}
        edges = {float(row) for found in bins.values() for bin_ in found for row in (bin_.first_row, bin_.last_row) if row}
        tokens = np.unique(np.concatenate([row_knots(1, rows_to), sorted(edges)]))
        index = {"tokens": np.repeat(np.append(0.0, tokens), len(keys)), "keys_tokens": np.tile(keys, len(tokens) + 1)}

        def price(kernel: Kernel) -> Cost:
            if kernel.phase is None:
                return self.by_keys(kernel, np.repeat(tokens, len(keys)), np.tile(keys, len(tokens))).after_nothing(len(keys))
            costs = []
            for bin_ in bins[kernel.id]:
                rows = tokens[(tokens >= bin_.first_row) & (tokens <= bin_.last_row)]
                cost = self.pricer.attention(kernel, bin_, self.limits.attention_window).prefill(
                    np.repeat(rows, len(keys)), np.tile(keys, len(rows))
                )
                costs.append(cost.after_nothing(len(keys)) if bin_.first_row == 0 else cost)
            return merged(costs)

        return pa.table(index | self._columns(kernels, price))


def context_knots(longest: int) -> npt.NDArray[np.float64]:
    """Return the mean context lengths at which decode attention is tabulated: 0, then a geometric grid up to `longest`."""
    octaves = np.log2(max(longest, 2 * LEAST_KNOT_TOKENS) / LEAST_KNOT_TOKENS)
    count = int(np.ceil(octaves * KNOTS_PER_OCTAVE)) + 1
    grid = np.round(LEAST_KNOT_TOKENS * 2.0 ** (np.arange(count) / KNOTS_PER_OCTAVE))
    return np.concatenate([[0.0], grid])


def keys_knots(longest: int) -> npt.NDArray[np.float64]:
    """Return the mean keys of a query at which prefill attention is tabulated: 1, then a geometric grid up to `longest`."""
    count = int(np.ceil(np.log2(max(longest, 2)) * KNOTS_PER_OCTAVE)) + 1
    return np.unique(np.minimum(np.round(2.0 ** (np.arange(count) / KNOTS_PER_OCTAVE)), max(longest, 2)))


def row_knots(first: int, last: int, *, dense: int = 1) -> npt.NDArray[np.float64]:
    """Return row counts from `first` to `last` at which attention is priced: all up to `dense`, then a geometric grid."""
    whole = np.arange(first, min(dense, last) + 1)
    count = int(np.ceil(np.log2(max(last, 2)) * ROW_KNOTS_PER_OCTAVE)) + 1
    grid = np.round(2.0 ** (np.arange(count) / ROW_KNOTS_PER_OCTAVE))
    return np.unique(np.concatenate([whole, grid[(grid > first) & (grid < last)], [first, last]])).astype(np.float64)


def _spread(cost: Cost, knots: Array, rows: Array, width: int) -> Cost:
    """Return a cost at `knots` x width as one at every one of `rows` x width, linear in between; measured where both ends are."""
    if len(knots) == len(rows):
        return cost
    low = np.clip(np.searchsorted(knots, rows, side="right") - 1, 0, len(knots) - 2)
    share = ((rows - knots[low]) / (knots[low + 1] - knots[low]))[:, None]
    grids = {name: getattr(cost.terms, name).reshape(-1, width) for name in TERM_NAMES}
    terms = Terms(**{name: (grid[low] + (grid[low + 1] - grid[low]) * share).ravel() for name, grid in grids.items()})
    measured = cost.measured.reshape(-1, width)
    return replace(cost, terms=terms, measured=((measured[low] | (share == 1)) & (measured[low + 1] | (share == 0))).ravel())
