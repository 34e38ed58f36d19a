"""What every operator of a graph costs on a device, batch size by batch size.

Operators run one after another; their kernels are priced by an `OpPricer`: kernel families with a device's calibrations (`FamilyPricer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from replay.errors import SpecError
from replay.lowering.op_graph import Op, OpGraph
from replay.tiling.library import Source
from replay.tiling.op_kernels import KernelKind
from replay.tiling.terms import BOTTLENECK_OF_TERM, Array, Terms

COST_SCHEMA = pa.schema(
    [
        ("batch_count", pa.int64()),
        ("name", pa.string()),
        ("op_type", pa.string()),
        ("kernel", pa.string()),
        ("members", pa.string()),  # operators fused into it
        ("calls_count", pa.int64()),
        ("rows_count", pa.int64()),  # of one call
        ("weights_format", pa.string()),
        ("activations_format", pa.string()),
        ("flops", pa.float64()),  # of products and convolutions, by their definition, all calls
        ("bytes", pa.float64()),  # read and written, each value once, all calls
        ("time_s", pa.float64()),  # all calls
        ("bound_s", pa.float64()),  # least time that physics allows
        ("share_ratio", pa.float64()),  # of the batch's time
        ("bottleneck_class", pa.string()),
        ("source", pa.string()),
        ("missing_kernel", pa.string()),  # why there is none; null where there is one
    ]
)
"""One row per batch size and operator, in execution order."""
TOTALS_SCHEMA = pa.schema(
    [
        ("batch_count", pa.int64()),
        ("ops_count", pa.int64()),
        ("missing_kernels_count", pa.int64()),
        ("flops", pa.float64()),
        ("bytes", pa.float64()),
        ("time_s", pa.float64()),
        ("bound_s", pa.float64()),
    ]
)
"""One row per batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTerms:
    """What one call of an operator costs [rows]."""

    kernel: KernelKind
    terms: Terms
    """Pure terms: they say what bounds the operator."""
    time_s: Array
    bound_s: Array
    source: Source
    missing_kernel: str | None = None
    """Why there is no kernel, where there is none: the costs are then those of its bytes."""


class OpPricer(Protocol):
    """Prices operators on one device."""

    def terms(self, op: Op, rows: Array) -> OpTerms:
        """Return what one call of an operator costs for each number of rows [rows].

        Raises:
            SpecError: the device cannot run it at all.
        """
        ...


def graph_costs(graph: OpGraph, pricer: OpPricer, batches: Sequence[int]) -> pa.Table:
    """Return COST_SCHEMA rows of a graph for each batch size.

    Raises:
        SpecError: another batch than one for a graph whose batch is fixed, or an operator that the device cannot run.
    """
    if graph.batch_axis is None and set(batches) != {1}:
        got = f"batches of {', '.join(map(str, batches))}, but no axis of the model is dynamic: its batch is what it was exported with"
        raise SpecError("--batch", got, "a batch of 1, which is the model as it is", "name the axis with --axis TENSOR:INDEX=batch")
    priced: dict[Op, OpTerms] = {}
    rows: list[list[dict[str, Any]]] = []
    for op in graph.ops:
        alike = replace(op, name="", inputs=(), members=())
        if alike not in priced:
            priced[alike] = pricer.terms(op, np.array([op.rows(batch) for batch in batches], dtype=np.float64))
        rows.append([_row(op, batch, priced[alike], index) for index, batch in enumerate(batches)])
    found = []
    for index in range(len(batches)):
        here = [of_op[index] for of_op in rows]
        total_s = sum(row["time_s"] for row in here)
        found += [{**row, "share_ratio": row["time_s"] / total_s} for row in here]
    return pa.Table.from_pylist(found, schema=COST_SCHEMA)


def graph_totals(costs: pa.Table) -> pa.Table:
    """Return TOTALS_SCHEMA rows: the sums over the operators of each batch size."""
    rows = costs.to_pylist()
    found = []
    for batch in dict.fromkeys(row["batch_count"] for row in rows):
        here = [row for row in rows if row["batch_count"] == batch]
        sums = {name: sum(row[name] for row in here) for name in ("flops", "bytes", "time_s", "bound_s")}
        missing = sum(row["missing_kernel"] is not None for row in here)
        found.append({"batch_count": batch, "ops_count": len(here), "missing_kernels_count": missing, **sums})
    return pa.Table.from_pylist(found, schema=TOTALS_SCHEMA)


def _row(op: Op, batch: int, priced: OpTerms, index: int) -> dict[str, Any]:
    assert op.traffic is not None
    calls, rows = op.calls_count, op.rows(batch)
    largest = max(BOTTLENECK_OF_TERM, key=lambda name: float(getattr(priced.terms, name)[index]))
    return {
        "batch_count": batch,
        "name": op.name,
        "op_type": op.layer_type,
        "kernel": priced.kernel,
        "members": "+".join(op.members) or op.name,
        "calls_count": calls,
        "rows_count": rows,
        "weights_format": op.weights_format,
        "activations_format": op.activations_format,
        "flops": op.flops(batch),
        "bytes": calls * op.traffic.total_bytes(rows),
        "time_s": calls * float(priced.time_s[index]),
        "bound_s": calls * float(priced.bound_s[index]),
        "bottleneck_class": BOTTLENECK_OF_TERM[largest],
        "source": priced.source,
        "missing_kernel": priced.missing_kernel,
    }
