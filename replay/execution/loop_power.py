"""A step on a device with power and heat, compiled: the rules of `replay.execution.power_arrays`.

No fast-math: the order of floating-point operations is that of the source, so that the twin's results are equal bit by bit.
"""

from __future__ import annotations

import math
from typing import Any

from replay.compiled import borrowed, compiled_part, inlined_part
from replay.execution.loop_prices import decode_bytes_energy, decode_seconds, join_terms, prefill_bytes_energy, prefill_seconds
from replay.execution.step_costs import Floats, Records


@inlined_part
def powered_step(
    state: Records, limits: Records, step: Records, row: int, idle_since_s: float, costs: tuple[Any, ...], arrays: tuple[Any, ...]
) -> None:
    """Choose the clock of a composed step, price it, and bring the device, idle since the last one, to its end.

    `row` is that of the token-wise kernels.

    `costs` are `decode`, `context_knots`, `prefill`, `token_knots`, `keys_knots` of CostArrays, `arrays` what `borrowed_power` returns.
    """
    board, times, energies = arrays
    powers, clocks_hz, record = board
    power = powers[0]
    idle_s = max(state.clock_s - idle_since_s, 0.0) + step.compile_s
    if idle_s > 0.0:
        power.average_w, power.temperature_c = _after(power, idle_s, 0.0)
    active_j, level = _active_energy(step, row, power, costs, energies), 0
    step.device_s = _device_seconds(step, limits, row, 0, costs, times)
    after = _after(power, joined_seconds(step.device_s, step.host_s, limits), active_j)
    if not _kept(power, after):
        level = _highest_level(step, limits, row, active_j, costs, arrays)
        step.device_s = _device_seconds(step, limits, row, level, costs, times)
        after = _after(power, joined_seconds(step.device_s, step.host_s, limits), active_j)
    power.average_w, power.temperature_c = after
    powered = record[state.steps]
    powered.clock_hz, powered.temperature_c = clocks_hz[level], power.temperature_c
    powered.energy_j = (power.idle_w * (joined_seconds(step.device_s, step.host_s, limits) + step.compile_s) + active_j) * power.ranks


@inlined_part
def joined_seconds(device_s: float, host_s: float, limits: Records) -> float:
    """Return what a step takes: the longer of device and host time or, where they do not overlap, both."""
    return float(max(device_s, host_s) if limits.host_overlap else device_s + host_s)


@inlined_part
def borrowed_power(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the fields of PowerArrays without owners, in three tuples: the device and its record, times, energies."""
    power, record, clocks_hz, slowdowns, token_terms, token_s, token_j, sequence_terms, sequence_s, sequence_j, decode_j, prefill_j = arrays
    return (
        (borrowed(power), borrowed(clocks_hz), borrowed(record)),
        (borrowed(slowdowns), borrowed(token_terms), borrowed(token_s), borrowed(sequence_terms), borrowed(sequence_s)),
        (borrowed(token_j), borrowed(sequence_j), borrowed(decode_j), borrowed(prefill_j)),
    )


@compiled_part
def _highest_level(step: Records, limits: Records, row: int, active_j: float, costs: tuple[Any, ...], arrays: tuple[Any, ...]) -> int:
    """Return the highest clock below the first at which the limits are kept, else the last.

    A slower step draws less at each moment, so that what one clock keeps all below it do. The search starts where the last one
    ended and widens in doubling strides.
    """
    board, times, _ = arrays
    powers, clocks_hz, _ = board
    power = powers[0]
    broken, kept = 0, len(clocks_hz) - 1
    level, stride = int(power.level), 1
    while kept - broken > 1:
        if level <= broken or level >= kept:
            level = (broken + kept) // 2
        device_s = _device_seconds(step, limits, row, level, costs, times)
        if _kept(power, _after(power, joined_seconds(device_s, step.host_s, limits), active_j)):
            kept, level = level, level - stride
        else:
            broken, level = level, level + stride
        stride *= 2
    power.level = kept
    return kept


@inlined_part
def _kept(power: Records, after: tuple[float, float]) -> bool:
    """Return whether average power and temperature are within the limits."""
    return bool(after[0] <= power.cap_w and after[1] <= power.throttle_c)


@inlined_part
def _after(power: Records, duration_s: float, active_j: float) -> tuple[float, float]:
    """Return average power and temperature after a time in which the device draws `active_j` beside its idle power."""
    return (
        _nearer(power.average_w, power.idle_w, active_j, duration_s, power.average_s),
        _nearer(power.temperature_c, power.idle_c, active_j * power.k_per_w, duration_s, power.thermal_s),
    )


@inlined_part
def _nearer(value: float, rest: float, active: float, duration_s: float, constant_s: float) -> float:
    """Return an exponential average after a time in which it nears `rest` + `active` / duration."""
    share = -math.expm1(-duration_s / constant_s)
    rate = share / duration_s if duration_s > 0.0 else 1.0 / constant_s
    return value + (rest - value) * share + active * rate


@inlined_part
def _active_energy(step: Records, row: int, power: Records, costs: tuple[Any, ...], energies: tuple[Any, ...]) -> float:
    """Return what a step costs beside idle power, whatever the clock."""
    decode, context_knots, prefill, token_knots, keys_knots = costs
    token_j, sequence_j, decode_j_per_byte, prefill_j_per_byte = energies
    energy_j: float = token_j[row] + sequence_j[step.sequences]
    if step.decode_sequences > 0:
        energy_j += power.decode_token_j * step.decode_sequences + power.decode_pair_j * step.decode_context_tokens
        energy_j += decode_bytes_energy(step, decode, context_knots, decode_j_per_byte)
    if step.prefill_tokens > 0:
        energy_j += power.prefill_token_j * step.prefill_tokens + power.prefill_pair_j * step.prefill_pairs
        energy_j += prefill_bytes_energy(step, prefill, token_knots, keys_knots, prefill_j_per_byte)
    return energy_j


@inlined_part
def _device_seconds(step: Records, limits: Records, row: int, level: int, costs: tuple[Any, ...], times: tuple[Any, ...]) -> float:
    """Return the device time of a step at a clock; swapped blocks take as long at each."""
    decode, context_knots, prefill, token_knots, keys_knots = costs
    slowdowns, token_terms, token_s, sequence_terms, sequence_s = times
    slowdown = slowdowns[level]
    device_s: float = _row_seconds(token_terms, token_s, level, row, slowdown)
    device_s += _row_seconds(sequence_terms, sequence_s, level, step.sequences, slowdown)
    if step.decode_sequences > 0:
        device_s += decode_seconds(step, decode, context_knots, slowdown)
    if step.prefill_tokens > 0:
        device_s += prefill_seconds(step, prefill, token_knots, keys_knots, slowdown)
    if step.swapped_blocks > 0:
        device_s += step.swapped_blocks * limits.block_swap_s
    return device_s


@compiled_part
def _row_seconds(terms: Records, known_s: Floats, level: int, row: int, slowdown: float) -> float:
    """Return the time of all kernels of an axis at a row, which `known_s` [clocks, rows] remembers."""
    if known_s[level, row] == 0.0:
        total_s = 0.0
        for kernel in range(len(terms)):
            term = terms[kernel, row]
            joined_s = join_terms(term.launch_s, term.compute_s * slowdown, term.memory_s, term.sync_s, term.exponent)
            total_s += term.weight * joined_s
        known_s[level, row] = total_s
    return float(known_s[level, row])
