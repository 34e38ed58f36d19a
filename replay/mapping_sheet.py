"""The operator-to-kernel mapping sheet: what runs for a step, tiled and formatted how, bound by what, known how well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from replay.execution.step_costs import PricedKernel, price_kernels
from replay.lowering.kernel_plan import Kernel
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec
from replay.tiling.bins import attention_bins, product_bins
from replay.tiling.library import KernelLibrary
from replay.tiling.pricing import Pricer
from replay.tiling.schedule import Schedule
from replay.tiling.step_table import MEASURED_ERROR_RATIO, StepLimits, StepTable
from replay.tiling.terms import BOTTLENECK_OF_TERM, COLLECTIVE_LAYER

SHEET_SCHEMA = pa.schema(
    [
        ("step", pa.string()),
        ("kernel", pa.string()),
        ("layer_type", pa.string()),
        ("ops", pa.string()),  # the fusion group
        ("calls_count", pa.int64()),
        ("rows_count", pa.int64()),
        ("backend", pa.string()),
        ("tile", pa.string()),
        ("split", pa.string()),
        ("waves", pa.float64()),
        ("padding_ratio", pa.float64()),
        ("weights_format", pa.string()),
        ("activations_format", pa.string()),
        ("kv_format", pa.string()),
        ("flops", pa.float64()),  # of the step, all calls and ranks
        ("bytes", pa.float64()),  # of the step, all calls, one rank
        ("compute_s", pa.float64()),  # all calls
        ("memory_s", pa.float64()),
        ("launch_s", pa.float64()),
        ("sync_s", pa.float64()),
        ("time_s", pa.float64()),
        ("share_ratio", pa.float64()),  # of the step's device time
        ("bottleneck_class", pa.string()),
        ("stack", pa.string()),  # software the kernel was timed under; empty without a calibration
        ("source", pa.string()),
        ("error_ratio", pa.float64()),  # mean relative error to expect of the time
    ]
)
"""One row per kernel and step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """A step to describe: decode sequences of one context length, or the prompt of one sequence."""

    name: str
    decode_sequences: int = 0
    context_tokens: int = 0
    prefill_tokens: int = 0

    @property
    def phase(self) -> int:
        """0 = decode only, 1 = with prefill tokens."""
        return 1 if self.prefill_tokens else 0

    @property
    def tokens(self) -> int:
        """Rows of token-wise kernels."""
        return self.decode_sequences + self.prefill_tokens

    @property
    def sequences(self) -> int:
        """Rows of the LM head."""
        return self.decode_sequences + (1 if self.prefill_tokens else 0)

    def shapes(self, limits: StepLimits) -> pa.Table:
        """Return the one-row table that prices it (SHAPE_COLUMNS of `replay.execution.tables`)."""
        window = limits.attention_window_tokens
        rising = min(self.prefill_tokens, window)
        columns = {
            "tokens": self.tokens,
            "sequences": self.sequences,
            "decode_sequences": self.decode_sequences,
            "decode_context_tokens": self.decode_sequences * min(self.context_tokens, window),
            "prefill_tokens": self.prefill_tokens,
            "prefill_pairs": rising * (rising + 1) // 2 + (self.prefill_tokens - rising) * window,
        }
        return pa.table({name: pa.array([value], pa.int64()) for name, value in columns.items()})


def mapping_sheet(schedule: Schedule, hardware: HardwareSpec, mapping: MappingSpec, steps: tuple[StepShape, ...]) -> pa.Table:
    """Return SHEET_SCHEMA rows for each step, in execution order; terms come from the table that the replay runs on."""
    pricer = Pricer(library=KernelLibrary(device=hardware), mapping=mapping.on(hardware.name))
    rows = []
    for step in steps:
        shapes = step.shapes(schedule.table.limits)
        priced = price_kernels(schedule.table, shapes)
        facts = schedule.table.kernels.to_pylist()
        described = [
            {
                "step": step.name,
                **_costs(kernel, cost, shapes.to_pylist()[0]),
                **_trust(fact, float(cost.measured_ratio[cost.row[0]])),
                **_tiling(kernel, step, schedule.table, pricer),
            }
            for kernel, cost, fact in zip(schedule.plan.kernels, priced, facts, strict=True)
            if _rows_count(kernel, step)
        ]
        total_s = sum(row["time_s"] for row in described)
        rows += [{**row, "share_ratio": row["time_s"] / total_s} for row in described]
    return pa.Table.from_pylist(rows, schema=SHEET_SCHEMA)


