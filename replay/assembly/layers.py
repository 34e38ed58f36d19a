"""Where the time of a replay went, by layer type and window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.assembly.busy import busy_seconds
from replay.assembly.first_tokens import FirstTokens
from replay.assembly.room import with_room
from replay.assembly.run import LAYERS_SCHEMA
from replay.errors import InvariantError
from replay.execution.cost_arrays import flatten, kernel_rows
from replay.execution.step_costs import Counts, Floats, check_factors, swap_seconds
from replay.execution.tables import Replay
from replay.tiling.step_table import StepTable
from replay.tiling.terms import combine

HOST_LAYER = "host"
"""Time that steps waited for the host after their device work was done, for kernels to be compiled, or for cache blocks to move to host
memory and back."""
ALL_LAYERS = "all"
PRICE_TOLERANCE = 1e-9
"""Relative; rounding of a sum over kernels in another order is far below it, another table or factor far above."""

STEP_COLUMNS = (
    "start_s", "end_s", "compile_s", "device_s", "host_s", "tokens", "sequences", "decode_sequences", "decode_context_tokens",
    "prefill_tokens", "prefill_pairs", "recomputed_tokens", "output_tokens", "captured_tokens",
)  # fmt: skip
"""What `replay.assembly.tally` reads of a step, in its order."""
_KERNEL_SUMS = ("launch_s", "compute_s", "memory_s", "sync_s", "bytes", "time_s", "memory_stall_s")
_TOTALS = ("time_s", "compute_s", "memory_s", "launch_s", "sync_s", "memory_stall_s", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """A replay by window and layer: the table's layer types in its order, then `host`, then `all` (the whole step, host time included).

    FLOPs are the model's: `flops_per_token` of tokens computed for the first time, `flops_per_sequence` of output tokens,
    `flops_per_pair` of attention pairs. None of these counts contains padding. Recomputation is taken off: exactly from tokens,
    and by scaling a step's prefill pairs by 1 - recomputed / prefill tokens.
    """

    layers: tuple[str, ...]
    time_s: Floats
    """[windows, layers]"""
    memory_stall_s: Floats
    """Time minus the time with infinite memory bandwidth (memory_s = 0 in the same rule) [windows, layers]."""
    flops: Floats
    """[windows, layers]"""
    tokens: Counts
    """Tokens computed for the first time, and first output tokens, which the last prompt token yields on top [windows]."""
    totals: dict[str, dict[str, float]]
    """Sums of the whole replay over the kernels of each layer type of the table, by term."""


class LayerSums:
    """Where the time of a replay goes, added up piece by piece; a step counts wholly in the window where it starts."""

    def __init__(self, table: StepTable, *, window_s: float, kernel_factors: Mapping[str, float] | None = None) -> None:
        """Begin with nothing; raises SpecError where a factor names no kernel of the table, or is none."""
        self._table, self._window_s, self._factors = table, window_s, check_factors(table, kernel_factors)
        self._kernels, self._costs = table.kernels.to_pylist(), flatten(table, kernel_factors)
        self._layers = layers = tuple(dict.fromkeys(entry["layer_type"] for entry in self._kernels))
        self._rows = [_AxisRows(table, axis, layers, self._factors) for axis in ("tokens", "sequences")]
        axes = ("tokens", "sequences", "decode_attention", "prefill_attention")
        self._by_axis = [[entry for entry in self._kernels if entry["axis"] == axis] for axis in axes]
        self._places = [np.array([layers.index(entry["layer_type"]) for entry in found], dtype=np.int64) for found in self._by_axis]
        self._by_layer: Floats = np.zeros((0, len(layers) + 2, 2))
        self._amounts: Floats = np.zeros((0, 5))
        self._uses = [np.zeros(len(part.by_layer), dtype=np.int64) for part in self._rows]
        self._sums = [np.zeros((len(found), len(_KERNEL_SUMS))) for found in self._by_axis]
        self._room = np.zeros((len(layers), 2))
        self._device_s, self._ended_s = 0.0, np.zeros(table.limits.all_replicas_count)
        self._first_tokens = FirstTokens(table.limits.all_replicas_count, window_s)
        self._first_token_counts: Floats = np.zeros(0)

    def add(self, piece: Replay, windows: int) -> None:
        """Add a piece, of which no step starts beyond so many windows."""
        from replay.assembly.tally import tally

        steps = {name: _read_only(piece.steps[name].to_numpy()) for name in STEP_COLUMNS}
        if not self._table.limits.host_overlap:  # then all of the host's time is beside the device's, not what it lasts longer
            steps["compile_s"] = _read_only(steps["compile_s"] + np.minimum(steps["device_s"], steps["host_s"]))
        swap_s = _read_only(swap_seconds(self._table, piece.steps))
        self._by_layer, self._amounts = with_room(self._by_layer, windows), with_room(self._amounts, windows)
        tally(
            (*steps.values(), _slowdowns(piece.steps, self._table), busy_seconds(piece.steps, self._ended_s), swap_s),
            (*(part.by_layer for part in self._rows), *(part.terms for part in self._rows), *self._places),
            (self._costs.decode, self._costs.context_knots, self._costs.prefill, self._costs.token_knots, self._costs.keys_knots),
            self._window_s,
            (self._by_layer, self._amounts, *self._uses, *self._sums, self._room),
        )
        self._device_s += float((steps["device_s"] - swap_s).sum())
        self._first_token_counts = with_room(self._first_token_counts, windows)
        self._first_token_counts[:windows] += self._first_tokens.add(piece, windows)

    def shares(self, windows: int) -> TimeShares:
        """Return what was added, in so many windows.

        Raises:
            InvariantError: the table or the factors are not those the replay ran under.
        """
        by_layer, amounts = self._by_layer[:windows], self._amounts[:windows]
        _check_price(float(by_layer[:, :-2, 0].sum()), self._device_s)
        tokens = amounts[:, :2].sum(axis=1) + self._first_token_counts[:windows]
        return TimeShares(
            layers=(*self._layers, HOST_LAYER, ALL_LAYERS),
            time_s=by_layer[:, :, 0],
            memory_stall_s=by_layer[:, :, 1],
            flops=_flops(self._kernels, self._layers, amounts),
            tokens=tokens.astype(np.int64),
            totals=self._totals(),
        )

    def _totals(self) -> dict[str, dict[str, float]]:
        totals = {layer: dict.fromkeys(_TOTALS, 0.0) for layer in self._layers}
        for part, used in zip(self._rows, self._uses, strict=True):
            part.add_totals(totals, used)
        for found, kernel_sums in zip(self._by_axis, self._sums, strict=True):
            for entry, kernel_sum in zip(found, kernel_sums, strict=True):
                weight = entry["calls_count"] * self._factors.get(entry["kernel"], 1.0)
                for name, amount in zip(_KERNEL_SUMS, kernel_sum, strict=True):
                    totals[entry["layer_type"]][name] += weight * float(amount)
        return totals


def layer_table(shares: TimeShares) -> pa.Table:
    """Return LAYERS_SCHEMA over the whole replay: layer types in the table's order, then `host`.

    `host` holds what steps waited beyond the device and for swapped blocks (as `launch_s`), so that time_s of all rows adds up to busy
    time; to more, where steps overlap in a pipeline.
    """
    host_s = float(shares.time_s[:, -2].sum())
    totals = {**shares.totals, HOST_LAYER: dict.fromkeys(_TOTALS, 0.0) | {"time_s": host_s, "launch_s": host_s}}
    rows = []
    for place, (layer, sums) in enumerate(totals.items()):
        stall_ratio = sums["memory_stall_s"] / sums["time_s"] if sums["time_s"] > 0 else 0.0
        flops = float(shares.flops[:, place].sum())
        rows.append(sums | {"layer_type": layer, "memory_stall_ratio": stall_ratio, "flops": flops})
    return pa.Table.from_pylist(rows, schema=LAYERS_SCHEMA)


def model_flops(table: StepTable, amounts: tuple[float, float, float, float, float]) -> float:
    """Return the model FLOPs of sums over steps: decode sequences, new prefill tokens, output tokens, pairs of decodes and of prefills."""
    kernels = table.kernels.to_pylist()
    layers = tuple(dict.fromkeys(entry["layer_type"] for entry in kernels))
    return float(_flops(kernels, layers, np.array([amounts], dtype=np.float64))[0, -1])


class _AxisRows:
    """Kernels whose cost is one row of a table: by tokens, or by sequences."""

    def __init__(self, table: StepTable, axis: str, layers: tuple[str, ...], factors: Mapping[str, float]) -> None:
        terms = {"tokens": table.token_terms, "sequences": table.sequence_terms}[axis]
        self.entries = [entry for entry in table.kernels.to_pylist() if entry["axis"] == axis]
        self.kernels, self.terms = [], kernel_rows(table, axis, terms, factors)
        self.by_layer: Floats = np.zeros((terms.num_rows, len(layers), 2))
        """Times and memory stalls of a step [rows, layers, 2]."""
        for entry, row in zip(self.entries, self.terms, strict=True):
            values: dict[str, Any] = {name: row[name] for name in ("compute_s", "memory_s", "launch_s", "sync_s", "bytes")}
            compute_s, memory_s, launch_s, sync_s, _ = values.values()
            values["time_s"] = combine(compute_s, memory_s, launch_s, sync_s, entry["overlap_exponent"])
            without_memory = combine(compute_s, np.zeros_like(memory_s), launch_s, sync_s, entry["overlap_exponent"])
            values["memory_stall_s"] = values["time_s"] - without_memory
            weighted = {name: row["weight"] * value for name, value in values.items()}
            self.by_layer[:, layers.index(entry["layer_type"]), 0] += weighted["time_s"]
            self.by_layer[:, layers.index(entry["layer_type"]), 1] += weighted["memory_stall_s"]
            self.kernels.append(weighted)

    def add_totals(self, totals: dict[str, dict[str, float]], uses: Counts) -> None:
        """Add what the kernels cost in all, where each row was used so often at the full clock."""
        for entry, weighted in zip(self.entries, self.kernels, strict=True):
            for name, value in weighted.items():  # not a dot product: its rounding depends on the thread count
                totals[entry["layer_type"]][name] += float((uses * value).sum())


def _flops(kernels: list[dict[str, Any]], layers: tuple[str, ...], amounts: Floats) -> Floats:
    """Return the model FLOPs of each window and layer, `host` and `all` included [windows, layers + 2]."""
    decodes, new_prefill, outputs, decode_pairs, prefill_pairs = amounts.T
    whole_step = (decodes + new_prefill, outputs, decode_pairs + prefill_pairs)
    needed = {
        "tokens": whole_step,
        "sequences": whole_step,
        "decode_attention": (decodes, decodes, decode_pairs),
        "prefill_attention": (new_prefill, outputs - decodes, prefill_pairs),
    }
    flops = np.zeros((len(amounts), len(layers) + 2))
    for entry in kernels:
        for unit, amount in zip(("flops_per_token", "flops_per_sequence", "flops_per_pair"), needed[entry["axis"]], strict=True):
            flops[:, layers.index(entry["layer_type"])] += entry[unit] * amount
    flops[:, -1] = flops.sum(axis=1)
    return flops


def _check_price(priced_s: float, device_s: float) -> None:
    if abs(priced_s - device_s) > PRICE_TOLERANCE * max(priced_s, device_s):
        raise InvariantError(f"kernels take {priced_s} s under this table and factors; the replay took {device_s} s")


def _slowdowns(steps: pa.Table, table: StepTable) -> Floats:
    """Return what each step's clock multiplied compute times by [steps]."""
    slowdowns = np.ones(steps.num_rows) if table.power is None else table.power.full_clock_hz / steps["clock_hz"].to_numpy()
    slowdowns.flags.writeable = False
    return slowdowns


def _read_only(column: npt.NDArray[Any]) -> Any:
    """Return a view of a column that nobody may write to, whether it was copied or not: one type for compiled code."""
    values = column.view()
    values.flags.writeable = False
    return values
