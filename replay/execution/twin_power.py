"""Power and heat of the plain replay: the clock of one step at a time, from the table's own columns."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from replay.execution.twin_prices import Prices
from replay.tiling.step_table import StepPower


class Board:
    """A device that draws power and warms; it knows the prices of steps at each clock."""

    def __init__(self, prices: Prices, power: StepPower) -> None:
        self.prices, self.power = prices, power
        self.idle_c = self.power.ambient_c + self.power.thermal_resistance_k_per_w * self.power.idle_w
        self.average_w, self.temperature_c = self.power.idle_w, self.idle_c

    def run(self, step: dict[str, Any], idle_s: float, *, eager: bool) -> dict[str, Any]:
        """Rest, also while kernels are compiled, run a step of such counts, and return the columns that say what it cost."""
        self.average_w, self.temperature_c = self.at_the_end_of(idle_s + step["compile_s"], 0.0)
        price = partial(self.prices.price, step, eager=eager)
        active_j = self.active_energy(step, price()["captured_tokens"] or step["tokens"])
        for clock_hz in self.power.clocks_hz:
            priced = price(slowdown=self.power.full_clock_hz / clock_hz)
            both = (priced["device_s"], priced["host_s"])
            duration_s = max(both) if self.prices.table.limits.host_overlap else sum(both)
            average_w, temperature_c = self.at_the_end_of(duration_s, active_j)
            if average_w <= self.power.cap_w and temperature_c <= self.power.throttle_c:
                break
        self.average_w, self.temperature_c = average_w, temperature_c
        energy_j = (self.power.idle_w * (duration_s + step["compile_s"]) + active_j) * self.power.ranks_count
        return priced | {"clock_hz": clock_hz, "energy_j": energy_j, "temperature_c": self.temperature_c}

    def at_the_end_of(self, duration_s: float, active_j: float) -> tuple[float, float]:
        """Average power and temperature after a while in which so much is drawn beside idle power."""
        averages = []
        for now, rest, drawn, constant_s in (
            (self.average_w, self.power.idle_w, active_j, self.power.average_s),
            (self.temperature_c, self.idle_c, active_j * self.power.thermal_resistance_k_per_w, self.power.thermal_s),
        ):
            share = -math.expm1(-duration_s / constant_s)
            averages.append(now + (rest - now) * share + drawn * (share / duration_s if duration_s > 0.0 else 1.0 / constant_s))
        return averages[0], averages[1]

    def active_energy(self, step: dict[str, Any], tokens: int) -> float:
        """What the step costs one device beside idle power; `tokens` count the padding of a captured graph."""
        energy_j = self.of_rows("tokens", tokens, step, tokens) + self.of_rows("sequences", step["sequences"], step, tokens)
        if step["decode_sequences"]:
            energy_j += self.of_attention("decode_attention", step["decode_sequences"], step["decode_context_tokens"])
            energy_j += self.of_bytes("decode_attention", step, tokens)
        if step["prefill_tokens"]:
            energy_j += self.of_attention("prefill_attention", step["prefill_tokens"], step["prefill_pairs"])
            energy_j += self.of_bytes("prefill_attention", step, tokens)
        return energy_j

    def of_attention(self, axis: str, rows: int, pairs: int) -> float:
        """Energy of the FLOPs of an axis."""
        kernels = self.kernels(axis)
        per_row = sum(flop_j * (kernel["flops_per_token"] + kernel["flops_per_sequence"]) for kernel, flop_j in kernels)
        return float(per_row * rows + sum(flop_j * kernel["flops_per_pair"] for kernel, flop_j in kernels) * pairs)

    def of_rows(self, axis: str, rows: int, step: dict[str, Any], tokens: int) -> float:
        """Energy of the FLOPs and of each kernel's bytes on an axis of rows."""
        energy_j = self.of_attention(axis, rows, 0)
        for moved_j in self.moved(axis, step, tokens):
            energy_j += moved_j
        return energy_j

    def of_bytes(self, axis: str, step: dict[str, Any], tokens: int) -> float:
        """Energy of what the kernels of an axis move."""
        return float(sum(self.moved(axis, step, tokens)))

    def moved(self, axis: str, step: dict[str, Any], tokens: int) -> list[float]:
        """Energy of what each kernel of an axis moves."""
        byte_j = self.power.memory_energy_j_per_byte
        return [kernel["calls_count"] * byte_j * self.prices.moved_bytes(kernel, step, tokens) for kernel, _ in self.kernels(axis)]

    def kernels(self, axis: str) -> list[tuple[dict[str, Any], float]]:
        """Kernels of an axis, and what a FLOP of each costs one of the devices that share it."""
        pairs = zip(self.prices.kernels, self.power.flop_energy_j, strict=True)
        return [(kernel, flop_j / self.power.ranks_count) for kernel, flop_j in pairs if kernel["axis"] == axis]
