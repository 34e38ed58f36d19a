"""The operator-to-kernel mapping sheet: what runs for a step, tiled and formatted how, bound by what, known how well."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from replay.execution.step_costs import PricedKernel, price_kernels, step_seconds
from replay.lowering.kernel_plan import Kernel
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec
from replay.tiling.bins import attention_bins, product_bins
from replay.tiling.library import KernelLibrary
from replay.tiling.pricing import Pricer
from replay.tiling.resources import shown_attention, shown_product
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
        ("rows_count", pa.int64()),  # computed, padding to a captured graph included
        ("backend", pa.string()),
        ("tile", pa.string()),
        ("tile_source", pa.string()),  # auto, pinned, or the batch of a tuned table
        ("split", pa.string()),
        ("waves", pa.float64()),
        ("padding_ratio", pa.float64()),
        ("imbalance_ratio", pa.float64()),  # rows of the busiest expert-parallel rank over those of the mean one, mean over layers
        ("unit_memory_bytes", pa.float64()),  # of a unit, by one tile
        ("accumulator_bytes", pa.float64()),
        ("spilled_bytes", pa.float64()),  # of accumulators that do not fit the registers
        ("threads_count", pa.int64()),  # of one tile, where a tuned table says so
        ("tiles_per_unit", pa.int64()),  # that fit at once
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotal:
    """What a step takes as a whole."""

    step: str
    device_s: float
    host_s: float
    captured_tokens: int
    """Size of the captured graph that it replays, 0 where it runs eagerly."""

    @property
    def time_s(self) -> float:
        """The larger of device and host time."""
        return max(self.device_s, self.host_s)


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
                **_costs(kernel, cost, shapes.to_pylist()[0], _rows_count(kernel, step)),
                **_trust(fact, float(cost.measured_ratio[cost.row[0]])),
                **_tiling(kernel, step, _computed_rows(kernel, cost, step, schedule.table.limits), pricer, schedule.table.limits),
            }
            for kernel, cost, fact in zip(schedule.plan.kernels, priced, facts, strict=True)
            if _rows_count(kernel, step)
        ]
        total_s = sum(row["time_s"] for row in described)
        rows += [{**row, "share_ratio": row["time_s"] / total_s} for row in described]
    return pa.Table.from_pylist(rows, schema=SHEET_SCHEMA)


def imbalance_ratios(kernel: Kernel) -> tuple[float, ...]:
    """Return rows of the busiest rank over those of the mean one by layer with experts (one entry: all alike); empty without such ranks."""
    loads = None if kernel.is_dense or not kernel.backends else kernel.experts.loads
    return loads.imbalance_ratios if loads is not None and loads.ranks_count > 1 else ()


def step_totals(table: StepTable, steps: tuple[StepShape, ...]) -> tuple[StepTotal, ...]:
    """Return what each step takes as a whole."""
    found = []
    for step in steps:
        seconds = step_seconds(table, step.shapes(table.limits))
        device_s, host_s, captured = float(seconds.device_s[0]), float(seconds.host_s[0]), int(seconds.captured_tokens[0])
        found.append(StepTotal(step=step.name, device_s=device_s, host_s=host_s, captured_tokens=captured))
    return tuple(found)


def _rows_count(kernel: Kernel, step: StepShape) -> int:
    counts = {"tokens": step.tokens, "sequences": step.sequences, "prefill_attention": step.prefill_tokens}
    return counts.get(kernel.axis, step.decode_sequences)


def _computed_rows(kernel: Kernel, cost: PricedKernel, step: StepShape, limits: StepLimits) -> int:
    """Return the rows a kernel computes: a captured graph's own size for what runs on tokens."""
    return int(cost.row[0]) - step.phase * (limits.max_batched_tokens + 1) if kernel.axis == "tokens" else _rows_count(kernel, step)


def _costs(kernel: Kernel, cost: PricedKernel, shape: dict[str, int], rows: int) -> dict[str, Any]:
    """Return what a kernel does in the step, on so many rows, and what that costs."""
    row, calls = cost.row[0], kernel.calls_count
    terms = {name: float(getattr(cost, name)[row]) for name in (*BOTTLENECK_OF_TERM, "bytes")}
    largest = max(BOTTLENECK_OF_TERM, key=lambda name: terms[name])
    pairs = shape["prefill_pairs"] if kernel.phase == "prefill" else shape["decode_context_tokens"]
    flops = cost.flops_per_token * rows + cost.flops_per_sequence * shape["sequences"] + cost.flops_per_pair * pairs
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


def _tiling(kernel: Kernel, step: StepShape, rows: int, pricer: Pricer, limits: StepLimits) -> dict[str, Any]:
    """Return rows, units, formats, tile, split, waves, padding and resources of a kernel at a step."""
    if kernel.backends:
        return {"rows_count": rows, **_product(kernel, step.phase if kernel.axis == "tokens" else kernel.step_phases[0], rows, pricer)}
    device, mapping = pricer.library.device, pricer.mapping
    if kernel.phase is not None:
        found = next(b for b in attention_bins(kernel, device, mapping, rows) if b.first_row <= rows <= b.last_row)
        tile, split = pricer.attention(kernel, found, limits.attention_window).tile(rows, step.context_tokens)
        shown = {"backend": kernel.attention_backend, "tile": "x".join(map(str, tile)), "split": str(split)}
        shown["tile_source"] = "auto" if found.tile is None else "pinned"
        return {"rows_count": rows, **shown, **asdict(shown_attention(tile, kernel, device)), "kv_format": kernel.kv_format}
    return {"rows_count": rows, "backend": "link" if kernel.layer_type == COLLECTIVE_LAYER else "stream"}


def _product(kernel: Kernel, phase: int, rows: int, pricer: Pricer) -> dict[str, Any]:
    """Return the same of a matrix multiply or of experts; a kernel on vector units has no tile."""
    bins = product_bins(kernel, pricer.library.device, pricer.mapping, rows)
    bin_ = next(found for found in bins if found.phase == phase and found.first_row <= rows <= found.last_row)
    shown: dict[str, Any] = {
        "backend": bin_.backend,
        "weights_format": kernel.weights_format,
        "activations_format": kernel.activations_format,
    }
    if not kernel.is_dense:
        shown["imbalance_ratio"] = float(np.mean(imbalance_ratios(kernel))) if imbalance_ratios(kernel) else None
    if bin_.backend != "matrix":
        return shown
    choice = pricer.product(kernel, np.array([float(rows)]), bin_)
    height, width, depth = (int(size) for size in choice.tile[0])
    tuned = bin_.table if bin_.tile is not None else None
    resources = shown_product((height, width, depth), kernel, tuned, pricer.library.device)
    return {
        **shown,
        "tile": f"{height}x{width}x{depth}",
        "tile_source": "auto" if bin_.tile is None else "pinned" if tuned is None else f"batch {tuned.batch}",
        "split": str(choice.split[0]),
        "waves": float(choice.waves[0]),
        "padding_ratio": float(choice.padding_ratio[0]),
        **(asdict(resources) if height > 1 else {}),  # the kernel for one row has no tile
    }
