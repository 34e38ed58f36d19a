"""Rows of one rank's experts: how many it multiplies for so many tokens, over how many experts and row tiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay.lowering.expert_ranks import reached_ratio
from replay.lowering.op_graph import ExpertsShape
from replay.tiling.families.expert_tiles import expected_active, expected_row_tiles
from replay.tiling.terms import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRows:
    """What one rank has to do in a call, on average over routings [rows]."""

    tokens: Array
    """That reach it."""
    rows: Array
    """Choices of its experts."""
    active_experts: Array
    row_tiles: Array


def rank_rows(shape: ExpertsShape, tokens: Array, tile_rows: Array) -> RankRows:
    """Return the rows of an average rank's experts for `tokens` of all ranks [rows]: each token chooses each expert with its chance."""
    groups = shape.typical
    means = [tokens * group.rows_per_token for group in groups]
    active = sum(group.count * expected_active(mean) for group, mean in zip(groups, means, strict=True))
    tiles = sum(group.count * expected_row_tiles(mean, tile_rows) for group, mean in zip(groups, means, strict=True))
    rows = sum(group.count * mean for group, mean in zip(groups, means, strict=True))
    reached = tokens
    if shape.loads is not None and shape.loads.exchanged:
        reached = np.maximum(tokens * reached_ratio(groups), np.minimum(tokens, 1.0))
    return RankRows(tokens=reached, rows=np.asarray(rows), active_experts=np.asarray(active), row_tiles=np.asarray(tiles))
