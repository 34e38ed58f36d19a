"""Recorded steps by column, compiled: a transposition in blocks that stay in the processor's nearest cache."""

from __future__ import annotations

from replay.compiled import compiled
from replay.execution.step_costs import Counts

BLOCK_STEPS = 32
"""About five kilobytes of rows."""


@compiled
def copy_columns(rows: Counts, columns: Counts) -> None:
    """Copy rows [steps, fields] to columns [fields, steps]."""
    steps, fields = rows.shape
    for first in range(0, steps, BLOCK_STEPS):
        last = min(first + BLOCK_STEPS, steps)
        for field in range(fields):
            for step in range(first, last):
                columns[field, step] = rows[step, field]
