"""Counterfactual costs: the candidate's step table with the terms behind one bottleneck class as the baseline has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from replay.tiling.step_table import StepTable
from replay.tiling.terms import BOTTLENECK_OF_TERM, COLLECTIVE_LAYER

_TABLES = {
    "token_terms": ("phase", "tokens"),
    "sequence_terms": ("sequences",),
    "decode_terms": ("sequences", "context_tokens"),
    "prefill_terms": ("tokens", "keys_tokens"),
}
"""The tables of terms with the columns that say what a row is for."""
_HOST = (
    "host_launch_s", "host_graph_launch_s", "launches_count", "prefill_launches_count", "host_calls_s", "prefill_host_calls_s", "capture",
)  # fmt: skip


def with_terms_of(candidate: StepTable, baseline: StepTable, bottleneck_class: str) -> StepTable | None:
    """Return the candidate's table with what makes up a class (see `gates.attribution.bottleneck`) from the baseline's.

    Kernels that only the candidate has lose these terms, for the baseline spends nothing on them. None where it lacks kernels that the
    baseline has or calls them otherwise, where the tables' rows differ, so that no row stands for the same work in both, and for classes
    that no term of a step belongs to.
    """
    calls, calls_before = (_by_kernel(table, "calls_count") for table in (candidate, baseline))
    if any(calls.get(kernel) != count for kernel, count in calls_before.items()):
        return None
    changed, layers = {}, _by_kernel(candidate, "layer_type")
    terms = [term for term, name in BOTTLENECK_OF_TERM.items() if name == bottleneck_class]
    if not terms and bottleneck_class != "interconnect":
        return None
    for name, keys in _TABLES.items():
        ours, theirs = getattr(candidate, name), getattr(baseline, name)
        if any(not ours[key].equals(theirs[key]) for key in keys):
            return None
        changed[name] = _replaced(ours, theirs, layers, terms)
    if bottleneck_class == "launch_sync":
        if any(not candidate.capture[key].equals(baseline.capture[key]) for key in ("phase", "tokens")):
            return None
        changed |= {name: getattr(baseline, name) for name in _HOST}
    return replace(candidate, **changed)


def _by_kernel(table: StepTable, column: str) -> dict[str, Any]:
    return dict(zip(table.kernels["kernel"].to_pylist(), table.kernels[column].to_pylist(), strict=True))


def _replaced(ours: pa.Table, theirs: pa.Table, layers: dict[str, str], terms: list[str]) -> pa.Table:
    for place, column in enumerate(ours.column_names):
        kernel, _, term = column.rpartition(".")
        is_collective = layers.get(kernel) == COLLECTIVE_LAYER
        if not kernel or term == "bytes" or (is_collective if terms else not is_collective) or (terms and term not in terms):
            continue
        values = theirs[column] if column in theirs.column_names else pa.array(np.zeros(ours.num_rows))
        ours = ours.set_column(place, column, values)
    return ours
