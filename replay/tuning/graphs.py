"""Sizes of captured graphs for a trace: no more and no larger ones than given, placed where the steps are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from replay.execution.step_costs import price_kernels, step_seconds
from replay.specs.mapping import MappingSpec
from replay.tiling.step_table import StepTable
from replay.tuning.mix import Counts, Floats
from replay.tuning.moves import Move, single_move

SIZES = "graph.sizes"
_CAPTURED_PHASES = {"none": (), "decode": (0,), "full": (0, 1)}
"""`graph.mode` -> phases of steps (0 = decode only, 1 = with prefill tokens) that replay a graph."""


def graph_move(table: StepTable, mapping: MappingSpec, steps: pa.Table) -> Move | None:
    """Return the best list of at most as many graph sizes as given, or None where nothing is captured or the given one is as good.

    The largest size stays, so that as many steps as before replay a graph.
    """
    given = mapping.value(SIZES)
    assert isinstance(given, tuple)
    sizes = [size for size in given if size <= table.limits.max_batched_tokens]
    phases = _CAPTURED_PHASES[str(mapping.value("graph.mode"))]
    tokens = steps["tokens"].to_numpy()
    traffic = tokens[np.isin(steps["prefill_tokens"].to_numpy() > 0, phases)]
    if not sizes or not (traffic <= sizes[-1]).any():
        return None
    axis = np.unique(np.concatenate([traffic[traffic <= sizes[-1]], sizes]))
    seconds = _padded_s(table, steps, axis, phases)
    wanted = axis[best_sizes(seconds, len(sizes))]
    before_s, after_s = (covered_s(seconds, np.searchsorted(axis, used)) for used in (np.array(sizes), wanted))
    value = tuple(int(size) for size in wanted)
    return None if value == tuple(sizes) else single_move(SIZES, was=given, value=value, before_s=before_s, after_s=after_s)


def _padded_s(table: StepTable, steps: pa.Table, axis: Counts, phases: tuple[int, ...]) -> Floats:
    """Return the time of all steps with axis[i] tokens were they padded to axis[j] [i, j]."""
    stride = table.limits.max_batched_tokens + 1
    token_s: Floats = np.zeros(2 * stride)
    used_s: Floats = np.zeros(steps.num_rows)
    for kernel in price_kernels(table, steps):
        if kernel.axis == "tokens":
            token_s += kernel.weight * kernel.time_s
            used_s += (kernel.weight * kernel.time_s)[kernel.row]
    others_s = step_seconds(table, steps).device_s - used_s
    tokens, phase = steps["tokens"].to_numpy(), (steps["prefill_tokens"].to_numpy() > 0).astype(np.int64)
    found = np.zeros((len(axis), len(axis)))
    for captured in phases:
        here = (phase == captured) & (tokens <= axis[-1])
        place = np.searchsorted(axis, tokens[here])
        count, other_s = (np.bincount(place, weights=values, minlength=len(axis)) for values in (np.ones(here.sum()), others_s[here]))
        mean_s = other_s / np.maximum(count, 1.0)
        device_s = token_s[captured * stride + axis][None, :] + mean_s[:, None]
        found += count[:, None] * np.maximum(device_s, table.host_graph_launch_s)
    return found


def covered_s(seconds: Floats, sizes: Counts) -> float:
    """Return the time of all steps with graphs of some sizes (places on the axis, ascending)."""
    rows = np.arange(sizes[-1] + 1)
    return float(seconds[rows, sizes[np.searchsorted(sizes, rows)]].sum())


def best_sizes(seconds: Floats, most: int) -> Counts:
    """Return the places of at most `most` sizes, the last one among them, that take the least time.

    Exact, by dynamic programming over sizes in ascending order, as clustering on a line (Wang and Song 2011).
    """
    count = len(seconds)
    total = np.vstack([np.zeros(count), np.cumsum(seconds, axis=0)])
    between = np.where(np.arange(count + 1)[:, None] <= np.arange(count)[None, :], np.diagonal(total[1:])[None, :] - total, np.inf)
    reached = np.full(count + 1, np.inf)
    reached[0] = 0.0
    came_from, least = [], []
    for _ in range(min(most, count)):
        through = reached[:, None] + between
        came_from.append(np.argmin(through, axis=0))
        reached = np.concatenate([[np.inf], through.min(axis=0)])
        least.append(reached[-1])
    found, place = [], count
    for step in range(int(np.argmin(least)), -1, -1):
        found.append(place - 1)
        place = int(came_from[step][place - 1])
    return np.array(found[::-1], dtype=np.int64)
