"""Which requests can ever run under a table's limits; the others are reported, never dropped and never waited for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from replay.execution.step_costs import Counts
from replay.tiling.step_table import StepTable

FITS, TOO_LONG, NO_ROOM = 0, 1, 2
REJECTION_REASONS = {TOO_LONG: "context_limit", NO_ROOM: "kv_capacity"}
"""`context_limit`: prompt plus output exceeds `limits.max_context_tokens`; `kv_capacity`: its cache exceeds the whole pool less the
watermark."""


def rejections(requests: pa.Table, table: StepTable) -> Counts:
    """Return FITS, TOO_LONG or NO_ROOM for each request [requests].

    A request's cache holds prompt + output - 1 tokens at most: the last output token is never a key. It must leave the watermark free,
    for a preempted sequence is admitted again with all that it had.
    """
    prompt, output = (requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens"))
    blocks = -(-(prompt + output - 1) // table.pool.block_tokens)
    verdict = np.where(blocks > table.pool.blocks_count - table.watermark_blocks, NO_ROOM, FITS)
    return np.asarray(np.where(prompt + output > table.limits.max_context_tokens, TOO_LONG, verdict), dtype=np.int64)


def count_rejections(requests: pa.Table, table: StepTable) -> tuple[tuple[str, int], ...]:
    """Return (reason, requests) for those that can never fit; reasons without requests are left out."""
    codes = rejections(requests, table)
    counted = ((reason, int((codes == code).sum())) for code, reason in REJECTION_REASONS.items())
    return tuple((reason, count) for reason, count in counted if count)
