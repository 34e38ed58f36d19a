"""Which kernel shapes to time, so that measured kernels in place of modelled ones decide what the model's error leaves open.

Rows are in the columns that `--measurements` reads, times left empty. A measured kernel counts inside the hull of its rows, so the least
and largest row counts of the replay are among them, and between them those that most of the time is spent on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gates.statistics.blocks import Counts, Floats
from replay.calibration.kinds.gemm import pinned_cells
from replay.execution.step_costs import PricedKernel, price_kernels
from replay.lowering.kernel_plan import FORMAT_BYTES, Kernel
from replay.lowering.op_graph import AttentionShape, MatmulShape
from replay.tiling.bins import attention_bins, product_bins, product_format

if TYPE_CHECKING:
    import pyarrow as pa

    from replay.pipeline import Replayer
    from replay.specs.mapping import MappingSpec

Row = dict[str, str | int]
SHAPES_PER_KERNEL = 8
"""Row counts of a multiply; attention has half as many along each of its two lengths."""


def measure_next(replayer: Replayer, arms: Sequence[MappingSpec], kernels: Sequence[str]) -> dict[str, list[Row]]:
    """Return the shapes of the named kernels under each mapping, by kind of measurement file (`gemm`, `attention_context`, ...).

    Kernels that no file of timings can stand for are left out: those of other families, and attention whose tile a mapping pins.
    """
    found: dict[str, dict[tuple[Any, ...], Row]] = {}
    for mapping in arms:
        there = mapping.only_on(replayer.hardware.name)
        schedule, steps = replayer.schedule(mapping), replayer.run(mapping).steps
        priced = {one.kernel: one for one in price_kernels(schedule.table, steps)}
        facts = {row["kernel"]: row for row in schedule.table.kernels.to_pylist()}
        for kernel in schedule.plan.kernels:
            if kernel.id in kernels:
                stack = facts[kernel.id]["stack"].partition("+")[0]
                rows = _rows(kernel, priced[kernel.id], steps, schedule.table.limits.max_batched_tokens)
                for kind, row in _shapes(kernel, rows, replayer, there):
                    row |= {"gpu": replayer.hardware.name, f"ms_{stack}" if stack else "ms": ""}
                    found.setdefault(kind, {})[tuple(row.items())] = row
    return {kind: list(rows.values()) for kind, rows in found.items()}


def _rows(kernel: Kernel, priced: PricedKernel, steps: pa.Table, largest: int) -> tuple[Counts, Counts]:
    """Return the typical (rows, keys) of a kernel in a replay; keys are mean ones of a query, 0 for multiplies."""
    time_s = priced.time_s[priced.row]
    if kernel.axis == "tokens":
        return _typical(priced.row % (largest + 1), time_s, SHAPES_PER_KERNEL), np.zeros(1, dtype=np.int64)
    if kernel.axis == "sequences":
        return _typical(priced.row, time_s, SHAPES_PER_KERNEL), np.zeros(1, dtype=np.int64)
    count, total = ("decode_sequences", "decode_context_tokens") if kernel.phase == "decode" else ("prefill_tokens", "prefill_pairs")
    rows, sums = (steps[name].to_numpy() for name in (count, total))
    busy = rows > 0
    keys = np.rint(sums[busy] / rows[busy]).astype(np.int64)
    return _typical(rows[busy], time_s[busy], SHAPES_PER_KERNEL // 2), _typical(keys, time_s[busy], SHAPES_PER_KERNEL // 2)


def _typical(values: Counts, weights: Floats, count: int) -> Counts:
    """Return up to `count` distinct values: the least, the largest, and quantiles by weight between."""
    used = values[weights > 0]
    if not len(used):
        return used
    order = np.argsort(used, kind="stable")
    upto = np.cumsum(weights[weights > 0][order])
    inner = np.searchsorted(upto, np.linspace(0.0, upto[-1], count)[1:-1])
    return np.unique(np.concatenate([[used.min(), used.max()], used[order][np.minimum(inner, len(used) - 1)]]))


def _shapes(kernel: Kernel, rows: tuple[Counts, Counts], replayer: Replayer, mapping: MappingSpec) -> Iterator[tuple[str, Row]]:
    counts, keys = (values.tolist() for values in rows)
    if not counts:
        return
    device, on_device = replayer.hardware, mapping.on(replayer.hardware.name)
    if isinstance(kernel.shape, MatmulShape) and kernel.is_dense:
        sizes = {"n": kernel.matmul.columns, "k": kernel.matmul.depth}
        for bin_ in product_bins(kernel, device, on_device, max(counts)):
            inside = [count for count in counts if bin_.first_row <= count <= bin_.last_row and bin_.backend == "matrix"]
            pins = pinned_cells(bin_.tile, bin_.called_split)
            yield from (("gemm", {"dtype": product_format(kernel).name, "m": count, **sizes, **pins}) for count in inside)
    elif isinstance(kernel.shape, AttentionShape) and all(b.tile is None for b in attention_bins(kernel, device, on_device, max(counts))):
        shape = kernel.attention
        formats = {"attn_dtype": "bfloat16", "kv_dtype": "fp8" if FORMAT_BYTES[kernel.kv_format] < FORMAT_BYTES["bf16"] else "bfloat16"}
        heads = {"num_heads": shape.query_heads, "num_kv_heads": shape.kv_heads, "head_dim": shape.head_size}
        if kernel.phase == "decode":
            yield from (
                ("attention_generation", {**formats, "batch_size": count, **heads, "kv_len": seen}) for count in counts for seen in keys
            )
        else:
            yield from (("attention_context", {**formats, "batch_size": 1, "isl": count, **heads}) for count in counts if count > 1)


def as_files(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Return the rows by file name: the kind with most rows is ``measure-next.csv``, others have their kind in the name."""
    kinds = sorted(rows, key=lambda kind: (-len(rows[kind]), kind))
    return {("measure-next.csv" if not place else f"measure-next-{kind}.csv"): list(rows[kind]) for place, kind in enumerate(kinds)}
