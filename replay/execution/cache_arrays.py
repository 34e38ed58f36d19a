"""The prefix cache of the replay loop as arrays, and names for the beginnings of prompts that a trace knows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.errors import TraceError
from replay.execution.step_costs import Counts, Records
from replay.ingress.trace import Trace
from replay.tiling.step_table import StepTable

BLOCK = np.dtype([(name, np.int64) for name in ("key", "references", "before", "after")])
"""A cache block: what it holds (-1: nothing that could be found), sequences that use it, its neighbours among the free ones."""


class CacheArrays(NamedTuple):
    """Blocks with an identity; arrays of a single place where prefixes are not cached."""

    blocks: Records
    """BLOCK [blocks + 1]; the last one closes the ring of free ones."""
    found: Counts
    """Hash table of findable blocks, plus 1; 0 is an empty place [a power of two]."""
    tables: Counts
    """Blocks of running sequences [slots, longest]."""
    slots: Counts
    """Stack of free rows of `tables` [slots]."""
    starts: Counts
    """Where the names of each sequence stand in `nodes` [sequences + 1]."""
    nodes: Counts
    """Names of the beginnings of prompts, one for each block of the trace: equal names, equal tokens from the first to there."""


def new_cache(trace: Trace, order: Counts, sequences: Records, table: StepTable) -> CacheArrays:
    """Return an empty cache for `sequences`, which are the rows `order` of the trace.

    It has room for the whole pool or, where that is less, for all that the trace could ever put there.

    Raises:
        TraceError: the trace has prefix blocks of unstated length.
    """
    if not table.limits.prefix_cache:
        empty = np.zeros(1, dtype=np.int64)
        return CacheArrays(
            blocks=np.zeros(1, dtype=BLOCK), found=np.zeros(2, dtype=np.int64), tables=np.zeros((1, 1), dtype=np.int64), slots=empty,
            starts=empty, nodes=empty,
        )  # fmt: skip
    needed = -(-(sequences["total_tokens"] - 1) // table.pool.block_tokens)
    blocks = np.zeros(min(table.pool.blocks_count, int(needed.sum())) + 1, dtype=BLOCK)
    blocks["key"] = -1
    blocks["before"][-1] = blocks["after"][-1] = len(blocks) - 1
    slots = min(table.limits.max_running, len(sequences))
    starts, nodes = prefix_nodes(trace, order)
    return CacheArrays(
        blocks=blocks,
        found=np.zeros(1 << max(1, (2 * len(blocks) - 1).bit_length()), dtype=np.int64),
        tables=np.zeros((slots, int(needed.max(initial=0))), dtype=np.int64),
        slots=np.arange(slots),
        starts=starts,
        nodes=nodes,
    )


def trace_block_tokens(trace: Trace) -> int:
    """Return the tokens of one prefix block of a trace; 1 where it has none.

    Raises:
        TraceError: it has prefix blocks of unstated length.
    """
    stated = trace.provenance.prefix_block_tokens
    if stated is None and trace.requests["prefix_blocks"].null_count < trace.requests.num_rows:
        fix = "state it in the provenance of the trace, or turn kv.prefix_cache off"
        raise TraceError(trace.name, "prefix blocks of unstated length", "prefix_block_tokens", fix)
    return stated or 1


def prefix_nodes(trace: Trace, order: Counts) -> tuple[Counts, Counts]:
    """Return (`starts`, `nodes`) of CacheArrays for the rows `order` of a trace.

    Whether the trace's hashes cover their own block or all tokens up to its end makes no difference: names are given to whole paths.
    """
    requests: pa.Table = trace.requests.select(["prefix_blocks"]).take(order)
    blocks = requests["prefix_blocks"].combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(blocks), 0).to_numpy().astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    hashes, codes = np.unique(pc.list_flatten(blocks).to_numpy(), return_inverse=True)
    nodes, path, named = np.zeros(max(1, len(codes)), dtype=np.int64), np.zeros(len(order), dtype=np.int64), 0
    for depth in range(lengths.max(initial=0)):
        deep = np.flatnonzero(lengths > depth)
        places = starts[deep] + depth
        longer, names = np.unique(path[deep] * len(hashes) + codes[places], return_inverse=True)
        path[deep] = nodes[places] = named + 1 + names
        named += len(longer)
    return starts, nodes
