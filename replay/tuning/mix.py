"""The shape mix of a replay: how often its steps have which rows, contexts and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.tiling.step_table import StepTable

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMix:
    """How often kernels run on how many rows."""

    rows: Counts
    """Ascending and distinct, at least 1 [rows]."""
    steps_count: Floats
    """[rows]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridMix:
    """How often attention runs on how many rows of how many keys, spread onto the knots that a step table interpolates between."""

    rows: Floats
    """Ascending and distinct, at least 1 [rows]."""
    keys: Floats
    """Mean context or mean keys of a query [knots]."""
    steps_count: Floats
    """[rows, knots]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeMix:
    """What a step table is asked for by the steps of a replay."""

    tokens: tuple[RowMix, RowMix]
    """By phase of the step (0 = decode only, 1 = with prefill tokens): rows computed, padding to captured graphs included."""
    sequences: RowMix
    decode: GridMix
    prefill: GridMix


def shape_mix(table: StepTable, steps: pa.Table) -> ShapeMix:
    """Return the mix of steps (SHAPE_COLUMNS of `replay.execution.tables`) as `table` prices them."""
    column = {name: steps[name].to_numpy() for name in steps.column_names if pa.types.is_integer(steps[name].type)}
    phase = (column["prefill_tokens"] > 0).astype(np.int64)
    captured = table.capture["captured_tokens"].to_numpy()[phase * (table.limits.max_batched_tokens + 1) + column["tokens"]]
    computed = np.where(captured > 0, captured, column["tokens"])
    decoding, prefilling = column["decode_sequences"] > 0, column["prefill_tokens"] > 0
    sequences, context = column["decode_sequences"][decoding], column["decode_context_tokens"][decoding]
    tokens, pairs = column["prefill_tokens"][prefilling], column["prefill_pairs"][prefilling]
    return ShapeMix(
        tokens=(_row_mix(computed[phase == 0]), _row_mix(computed[phase == 1])),
        sequences=_row_mix(column["sequences"][column["sequences"] > 0]),
        decode=_grid(np.unique(sequences).astype(np.float64), table.context_knots, sequences, context / np.maximum(sequences, 1)),
        prefill=_grid(table.token_knots[table.token_knots > 0], table.keys_knots, tokens, pairs / np.maximum(tokens, 1)),
    )


def _row_mix(rows: Any) -> RowMix:
    distinct, counts = np.unique(rows, return_counts=True)
    return RowMix(rows=distinct, steps_count=counts.astype(np.float64))


def _grid(row_knots: Floats, key_knots: Floats, rows: Any, keys: Any) -> GridMix:
    """Return steps of `rows` [steps] and `keys` [steps] spread bilinearly onto knots; knots without a step are left out."""
    count = np.zeros((len(row_knots), len(key_knots)))
    if len(rows):
        for row, row_share in _ends(row_knots, rows):
            for key, key_share in _ends(key_knots, keys):
                np.add.at(count, (row, key), row_share * key_share)
    here = count.sum(axis=1) > 0
    return GridMix(rows=row_knots[here], keys=key_knots, steps_count=count[here])


def _ends(knots: Floats, values: Any) -> tuple[tuple[Counts, Floats], tuple[Counts, Floats]]:
    """Return both knots around each value with their shares; beyond either end all of it is the last knot's."""
    low = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, max(len(knots) - 2, 0))
    high = np.minimum(low + 1, len(knots) - 1)
    gap = np.where(high > low, knots[high] - knots[low], 1.0)
    share = np.clip((values - knots[low]) / gap, 0.0, 1.0)
    return (low, 1.0 - share), (high, share)
