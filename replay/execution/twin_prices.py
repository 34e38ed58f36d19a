"""Prices of the plain replay, one step at a time from the step table's own columns."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from replay.execution.replica import StepNoise
from replay.tiling.step_table import StepTable


class Prices:
    """Prices one step at a time from the table's own columns."""

    def __init__(self, table: StepTable, factors: Mapping[str, float], noise: StepNoise | None = None) -> None:
        self.table = table
        self.factors = factors
        self.until_s: list[float] = [] if noise is None else noise.until_s.tolist()
        self.noise: list[float] = [] if noise is None else noise.factors.tolist()
        self.kernels = table.kernels.to_pylist()
        parts = (table.token_terms, table.sequence_terms, table.decode_terms, table.prefill_terms)
        self.column = {name: part[name].to_pylist() for part in parts for name in part.column_names if "." in name}
        self.captured = table.capture["captured_tokens"].to_pylist()
        self.context_knots = sorted(set(table.decode_terms["context_tokens"].to_pylist()))
        self.token_knots, self.keys_knots = (sorted(set(table.prefill_terms[name].to_pylist())) for name in ("tokens", "keys_tokens"))

    def price(self, step: dict[str, Any], *, eager: bool, slowdown: float = 1.0) -> dict[str, Any]:
        """Return the columns that say what a step of such counts costs where computing takes so many times as long.

        `eager`: without a captured graph in any case.
        """
        phase_start = (self.table.limits.max_batched_tokens + 1) * (step["prefill_tokens"] > 0)
        captured = 0 if eager else self.captured[phase_start + step["tokens"]]
        row = phase_start + (captured or step["tokens"])
        device_s = self._sum("tokens", slowdown, lambda name: self._row(name, row))
        device_s += self._sum("sequences", slowdown, lambda name: self._row(name, step["sequences"]))
        if step["decode_sequences"]:
            device_s += self._sum("decode_attention", slowdown, lambda name: self._decode(name, step))
        if step["prefill_tokens"]:
            device_s += self._sum("prefill_attention", slowdown, lambda name: self._prefill(name, step))
        device_s += step["swapped_blocks"] * self.table.pool.block_swap_s
        launches = self.table.launches_count + (self.table.prefill_launches_count if step["prefill_tokens"] else 0)
        calls_s = self.table.host_calls_s + (self.table.prefill_host_calls_s if step["prefill_tokens"] else 0.0)
        host_s = self.table.host_graph_launch_s if captured else launches * self.table.host_launch_s + calls_s
        return {"device_s": device_s, "host_s": host_s, "captured_tokens": captured}

    def noise_factor(self, start_s: float) -> float:
        """Return what the device time of a step that starts then is multiplied by."""
        return float(self.noise[min(bisect_right(self.until_s, start_s), len(self.noise) - 1)]) if self.noise else 1.0

    def stage_shares(self) -> list[float]:
        """Return the part of a step's time in each stage: as the token-wise kernels of a full prefill step divide, else evenly."""
        stages = self.table.limits.pipeline_stages
        if stages == 1:
            return [1.0]
        last_row = len(self.captured) - 1
        stage_s = [0.0] * stages
        for stage in range(stages):
            for kernel in self.kernels:
                for entry in self.table.stages.to_pylist():
                    if kernel["axis"] == "tokens" and entry["kernel"] == kernel["kernel"] and entry["stage"] == stage:
                        stage_s[stage] += entry["calls_count"] * _time(
                            self._row(kernel["kernel"], last_row), 1.0, kernel["overlap_exponent"]
                        )
        total_s = sum(stage_s)
        return [seconds / total_s for seconds in stage_s] if total_s else [1.0 / stages] * stages

    def moved_bytes(self, kernel: dict[str, Any], step: dict[str, Any], tokens: int) -> float:
        """Return what one call of a kernel moves in a step that computes so many tokens, padding included."""
        name, phase_start = kernel["kernel"], (self.table.limits.max_batched_tokens + 1) * (step["prefill_tokens"] > 0)
        terms = {
            "tokens": lambda: self._row(name, phase_start + tokens),
            "sequences": lambda: self._row(name, step["sequences"]),
            "decode_attention": lambda: self._decode(name, step),
            "prefill_attention": lambda: self._prefill(name, step),
        }[kernel["axis"]]()
        return terms[4]

    def _sum(self, axis: str, slowdown: float, terms: Any) -> float:
        total_s = 0.0
        for kernel in self.kernels:
            if kernel["axis"] == axis:
                weight = kernel["calls_count"] * self.factors.get(kernel["kernel"], 1.0)
                total_s += weight * _time(terms(kernel["kernel"]), slowdown, kernel["overlap_exponent"])
        return total_s

    def _row(self, kernel: str, row: int) -> tuple[float, ...]:
        return tuple(self.column[f"{kernel}.{term}"][row] for term in ("launch_s", "compute_s", "memory_s", "sync_s", "bytes"))

    def _decode(self, kernel: str, step: dict[str, Any]) -> tuple[float, ...]:
        return self._on_line(kernel, step["decode_sequences"], self.context_knots, step["decode_context_tokens"] / step["decode_sequences"])

    def _prefill(self, kernel: str, step: dict[str, Any]) -> tuple[float, ...]:
        keys, tokens, knots = step["prefill_pairs"] / step["prefill_tokens"], step["prefill_tokens"], self.token_knots
        low = min(max(bisect_right(knots, tokens) - 1, 0), max(len(knots) - 2, 0))
        start = self._on_line(kernel, low, self.keys_knots, keys, clipped=False)
        if len(knots) == 1 or tokens <= knots[0]:
            return tuple(max(0.0, a) for a in start)
        end = self._on_line(kernel, low + 1, self.keys_knots, keys, clipped=False)
        share = (tokens - knots[low]) / (knots[low + 1] - knots[low])
        return tuple(max(0.0, a + (b - a) * share) for a, b in zip(start, end, strict=True))

    def _on_line(self, kernel: str, line: int, knots: list[float], place: float, *, clipped: bool = True) -> tuple[float, ...]:
        """Terms on one line of a grid, between the knots around a place on it."""
        low = min(max(bisect_right(knots, place) - 1, 0), max(len(knots) - 2, 0))
        start = self._row(kernel, line * len(knots) + low)
        if len(knots) == 1 or place <= knots[0]:
            return start
        end = self._row(kernel, line * len(knots) + low + 1)
        share = (place - knots[low]) / (knots[low + 1] - knots[low])
        found = tuple(a + (b - a) * share for a, b in zip(start, end, strict=True))
        return tuple(max(0.0, term) for term in found) if clipped else found


def _time(terms: tuple[float, ...], slowdown: float, exponent: float) -> float:
    launch_s, compute_s, memory_s, sync_s = terms[0], terms[1] * slowdown, terms[2], terms[3]
    longer, shorter = max(launch_s + compute_s, launch_s + memory_s), min(launch_s + compute_s, launch_s + memory_s)
    if math.isinf(exponent) or longer == 0.0:
        return longer + sync_s
    return float(longer * (1.0 + (shorter / longer) ** exponent) ** (1.0 / exponent) + sync_s)
