"""Path rules of grouped multiplies: the tile a serving stack takes, and how rows per expert fill it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.tiling.terms import Array

MARLIN_TILE_ROWS = (8, 16, 32, 48, 64)
MARLIN_FILL_RATIO = 0.9
LOGISTIC_SLOPE = 1.702
"""Slope of the logistic function that is nearest to the normal distribution."""
TAIL_SPREADS = 4.0
"""Standard deviations beyond which no expert's load is looked for."""

_LADDER_TOKENS = np.array([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512])
_LADDER_TILES = np.array(
    [
        (16, 64, 256, 16), (16, 64, 256, 32), (16, 64, 256, 16), (16, 64, 256, 32), (16, 64, 256, 64), (32, 64, 128, 16), (32, 64, 128, 1),
        (32, 64, 64, 16), (64, 64, 128, 1), (32, 256, 64, 16), (64, 128, 64, 64), (128, 128, 64, 16), (128, 128, 64, 64),
    ],
    dtype=np.float64,
)  # fmt: skip
"""(rows, columns, depth, group) by tokens of a tuned file that SGLang ships for the A100 (one expert, width 14336)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTiles:
    """The tile of each call [shapes]."""

    rows: Array
    columns: Array
    depth: Array
    group: Array
    """Row tiles that share one pass over an expert's weights."""
    tuned: Array
    """1 where it comes from a tuned file."""


def sglang_tiles(tokens: Array, local_experts: Array, tuned: npt.NDArray[np.bool_]) -> ExpertTiles:
    """Return the tiles of SGLang's Triton kernel, 16-bit: the default of `get_default_config`, or a tuned file's.

    The default has 16 rows while tokens do not outnumber the rank's experts, else 64 rows - a cliff, whatever an expert's load.
    A tuned file is looked up at the nearest number of tokens.
    """
    few = tokens <= local_experts
    default = [np.where(few, small, large) for small, large in ((16, 64), (32, 64), (64, 32), (1, 8))]
    nearest = np.abs(tokens[:, None] - _LADDER_TOKENS[None, :]).argmin(axis=1)
    rows, columns, depth, group = (np.where(tuned, _LADDER_TILES[nearest, part], default[part]).astype(np.float64) for part in range(4))
    return ExpertTiles(rows=rows, columns=columns, depth=depth, group=group, tuned=tuned.astype(np.float64))


def vllm_tiles(tokens: Array, choices: Array, local_experts: Array, *, eight_bit: bool) -> ExpertTiles:
    """Return the default tiles of vLLM's Triton kernel (without a tuned file), 16-bit or 8-bit with one scale per tensor."""
    rows = np.where(tokens <= 32, 16, np.where(tokens <= 96, 32, np.where(tokens <= 512, 64, 128)))
    depth = np.where((tokens <= 64) | eight_bit, 128, 64)
    group = np.where(tokens * choices / local_experts > 128, 16, 1)
    return _tiles(rows, np.where(tokens <= 64, 64, 128), depth, group)


def vllm_block_tiles(tokens: Array) -> ExpertTiles:
    """Return the default tiles of vLLM's Triton kernel for 8-bit weights with a scale per block of 128 x 128."""
    few = tokens <= 64
    return _tiles(np.where(few, 16, 64), np.full(len(tokens), 128), np.full(len(tokens), 128), np.where(tokens <= 16, 1, 32))


def marlin_tiles(tokens: Array, choices: Array, local_experts: Array) -> ExpertTiles:
    """Return the tiles of the Marlin kernel for 4-bit weights: the fewest rows that an even load fills to less than nine tenths."""
    even = tokens * choices / local_experts
    rows = np.full(len(tokens), float(MARLIN_TILE_ROWS[-1]))
    for height in reversed(MARLIN_TILE_ROWS):
        rows = np.where(even / height < MARLIN_FILL_RATIO, height, rows)
    like = np.ones(len(tokens))
    return _tiles(rows, 128 * like, 64 * like, 8 * like)


def expected_active(mean_rows: Array) -> Array:
    """Return the chance that an expert has a row [...], where rows go to experts at random and one gets `mean_rows` on average."""
    return np.asarray(-np.expm1(-mean_rows))


def expected_row_tiles(mean_rows: Array, tile_rows: Array) -> Array:
    """Return the row tiles [...] that an expert fills on average, where rows go to experts at random (Poisson, mean `mean_rows`).

    The j-th further tile is there with the chance of more than j x tile rows: exact for the first, by the logistic form of the
    normal distribution for the others (within 0.01 of the chance; Bowling et al. 2009).
    """
    found, spread = expected_active(mean_rows), np.sqrt(np.maximum(mean_rows, 1e-9))
    most = np.ceil((mean_rows + TAIL_SPREADS * spread) / tile_rows)
    for tile in range(1, int(most.max(initial=0.0)) + 1):
        beyond = np.clip((mean_rows - tile * tile_rows - 0.5) / spread, -2.0 * TAIL_SPREADS, 2.0 * TAIL_SPREADS)
        further = expected_active(mean_rows) / (1.0 + np.exp(-LOGISTIC_SLOPE * beyond))
        found = found + np.where(tile <= most, further, 0.0)  # each load on its own, whatever others it is computed beside
    return np.asarray(found)


def row_tiles(rows_per_expert: Array, tile_rows: float) -> float:
    """Return how many row tiles experts with these rows [..., experts] fill: the sum over experts, averaged over leading axes."""
    return float(np.ceil(rows_per_expert / tile_rows).sum(axis=-1).mean())


def most_loaded_rank(rows_per_expert: Array, ranks: int) -> Array:
    """Return the rows per expert [draws, experts / ranks] of the rank with most rows in each draw.

    `rows_per_expert` [draws, experts]: a draw is one routing, its experts dealt to ranks in order.
    """
    dealt = rows_per_expert.reshape(len(rows_per_expert), ranks, -1)
    return np.asarray(dealt[np.arange(len(dealt)), dealt.sum(axis=2).argmax(axis=1)])


def _tiles(rows: Array, columns: Array, depth: Array, group: Array) -> ExpertTiles:
    parts = [np.asarray(part, dtype=np.float64) for part in (rows, columns, depth, group)]
    return ExpertTiles(rows=parts[0], columns=parts[1], depth=parts[2], group=parts[3], tuned=np.zeros(len(parts[0])))