def _rows_count(kernel: Kernel, step: StepShape) -> int:
    counts = {"tokens": step.tokens, "sequences": step.sequences, "prefill_attention": step.prefill_tokens}
    return counts.get(kernel.axis, step.decode_sequences)


def _costs(kernel: Kernel, cost: PricedKernel, shape: dict[str, int]) -> dict[str, Any]:
    """Return what a kernel does in the step and what that costs."""
    row, calls = cost.row[0], kernel.calls_count
    terms = {name: float(getattr(cost, name)[row]) for name in (*BOTTLENECK_OF_TERM, "bytes")}
    largest = max(BOTTLENECK_OF_TERM, key=lambda name: terms[name])
    pairs = shape["prefill_pairs"] if kernel.phase == "prefill" else shape["decode_context_tokens"]
    flops = cost.flops_per_token * shape["tokens"] + cost.flops_per_sequence * shape["sequences"] + cost.flops_per_pair * pairs
    return {
        "kernel": kernel.id,
        "layer_type": kernel.layer_type,
        "ops": "+".join(kernel.ops),
        "calls_count": calls,
        "flops": flops,
        **{name: value * calls for name, value in terms.items()},
        "time_s": float(cost.time_s[row]) * calls,
        "bottleneck_class": "interconnect" if kernel.layer_type == COLLECTIVE_LAYER else BOTTLENECK_OF_TERM[largest],
    }


def _trust(fact: dict[str, Any], measured_ratio: float) -> dict[str, Any]:
    """Return what a kernel's cost rests on for the larger part, and the error to expect of the whole."""
    error_ratio = measured_ratio * MEASURED_ERROR_RATIO + (1.0 - measured_ratio) * fact["error_ratio"]
    return {"stack": fact["stack"], "source": "measured" if measured_ratio > 0.5 else fact["source"], "error_ratio": error_ratio}


def _tiling(kernel: Kernel, step: StepShape, table: StepTable, pricer: Pricer) -> dict[str, Any]:
    """Return rows, units, formats, tile, split, waves and padding of a kernel at a step."""
    rows, device, mapping = _rows_count(kernel, step), pricer.library.device, pricer.mapping
    if kernel.backends:
        phase = step.phase if kernel.axis == "tokens" else 0
        bins = product_bins(kernel, device, mapping, rows)
        bin_ = next(found for found in bins if found.phase == phase and found.first_row <= rows <= found.last_row)
        choice = pricer.product(kernel, np.array([float(rows)]), bin_)
        on_matrix = bin_.backend == "matrix"
        return {
            "rows_count": rows,
            "backend": bin_.backend,
            "tile": "x".join(str(size) for size in choice.tile[0]) if on_matrix else None,
            "split": str(choice.split[0]) if on_matrix else None,
            "waves": float(choice.waves[0]) if on_matrix else None,
            "padding_ratio": float(choice.padding_ratio[0]) if on_matrix else None,
            "weights_format": kernel.weights_format,
            "activations_format": kernel.activations_format,
        }
    if kernel.phase is not None:
        found = next(b for b in attention_bins(kernel, device, mapping, rows) if b.first_row <= rows <= b.last_row)
        tile, split = pricer.attention(kernel, found, table.limits.attention_window).tile(rows, step.context_tokens)
        shown = {"backend": kernel.attention_backend, "tile": "x".join(map(str, tile)), "split": str(split)}
        return {"rows_count": rows, **shown, "kv_format": kernel.kv_format}
    return {"rows_count": rows, "backend": "link" if kernel.layer_type == COLLECTIVE_LAYER else "stream"}
