"""The operator-to-kernel mapping sheet: what runs for a step, tiled and formatted how, bound by what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from replay.lowering.kernel_plan import Kernel
from replay.lowering.op_graph import MatmulShape
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec
from replay.tiling import gemm
from replay.tiling.bins import attention_bins, gemm_bins
from replay.tiling.schedule import Schedule
from replay.tiling.terms import BOTTLENECK_OF_TERM, COLLECTIVE_LAYER, TERM_NAMES, Terms

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
        ("source", pa.string()),
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


def mapping_sheet(schedule: Schedule, hardware: HardwareSpec, mapping: MappingSpec, steps: tuple[StepShape, ...]) -> pa.Table:
    """Return SHEET_SCHEMA rows for each step, in execution order; terms come from the table that the replay runs on."""
    rows = []
    for step in steps:
        described = [_row(schedule, kernel, step, hardware, mapping.on(hardware.name)) for kernel in schedule.plan.kernels]
        described = [row for row in described if row["rows_count"]]
        total_s = sum(row["time_s"] for row in described)
        rows += [{**row, "share_ratio": row["time_s"] / total_s} for row in described]
    return pa.Table.from_pylist(rows, schema=SHEET_SCHEMA)


def _row(schedule: Schedule, kernel: Kernel, step: StepShape, hardware: HardwareSpec, mapping: MappingSpec) -> dict[str, Any]:
    index = [op.id for op in schedule.plan.kernels].index(kernel.id)
    facts = {name: schedule.table.kernels[name][index].as_py() for name in schedule.table.kernels.column_names}
    terms, rows_count, flops = _terms(schedule, kernel, step, facts)
    calls = kernel.calls_count
    joined = Terms(**{name: np.array([terms[name]]) for name in TERM_NAMES}).time_s(facts["overlap_exponent"])
    largest = max(BOTTLENECK_OF_TERM, key=lambda name: terms[name])
    return {
        "step": step.name,
        "kernel": kernel.id,
        "layer_type": kernel.layer_type,
        "ops": "+".join(kernel.ops),
        "calls_count": calls,
        "rows_count": rows_count,
        "kv_format": kernel.kv_format if kernel.axis == "attention" else None,
        "flops": flops,
        "bytes": terms["bytes"] * calls,
        **{name: terms[name] * calls for name in BOTTLENECK_OF_TERM},
        "time_s": float(joined[0]) * calls,
        "bottleneck_class": "interconnect" if kernel.layer_type == COLLECTIVE_LAYER else BOTTLENECK_OF_TERM[largest],
        "source": facts["source"],
        **_tiling(kernel, step, rows_count, hardware, mapping),
    }


def _terms(schedule: Schedule, kernel: Kernel, step: StepShape, facts: dict[str, Any]) -> tuple[dict[str, float], int, float]:
    """Return (terms of one call, rows, model FLOPs of the step) of a kernel."""
    table = schedule.table
    names = [*BOTTLENECK_OF_TERM, "bytes"]
    if facts["axis"] == "tokens":
        index = step.phase * (table.limits.max_batched_tokens + 1) + step.tokens
        captured = table.capture["captured_tokens"][index].as_py()
        index += captured - step.tokens if captured else 0  # a captured step pays for its padding
        found = {name: float(table.token_terms[f"{kernel.id}.{name}"][index].as_py()) for name in names}
        return found, step.tokens, float(facts["flops_per_token"]) * step.tokens
    if facts["axis"] == "sequences":
        found = {name: float(table.sequence_terms[f"{kernel.id}.{name}"][step.sequences].as_py()) for name in names}
        return found, step.sequences, float(facts["flops_per_sequence"]) * step.sequences
    if facts["axis"] == "decode_attention":
        return _decode_terms(schedule, kernel, step, float(facts["flops_per_pair"]))
    return _prefill_terms(schedule, kernel, step, float(facts["flops_per_pair"]))


def _decode_terms(schedule: Schedule, kernel: Kernel, step: StepShape, flops_per_pair: float) -> tuple[dict[str, float], int, float]:
    terms = schedule.table.decode_terms
    mask = np.asarray(terms["sequences"]) == step.decode_sequences
    knots = np.asarray(terms["context_tokens"])[mask]
    keys = min(step.context_tokens, schedule.table.limits.attention_window_tokens)
    found = {name: float(np.interp(keys, knots, np.asarray(terms[f"{kernel.id}.{name}"])[mask])) for name in (*BOTTLENECK_OF_TERM, "bytes")}
    return found, step.decode_sequences, flops_per_pair * step.decode_sequences * keys


def _prefill_terms(schedule: Schedule, kernel: Kernel, step: StepShape, flops_per_pair: float) -> tuple[dict[str, float], int, float]:
    tokens = step.prefill_tokens
    window = schedule.table.limits.attention_window_tokens
    pairs = sum(min(position, window) for position in range(1, tokens + 1))
    rates = {
        name.removeprefix(f"{kernel.id}."): float(column[tokens].as_py())
        for name, column in zip(schedule.table.prefill_terms.column_names, schedule.table.prefill_terms.columns, strict=True)
    }

    def moved(unit: str) -> float:
        return pairs * rates[f"{unit}_per_pair"] + tokens * (rates[f"{unit}_per_token"] + rates[f"{unit}_per_context_token"])

    found = {
        "compute_s": pairs * rates["compute_s_per_pair"],
        "memory_s": moved("memory_s"),
        "launch_s": rates["launch_s"],
        "sync_s": 0.0,
        "bytes": moved("bytes"),
    }
    return found, tokens, flops_per_pair * pairs


def _tiling(kernel: Kernel, step: StepShape, rows: int, hardware: HardwareSpec, mapping: MappingSpec) -> dict[str, Any]:
    """Return tile, split, waves and padding of a kernel at a step."""
    if rows == 0:
        return {}
    if isinstance(kernel.shape, MatmulShape):
        bins = gemm_bins(kernel, hardware, mapping, rows)
        phase = step.phase if kernel.axis == "tokens" else 0
        bin_ = next(found for found in bins if found.phase == phase and found.first_row <= rows <= found.last_row)
        choice = gemm.choose(kernel, np.array([rows]), bin_.backend, bin_.tiles, bin_.split, hardware)
        return {
            "backend": bin_.backend,
            "tile": "x".join(str(size) for size in choice.tile[0]),
            "split": str(choice.split[0]),
            "waves": float(choice.waves[0]),
            "padding_ratio": float(choice.padding_ratio[0]),
            "weights_format": kernel.weights_format,
            "activations_format": kernel.activations_format,
        }
    if kernel.axis == "attention":
        found = next(b for b in attention_bins(kernel, hardware, mapping, rows) if b.first_row <= rows <= b.last_row)
        split = str(found.split) if kernel.id == "attention_decode" else "1"
        return {"backend": kernel.attention_backend, "tile": "x".join(map(str, found.tile)), "split": split}
    return {"backend": "link" if kernel.layer_type == "all_reduce" else "stream"}
