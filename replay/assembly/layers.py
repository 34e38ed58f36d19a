"""Where the time of a replay went, by layer type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from replay.assembly.run import LAYERS_SCHEMA
from replay.errors import InvariantError
from replay.execution.step_costs import Floats, PricedKernel, price_kernels
from replay.execution.tables import Replay
from replay.tiling.step_table import StepTable

HOST_LAYER = "host"
"""Time that steps waited for the host after their device work was done."""
PRICE_TOLERANCE = 1e-9
"""Relative; rounding of a sum over kernels in another order is far below it, another table or factor far above."""

_NOTHING = {name: 0.0 for name in LAYERS_SCHEMA.names if name not in ("layer_type", "memory_stall_ratio")}
_Amounts = tuple[Floats, Floats, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShare:
    """One kernel's part of a replay."""

    kernel: PricedKernel
    time_s: Floats
    """Of one call [rows]."""
    stall_s: Floats
    """Memory stall of one call [rows]: time minus the time with infinite memory bandwidth (memory_s = 0 in the same rule)."""
    flops: Floats
    """Model FLOPs that had to be computed, over all calls and ranks [steps]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSteps:
    """One layer type in every step [steps]."""

    layer_type: str
    time_s: Floats
    memory_stall_s: Floats
    flops: Floats


def share_kernels(replay: Replay, table: StepTable, *, kernel_factors: Mapping[str, float] | None = None) -> list[KernelShare]:
    """Return each kernel's part of a replay, in the table's order.

    FLOPs are the model's: `flops_per_token` of tokens computed for the first time, `flops_per_sequence` of output tokens,
    `flops_per_pair` of attention pairs. None of these counts contains padding. Recomputation is taken off: exactly from tokens,
    and by scaling a step's prefill pairs by 1 - recomputed / prefill tokens.

    Raises:
        InvariantError: the table or the factors are not those the replay ran under.
    """
    amounts = _needed_amounts(replay.steps)
    shares = [
        KernelShare(kernel=kernel, time_s=kernel.time_s, stall_s=kernel.stall_s, flops=_needed_flops(kernel, amounts[kernel.axis]))
        for kernel in price_kernels(table, replay.steps, kernel_factors=kernel_factors)
    ]
    priced_s = sum(float((share.kernel.weight * share.time_s)[share.kernel.row].sum()) for share in shares)
    device_s = float(_column(replay.steps, "device_s").sum())
    if abs(priced_s - device_s) > PRICE_TOLERANCE * max(priced_s, device_s):
        raise InvariantError(f"kernels take {priced_s} s under this table and factors; the replay took {device_s} s")
    return shares


def layer_table(replay: Replay, shares: list[KernelShare]) -> pa.Table:
    """Return LAYERS_SCHEMA over the whole replay: layer types in the table's order, then `host`.

    `host` holds what steps waited beyond the device (as `launch_s`), so that time_s of all rows adds up to busy time.
    """
    layers: dict[str, dict[str, float]] = {}
    for share in shares:
        kernel = share.kernel
        sums = layers.setdefault(kernel.layer_type, dict(_NOTHING))
        uses = np.bincount(kernel.row, minlength=len(share.time_s)) * kernel.weight
        for name in ("compute_s", "memory_s", "launch_s", "sync_s", "bytes"):
            sums[name] += float((uses * getattr(kernel, name)).sum())  # not a dot product: its rounding depends on the thread count
        sums["time_s"] += float((uses * share.time_s).sum())
        sums["memory_stall_s"] += float((uses * share.stall_s).sum())
        sums["flops"] += float(share.flops.sum())
    host_s = float(_host_wait_s(replay.steps).sum())
    layers[HOST_LAYER] = _NOTHING | {"time_s": host_s, "launch_s": host_s}
    rows = [
        sums | {"layer_type": layer, "memory_stall_ratio": sums["memory_stall_s"] / sums["time_s"] if sums["time_s"] > 0 else 0.0}
        for layer, sums in layers.items()
    ]
    return pa.Table.from_pylist(rows, schema=LAYERS_SCHEMA)


def layer_steps(replay: Replay, shares: list[KernelShare]) -> list[LayerSteps]:
    """Return every layer type's share of each step, in the order of `layer_table`, `host` included."""
    layers: dict[str, list[Floats]] = {}
    for share in shares:
        sums = layers.setdefault(share.kernel.layer_type, [np.zeros(replay.steps.num_rows) for _ in range(3)])
        sums[0] += (share.kernel.weight * share.time_s)[share.kernel.row]
        sums[1] += (share.kernel.weight * share.stall_s)[share.kernel.row]
        sums[2] += share.flops
    nothing = np.zeros(replay.steps.num_rows)
    layers[HOST_LAYER] = [_host_wait_s(replay.steps), nothing, nothing]
    return [
        LayerSteps(layer_type=layer_type, time_s=time_s, memory_stall_s=stall_s, flops=flops)
        for layer_type, (time_s, stall_s, flops) in layers.items()
    ]


def _needed_amounts(steps: pa.Table) -> dict[str, _Amounts]:
    """Return (tokens, sequences, pairs) that each step had to compute, by axis, recomputation left out [steps]."""
    prefill, recomputed = _column(steps, "prefill_tokens"), _column(steps, "recomputed_tokens")
    prefill_pairs = _column(steps, "prefill_pairs") * (1.0 - recomputed / np.maximum(prefill, 1.0))
    decodes, decode_pairs = _column(steps, "decode_sequences"), _column(steps, "decode_context_tokens")
    outputs, new_prefill = _column(steps, "output_tokens"), prefill - recomputed
    whole_step = (decodes + new_prefill, outputs, decode_pairs + prefill_pairs)
    return {
        "tokens": whole_step,
        "sequences": whole_step,
        "decode_attention": (decodes, decodes, decode_pairs),
        "prefill_attention": (new_prefill, outputs - decodes, prefill_pairs),
    }


def _needed_flops(kernel: PricedKernel, amounts: _Amounts) -> Floats:
    flops = np.zeros(len(kernel.row))
    for rate, amount in zip((kernel.flops_per_token, kernel.flops_per_sequence, kernel.flops_per_pair), amounts, strict=True):
        if rate:
            flops += rate * amount
    return flops


def _host_wait_s(steps: pa.Table) -> Floats:
    return np.maximum(_column(steps, "host_s") - _column(steps, "device_s"), 0.0)


def _column(steps: pa.Table, name: str) -> Floats:
    return np.asarray(steps[name].to_numpy(), dtype=np.float64)
