"""Power and heat of the device in a replay: the rules, and the arrays that `replay.execution.loop_power` follows them on.

- A step draws `idle_w` for as long as it lasts, and on top the energy of its FLOPs (padding of captured graphs included) and of the
  bytes that it moves to and from device memory. Between steps, and while a step waits for its kernels to be compiled, the device draws
  `idle_w`.
- The moving average of the power is exponential, with the time constant `average_s`. The temperature is that of one thermal resistance
  and one heat capacity: `ambient_c` + resistance x the exponential average of the power with the time constant `thermal_s`. A step's
  power counts as constant while the step lasts. Both begin where an idle device rests, and each replica has its own.
- Each step runs at the highest clock at which neither the average ends above `cap_w` nor the temperature above `throttle_c`, and at the
  lowest where none keeps them. So the governor neither overshoots nor hunts; a real one, which reacts afterwards, does a little of both.
- At a clock below the full one, compute times are longer in proportion; memory, launch and synchronisation times and energies are the
  same, and so is the time of swapped blocks, in which the device draws `idle_w` (what memory and link spend on them is left out).
  Lower voltage at lower clocks is not modelled: it would save energy, so that sustained figures are on the low side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from replay.execution.cost_arrays import kernel_rows
from replay.execution.step_costs import Counts, Floats, Records, check_factors
from replay.tiling.step_table import StepPower, StepTable

POWER = np.dtype(
    [
        (name, np.float64)
        for name in (
            "idle_w", "cap_w", "average_s", "idle_c", "throttle_c", "k_per_w", "thermal_s", "ranks",
            "decode_token_j", "decode_pair_j", "prefill_token_j", "prefill_pair_j",
            "average_w", "temperature_c", "level",
        )
    ]
)  # fmt: skip
"""What a device may draw, what FLOPs of attention cost it, where it stands after the last step, and the last clock below the first."""
POWERED = np.dtype([(name, np.float64) for name in ("clock_hz", "energy_j", "temperature_c")])
"""Columns of STEPS_SCHEMA that only a device with power has."""


class PowerArrays(NamedTuple):
    """What the loop works on where the device has power."""

    power: Records
    """POWER [1]"""
    record: Records
    """POWERED, beside the recorded steps."""
    clocks_hz: Floats
    slowdowns: Floats
    """What compute times are multiplied by at each clock [clocks]."""
    token_terms: Records
    """TERM [kernels, (phase, tokens)]"""
    token_s: Floats
    """Times of token-wise kernels by clock and row, 0 until they are needed [clocks, (phase, tokens)]."""
    token_j: Floats
    sequence_terms: Records
    """TERM [kernels, sequences]"""
    sequence_s: Floats
    sequence_j: Floats
    decode_j_per_byte: Floats
    """Energy of a byte that a call moves, over all calls of a step [kernels]."""
    prefill_j_per_byte: Floats


def new_power(table: StepTable, kernel_factors: Mapping[str, float] | None, record_steps: int) -> PowerArrays | None:
    """Return the arrays of an idle device; None where the table has no power. Factors scale times, not energies."""
    if table.power is None:
        return None
    power, factors = table.power, check_factors(table, kernel_factors)
    clocks_hz = np.array(power.clocks_hz)
    rows = {
        axis: kernel_rows(table, axis, terms, factors)
        for axis, terms in (("tokens", table.token_terms), ("sequences", table.sequence_terms))
    }
    decode, prefill = _Energies(table, power, "decode_attention"), _Energies(table, power, "prefill_attention")
    flops_j = {"decode_token_j": decode.per_row(), "decode_pair_j": decode.per_pair()}
    flops_j |= {"prefill_token_j": prefill.per_row(), "prefill_pair_j": prefill.per_pair()}
    return PowerArrays(
        power=_idle(power, flops_j),
        record=np.zeros(record_steps, dtype=POWERED),
        clocks_hz=clocks_hz,
        slowdowns=power.full_clock_hz / clocks_hz,
        token_terms=rows["tokens"],
        token_s=np.zeros((len(clocks_hz), table.token_terms.num_rows)),
        token_j=_Energies(table, power, "tokens").of_rows(table.token_terms, "tokens"),
        sequence_terms=rows["sequences"],
        sequence_s=np.zeros((len(clocks_hz), table.sequence_terms.num_rows)),
        sequence_j=_Energies(table, power, "sequences").of_rows(table.sequence_terms, "sequences"),
        decode_j_per_byte=decode.per_byte(),
        prefill_j_per_byte=prefill.per_byte(),
    )


def replicated(power: PowerArrays, count: int) -> PowerArrays:
    """Return the arrays of so many idle replicas: `power` [replicas], `record` [replicas, steps], all others shared."""
    return power._replace(power=np.tile(power.power, count), record=np.tile(power.record, (count, 1)))


class PoweredColumns:
    """Recorded steps by column of POWERED; no columns where there is no record, for the device has no power."""

    def __init__(self, record: Records | None) -> None:
        self._record, self._recorded = record, list[Records]()

    def drain(self, state: Records) -> None:
        """Take what stands beside the recorded steps, before those are drained."""
        if self._record is not None:
            self._recorded.append(self._record[: int(state["steps"][0])].copy())

    def columns(self) -> dict[str, Counts | Floats]:
        """Return the columns of the steps that were taken."""
        if self._record is None:
            return {}
        joined = np.concatenate([self._record[:0], *self._recorded])
        return {name: np.ascontiguousarray(joined[name]) for name in POWERED.names or ()}


def _idle(power: StepPower, flops_j: dict[str, float]) -> Records:
    idle_c = power.ambient_c + power.thermal_resistance_k_per_w * power.idle_w
    start = np.zeros(1, dtype=POWER)
    for name in ("idle_w", "cap_w", "average_s", "throttle_c", "thermal_s"):
        start[name] = getattr(power, name)
    start["k_per_w"], start["ranks"], start["idle_c"] = power.thermal_resistance_k_per_w, power.ranks_count, idle_c
    start["average_w"], start["temperature_c"] = power.idle_w, idle_c
    for name, energy_j in flops_j.items():
        start[name] = energy_j
    return start


class _Energies:
    """Energies of the kernels of an axis on one device."""

    def __init__(self, table: StepTable, power: StepPower, axis: str) -> None:
        entries = zip(table.kernels.to_pylist(), power.flop_energy_j, strict=True)
        self.kernels = [(entry, flop_j / power.ranks_count) for entry, flop_j in entries if entry["axis"] == axis]
        self.byte_j = power.memory_energy_j_per_byte

    def per_row(self) -> float:
        """Of the FLOPs of one token or sequence."""
        return float(sum(flop_j * (entry["flops_per_token"] + entry["flops_per_sequence"]) for entry, flop_j in self.kernels))

    def per_pair(self) -> float:
        """Of the FLOPs of one (query, key) pair."""
        return float(sum(flop_j * entry["flops_per_pair"] for entry, flop_j in self.kernels))

    def per_byte(self) -> Floats:
        """Of one byte of each call, over all calls of a step [kernels]."""
        return np.array([entry["calls_count"] * self.byte_j for entry, _ in self.kernels], dtype=np.float64)

    def of_rows(self, terms: pa.Table, index: str) -> Floats:
        """Of each row of a term table whose column `index` counts what the kernels compute [rows]."""
        energy_j: Floats = self.per_row() * terms[index].to_numpy()
        for entry, _ in self.kernels:
            energy_j = energy_j + entry["calls_count"] * self.byte_j * terms[f"{entry['kernel']}.bytes"].to_numpy()
        return energy_j
