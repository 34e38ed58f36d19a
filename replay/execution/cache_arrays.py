"""The prefix cache of the replay loop as arrays, and names for the beginnings of prompts that a trace knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from replay.errors import TraceError
from replay.execution.step_costs import Counts
from replay.ingress.trace import Trace
from replay.tiling.step_table import StepTable

BLOCK_PLACES = 4
"""Key (-1: cannot be found), users, and the neighbours among free blocks (`replay.execution.loop_blocks`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """An empty cache: what the loop's memory holds of it, and the fields of its limits that describe it."""

    parts: dict[str, Counts]
    """By the name of the limit that says where a part starts: `blocks_at` [blocks + 1, BLOCK_PLACES], the last of which closes the
    ring of free ones; `found_at`, the hash table of findable blocks, plus 1 (0 is an empty place); `tables_at`, blocks of running
    sequences [slots, table_blocks]; `slots_at`, the stack of free slots; `starts_at`, where the names of each row of the trace start; and
    `nodes_at`, names of beginnings, one for each prefix block of the trace: equal names, equal tokens from the first to there.
    """
    limits: dict[str, int]


def new_cache(trace: Trace, total_tokens: Counts, table: StepTable) -> PrefixCache:
    """Return an empty cache for those of a trace's requests that fit, with prompts and outputs of `total_tokens` [requests].

    It has room for the whole pool or, where that is less, for all that the trace could ever put there.

    Raises:
        TraceError: the trace has prefix blocks of unstated length.
    """
    if not table.limits.prefix_cache:
        return PrefixCache(parts={}, limits={})
    needed = -(-(total_tokens - 1) // table.pool.block_tokens)
    ring, longest = min(table.pool.blocks_count, int(needed.sum())), int(needed.max(initial=0))
    blocks = np.zeros((ring + 1, BLOCK_PLACES), dtype=np.int64)
    blocks[:, 0] = -1
    blocks[ring, 2:] = ring
    found_bits = max(1, (2 * ring + 1).bit_length())
    slots_count = min(table.limits.max_running, len(total_tokens))
    starts, nodes = prefix_nodes(trace)
    return PrefixCache(
        parts={
            "blocks_at": blocks.ravel(),
            "found_at": np.zeros(1 << found_bits, dtype=np.int64),
            "tables_at": np.zeros(slots_count * longest, dtype=np.int64),
            "slots_at": np.arange(slots_count),
            "starts_at": starts,
            "nodes_at": nodes,
        },
        limits={
            "prefix_cache": 1,
            "ring": ring,
            "found_mask": (1 << found_bits) - 1,
            "found_shift": 64 - found_bits,
            "table_blocks": longest,
            "trace_block_tokens": trace_block_tokens(trace),
        },
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


def prefix_nodes(trace: Trace) -> tuple[Counts, Counts]:
    """Return where the names of each request start [requests + 1], and the names.

    Whether the trace's hashes cover their own block or all tokens up to its end makes no difference: names are given to whole paths.
    """
    blocks = trace.requests["prefix_blocks"].combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(blocks), 0).to_numpy().astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    hashes, codes = np.unique(pc.list_flatten(blocks).to_numpy(), return_inverse=True)
    nodes, path, named = np.zeros(len(codes), dtype=np.int64), np.zeros(len(lengths), dtype=np.int64), 0
    for depth in range(lengths.max(initial=0)):
        deep = np.flatnonzero(lengths > depth)
        places = starts[deep] + depth
        longer, names = np.unique(path[deep] * len(hashes) + codes[places], return_inverse=True)
        path[deep] = nodes[places] = named + 1 + names
        named += len(longer)
    return starts, nodes
