"""Prices of one step, compiled: the rules of `replay.tiling.step_table` on the arrays of `replay.execution.cost_arrays`.

No fast-math: the order of floating-point operations is that of the source, so that the twin's results are equal bit by bit.
"""

from __future__ import annotations

import numpy as np

from replay.compiled import compiled, compiled_part
from replay.execution.step_costs import Floats, Records


@compiled_part
def decode_seconds(step: Records, decode: Records, knots: Floats, slowdown: float) -> float:
    """Seconds of decode attention: terms interpolated between the knots around the mean context, then joined.

    `slowdown` is what the clock multiplies compute times by.
    """
    low, high, share = terms_place(knots, step.decode_context_tokens / step.decode_sequences)
    first = step.decode_sequences * len(knots)
    total_s = 0.0
    for kernel in range(len(decode)):
        start = decode[kernel, first + low]
        launch_s, compute_s, memory_s, sync_s, _ = decode_terms(start, decode[kernel, first + high], share)
        total_s += start.weight * join_terms(launch_s, compute_s * slowdown, memory_s, sync_s, start.exponent)
    return total_s


@compiled_part
def prefill_seconds(step: Records, prefill: Records, token_knots: Floats, keys_knots: Floats, slowdown: float) -> float:
    """Seconds of prefill attention: terms interpolated in tokens and in the mean keys of a query, then joined; as `decode_seconds`."""
    few, many, token_share = terms_place(token_knots, float(step.prefill_tokens))
    low, high, keys_share = terms_place(keys_knots, step.prefill_pairs / step.prefill_tokens)
    few, many = few * len(keys_knots), many * len(keys_knots)
    total_s = 0.0
    for kernel in range(len(prefill)):
        terms = prefill_terms(prefill[kernel], few + low, few + high, many + low, many + high, keys_share, token_share)
        launch_s, compute_s, memory_s, sync_s, _ = terms
        total_s += prefill[kernel, few + low].weight * join_terms(
            launch_s, compute_s * slowdown, memory_s, sync_s, prefill[kernel, few + low].exponent
        )
    return total_s


@compiled_part
def decode_bytes_energy(step: Records, decode: Records, knots: Floats, j_per_byte: Floats) -> float:
    """Energy of what decode attention moves to and from device memory."""
    low, high, share = terms_place(knots, step.decode_context_tokens / step.decode_sequences)
    first = step.decode_sequences * len(knots)
    total_j = 0.0
    for kernel in range(len(decode)):
        total_j += j_per_byte[kernel] * decode_terms(decode[kernel, first + low], decode[kernel, first + high], share)[4]
    return total_j


@compiled_part
def prefill_bytes_energy(step: Records, prefill: Records, token_knots: Floats, keys_knots: Floats, j_per_byte: Floats) -> float:
    """Energy of what prefill attention moves to and from device memory."""
    few, many, token_share = terms_place(token_knots, float(step.prefill_tokens))
    low, high, keys_share = terms_place(keys_knots, step.prefill_pairs / step.prefill_tokens)
    few, many = few * len(keys_knots), many * len(keys_knots)
    total_j = 0.0
    for kernel in range(len(prefill)):
        terms = prefill_terms(prefill[kernel], few + low, few + high, many + low, many + high, keys_share, token_share)
        total_j += j_per_byte[kernel] * terms[4]
    return total_j


@compiled_part
def decode_terms(start: Records, end: Records, share: float) -> tuple[float, float, float, float, float]:
    """Return launch, compute, memory, sync and bytes between two rows of a decode kernel, none below 0."""
    return (
        max(_between(start.launch_s, end.launch_s, share), 0.0),
        max(_between(start.compute_s, end.compute_s, share), 0.0),
        max(_between(start.memory_s, end.memory_s, share), 0.0),
        max(_between(start.sync_s, end.sync_s, share), 0.0),
        max(_between(start.bytes, end.bytes, share), 0.0),
    )


@compiled_part
def prefill_terms(
    rows: Records, few_low: int, few_high: int, many_low: int, many_high: int, keys_share: float, token_share: float
) -> tuple[float, float, float, float, float]:
    """Return launch, compute, memory, sync and bytes between four rows of a prefill kernel, none below 0."""
    a, b, c, d = rows[few_low], rows[few_high], rows[many_low], rows[many_high]
    return (
        _corner(a.launch_s, b.launch_s, c.launch_s, d.launch_s, keys_share, token_share),
        _corner(a.compute_s, b.compute_s, c.compute_s, d.compute_s, keys_share, token_share),
        _corner(a.memory_s, b.memory_s, c.memory_s, d.memory_s, keys_share, token_share),
        _corner(a.sync_s, b.sync_s, c.sync_s, d.sync_s, keys_share, token_share),
        _corner(a.bytes, b.bytes, c.bytes, d.bytes, keys_share, token_share),
    )


@compiled_part
def terms_place(knots: Floats, value: float) -> tuple[int, int, float]:
    """Return the knots around a value and its place between them; the last interval also serves what lies beyond it."""
    low, beyond = 0, max(len(knots) - 1, 1)
    while beyond - low > 1:
        middle = (low + beyond) // 2
        if knots[middle] <= value:
            low = middle
        else:
            beyond = middle
    high = min(low + 1, len(knots) - 1)
    return low, high, max(value - knots[low], 0.0) / (knots[high] - knots[low] if high > low else 1.0)


@compiled_part
def _between(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


@compiled_part
def _corner(few_low: float, few_high: float, many_low: float, many_high: float, keys_share: float, token_share: float) -> float:
    few, many = few_low + (few_high - few_low) * keys_share, many_low + (many_high - many_low) * keys_share
    return max(few + (many - few) * token_share, 0.0)


@compiled
def sum_rows(axis: Records) -> Floats:
    """Return the seconds of all kernels of an axis (TERM [kernels, rows]) for each row [rows]."""
    kernels, rows = axis.shape
    total_s = np.zeros(rows)
    for kernel in range(kernels):
        for row in range(rows):
            term = axis[kernel, row]
            total_s[row] += term.weight * join_terms(term.launch_s, term.compute_s, term.memory_s, term.sync_s, term.exponent)
    return total_s


@compiled_part
def join_terms(launch_s: float, compute_s: float, memory_s: float, sync_s: float, exponent: float) -> float:
    """The rule of `replay.tiling.step_table`, written so that small times raised to large powers do not vanish."""
    larger, smaller = max(launch_s + compute_s, launch_s + memory_s), min(launch_s + compute_s, launch_s + memory_s)
    if np.isinf(exponent) or larger == 0.0:
        return larger + sync_s
    return float(larger * (1.0 + (smaller / larger) ** exponent) ** (1.0 / exponent) + sync_s)
