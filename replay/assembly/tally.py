"""Sums over the steps of a replay, compiled: one pass prices the kernels of each step and adds them up by window.

Imported only when a replay is assembled, for it loads the compiler. Kept machine code is found by this file's time stamp and the
types of the arguments, of which TERM changes with the files of the loop that are used here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replay.compiled import borrowed, compiled, compiled_part, inlined_part
from replay.execution.loop_prices import decode_terms, join_terms, prefill_terms, terms_place
from replay.execution.step_costs import Counts, Floats, Records

DECODES, NEW_PREFILL, OUTPUTS, DECODE_PAIRS, PREFILL_PAIRS = range(5)
"""Places in the amounts of a window: what its steps had to compute, recomputation left out."""
TIME, STALL = range(2)
LAUNCH, COMPUTE, MEMORY, SYNC, BYTES, KERNEL_TIME, KERNEL_STALL = range(7)
"""Places in the sums of a kernel, of one call in each step."""


@compiled
def tally(steps: tuple[Any, ...], rows: tuple[Any, ...], costs: tuple[Any, ...], window_s: float, sums: tuple[Any, ...]) -> None:
    """Add up all steps.

    - `steps`: the columns of STEPS_SCHEMA that STEP_COLUMNS of `replay.assembly.layers` names, what the clock multiplied compute
      times by, `busy_seconds`, and the seconds of swapped blocks.
    - `rows`: times and stalls at the full clock of token-wise kernels [phase and tokens, layers] and of those by sequences [sequences,
      layers]; TERM of both, for other clocks; and the layer of each kernel on each axis (tokens, sequences, decode, prefill).
    - `costs`: `decode`, `context_knots`, `prefill`, `token_knots`, `keys_knots` of CostArrays.
    - `sums`, added to: by layer, `host` and the whole step [windows, layers + 2, TIME and STALL]; amounts [windows, 5]; uses of
      token rows and of sequence rows at the full clock; sums of the kernels on each axis [kernels, 7], without those uses; and room for
      a step [layers, TIME and STALL].
    """
    start_s, end_s, compile_s, device_s, host_s = steps[:5]
    tokens, sequences, decodes, contexts, prefill_tokens, pairs, recomputed, outputs, captured, slowdowns, busy_s, swap_s = steps[5:]
    token_rows, sequence_rows, token_terms, sequence_terms, token_layers, sequence_layers, decode_layers, prefill_layers = rows
    decode, context_knots, prefill, token_knots, keys_knots = costs
    by_layer, amounts, token_uses, sequence_uses, token_sums, sequence_sums, decode_sums, prefill_sums, now = sums
    decode, prefill, decode_sums, prefill_sums = borrowed(decode), borrowed(prefill), borrowed(decode_sums), borrowed(prefill_sums)
    now, context_knots, token_knots, keys_knots = borrowed(now), borrowed(context_knots), borrowed(token_knots), borrowed(keys_knots)
    layers, phase_rows = token_rows.shape[1], len(token_uses) // 2
    for step in range(len(start_s)):
        window = int(np.floor(start_s[step] / window_s))
        row = captured[step] if captured[step] > 0 else tokens[step]
        row += phase_rows if prefill_tokens[step] > 0 else 0
        slowdown = slowdowns[step]
        if slowdown == 1.0:
            token_uses[row] += 1
            sequence_uses[sequences[step]] += 1
            for layer in range(layers):
                now[layer, TIME] = token_rows[row, layer, TIME] + sequence_rows[sequences[step], layer, TIME]
                now[layer, STALL] = token_rows[row, layer, STALL] + sequence_rows[sequences[step], layer, STALL]
        else:
            now[:] = 0.0
            _add_rows(token_terms[:, row], slowdown, token_sums, token_layers, now)
            _add_rows(sequence_terms[:, sequences[step]], slowdown, sequence_sums, sequence_layers, now)
        if decodes[step] > 0:
            first = decodes[step] * len(context_knots)
            low, high, share = terms_place(context_knots, contexts[step] / decodes[step])
            for kernel in range(len(decode)):
                terms = decode_terms(decode[kernel, first + low], decode[kernel, first + high], share)
                _add_kernel(terms, slowdown, decode[kernel, first + low], decode_sums[kernel], now[decode_layers[kernel]])
        share_new = 1.0
        if prefill_tokens[step] > 0:
            share_new -= recomputed[step] / prefill_tokens[step]
            few, many, token_share = terms_place(token_knots, float(prefill_tokens[step]))
            low, high, keys_share = terms_place(keys_knots, pairs[step] / prefill_tokens[step])
            few, many = few * len(keys_knots), many * len(keys_knots)
            for kernel in range(len(prefill)):
                terms = prefill_terms(prefill[kernel], few + low, few + high, many + low, many + high, keys_share, token_share)
                _add_kernel(terms, slowdown, prefill[kernel, few + low], prefill_sums[kernel], now[prefill_layers[kernel]])
        stall_s = 0.0
        for layer in range(layers):
            by_layer[window, layer, TIME] += now[layer, TIME]
            by_layer[window, layer, STALL] += now[layer, STALL]
            stall_s += now[layer, STALL]
        by_layer[window, layers, TIME] += max(host_s[step] - device_s[step], 0.0) + compile_s[step] + swap_s[step]
        if busy_s[step] < end_s[step] - start_s[step]:  # it overlaps the step before it in a pipeline
            stall_s *= busy_s[step] / (max(device_s[step], host_s[step]) + compile_s[step])
        by_layer[window, layers + 1, TIME] += busy_s[step]
        by_layer[window, layers + 1, STALL] += stall_s
        amounts[window, DECODES] += decodes[step]
        amounts[window, NEW_PREFILL] += prefill_tokens[step] - recomputed[step]
        amounts[window, OUTPUTS] += outputs[step]
        amounts[window, DECODE_PAIRS] += contexts[step]
        amounts[window, PREFILL_PAIRS] += pairs[step] * share_new


@compiled_part
def _add_rows(row: Records, slowdown: float, sums: Floats, places: Counts, now: Floats) -> None:
    """Add all kernels of an axis of rows, TERM [kernels], in one step."""
    for kernel in range(len(row)):
        term = row[kernel]
        terms = (term.launch_s, term.compute_s, term.memory_s, term.sync_s, term.bytes)
        _add_kernel(terms, slowdown, term, sums[kernel], now[places[kernel]])


@inlined_part
def _add_kernel(terms: tuple[float, float, float, float, float], slowdown: float, entry: Records, sums: Floats, layer: Floats) -> None:
    """Add one kernel in one step to its own sums and to its layer's in the step."""
    launch_s, compute_s, memory_s, sync_s, moved_bytes = terms
    compute_s *= slowdown
    time_s = join_terms(launch_s, compute_s, memory_s, sync_s, entry.exponent)
    stall_s = time_s - join_terms(launch_s, compute_s, 0.0, sync_s, entry.exponent)
    sums[LAUNCH] += launch_s
    sums[COMPUTE] += compute_s
    sums[MEMORY] += memory_s
    sums[SYNC] += sync_s
    sums[BYTES] += moved_bytes
    sums[KERNEL_TIME] += time_s
    sums[KERNEL_STALL] += stall_s
    layer[TIME] += entry.weight * time_s
    layer[STALL] += entry.weight * stall_s
