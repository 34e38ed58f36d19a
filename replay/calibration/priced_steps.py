"""Prices of a few serving steps, without the whole step table: the same kernels, priced at the rows that are asked for.

A table of every row count takes a second to make; what is asked of one server is a handful of steps. `tests/calibration` holds
these prices to those of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.calibration.whole import Prediction
from replay.lowering.kernel_plan import Kernel, KernelPlan
from replay.lowering.select import plan_kernels
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec
from replay.tiling.bins import attention_bins, product_bins
from replay.tiling.library import SOURCES, Cost, KernelLibrary, weakest_needed
from replay.tiling.memory import kv_pool
from replay.tiling.pricing import Pricer
from replay.tiling.schedule import captured_graphs, step_limits
from replay.tiling.step_table import KvPool, StepLimits
from replay.tiling.tabulate import Tabulator
from replay.tiling.terms import Array

Counts = npt.NDArray[np.int64]
Priced = tuple[npt.NDArray[np.bool_], Cost]
"""Which steps run a kernel [steps], and what one call costs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShapes:
    """Steps by what they compute [steps]."""

    decode_sequences: Counts
    context_tokens: Array
    """Mean context of a decoding sequence."""
    prefill_tokens: Counts
    keys_tokens: Array
    """Mean keys that a prompt's token sees."""
    prompts: Counts
    """Prompts that end in the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPricer:
    """Prices steps of one model on one device under one mapping."""

    plan: KernelPlan
    pricer: Pricer
    limits: StepLimits
    pool: KvPool

    @classmethod
    def of(cls, model: ModelSpec, device: HardwareSpec, mapping: MappingSpec) -> StepPricer:
        """Return the pricer of a mapping.

        Raises:
            SpecError: the mapping's tensor-parallel ranks do not divide the model.
        """
        plan = plan_kernels(model, device, mapping)
        return cls(
            plan=plan,
            pricer=Pricer(library=KernelLibrary(device=device), mapping=mapping),
            limits=step_limits(model, mapping),
            pool=kv_pool(plan, model, device, mapping),
        )

    def price(self, steps: StepShapes) -> Prediction:
        """Return the times of steps: the larger of device and host time, as a replay takes them."""
        device, mapping = self.pricer.library.device, self.pricer.mapping
        mixed = steps.prefill_tokens > 0
        tokens = steps.decode_sequences + steps.prefill_tokens
        graphs = captured_graphs(mapping, self.limits)["captured_tokens"].to_numpy()
        captured = graphs[mixed * (self.limits.max_batched_tokens + 1) + tokens]
        total, by_source, launches = np.zeros(len(tokens)), dict.fromkeys(SOURCES, 0.0), np.zeros(len(tokens))
        for kernel in self.plan.kernels:
            for rows, cost in self._priced(kernel, steps, np.where(captured > 0, captured, tokens)):
                total[rows] += kernel.calls_count * cost.time_s
                by_source[cost.source] += float((kernel.calls_count * cost.time_s).sum())
            launches += kernel.launches_count * (mixed if kernel.axis == "prefill_attention" else 1)
        host_s = np.where(captured > 0, device.host.graph_launch_s, launches * device.host.launch_s)
        return Prediction(seconds=np.maximum(total, host_s), source=weakest_needed(by_source))

    def _priced(self, kernel: Kernel, steps: StepShapes, tokens: Counts) -> Iterator[Priced]:
        """Yield the costs of a kernel for the steps that run it; `tokens` [steps] with the padding of captured graphs."""
        mixed = steps.prefill_tokens > 0
        phases = mixed.astype(np.int64)
        decode = np.zeros_like(phases)
        if kernel.phase == "prefill":
            yield from self._attention(kernel, steps.prefill_tokens, steps.keys_tokens)
        elif kernel.phase == "decode":
            yield from self._attention(kernel, steps.decode_sequences, steps.context_tokens)
        elif kernel.axis == "prefill_attention" and mixed.any():
            tabulator = Tabulator(pricer=self.pricer, limits=self.limits)
            yield mixed, tabulator.by_keys(kernel, steps.prefill_tokens[mixed].astype(np.float64), steps.keys_tokens[mixed])
        elif kernel.axis == "decode_attention":
            yield from self._by_rows(kernel, steps.decode_sequences, decode, self.limits.max_running)
        elif kernel.axis == "sequences":
            yield from self._by_rows(kernel, steps.decode_sequences + steps.prompts, decode, self.limits.max_running)
        elif kernel.axis == "tokens":
            yield from self._by_rows(kernel, tokens, phases, self.limits.max_batched_tokens)

    def _by_rows(self, kernel: Kernel, rows: Counts, phases: Counts, rows_to: int) -> Iterator[Priced]:
        if not kernel.backends:
            there = rows > 0
            if there.any():
                yield there, self.pricer.movement(kernel, rows[there].astype(np.float64))
            return
        for bin_ in product_bins(kernel, self.pricer.library.device, self.pricer.mapping, rows_to):
            there = (phases == bin_.phase) & (rows >= bin_.first_row) & (rows <= bin_.last_row)
            if there.any():
                yield there, self.pricer.product(kernel, rows[there].astype(np.float64), bin_).cost

    def _attention(self, kernel: Kernel, rows: Counts, keys: Array) -> Iterator[Priced]:
        rows_to = self.limits.max_batched_tokens if kernel.phase == "prefill" else self.limits.max_running
        for bin_ in attention_bins(kernel, self.pricer.library.device, self.pricer.mapping, rows_to):
            there = (rows > 0) & (rows >= bin_.first_row) & (rows <= bin_.last_row)
            if there.any():
                pricer = self.pricer.attention(kernel, bin_, self.limits.attention_window)
                price = pricer.prefill if kernel.phase == "prefill" else pricer.decode
                yield there, price(rows[there].astype(np.float64), keys[there])
