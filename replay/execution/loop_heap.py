"""Binary heaps of ENTRY, compiled."""

from __future__ import annotations

from replay.compiled import compiled_part
from replay.execution.step_costs import Records


@compiled_part
def push(heap: Records, count: int, at_s: float, row: int) -> None:
    """Let an entry into a heap of `count`."""
    place = count
    while place > 0:
        above = heap[(place - 1) // 2]
        if above.at_s < at_s or (above.at_s == at_s and above.row <= row):
            break
        heap[place].at_s, heap[place].row = above.at_s, above.row
        place = (place - 1) // 2
    heap[place].at_s, heap[place].row = at_s, row


@compiled_part
def pop(heap: Records, count: int) -> None:
    """Take the first entry out of a heap, in which `count` are left."""
    at_s, row, place = heap[count].at_s, heap[count].row, 0
    while 2 * place + 1 < count:
        below = 2 * place + 1
        if below + 1 < count and _before(heap[below + 1], heap[below].at_s, heap[below].row):
            below += 1
        if not _before(heap[below], at_s, row):
            break
        heap[place].at_s, heap[place].row = heap[below].at_s, heap[below].row
        place = below
    heap[place].at_s, heap[place].row = at_s, row


@compiled_part
def _before(entry: Records, at_s: float, row: int) -> bool:
    """Return whether an entry of a heap comes before a time and row."""
    return bool(entry.at_s < at_s or (entry.at_s == at_s and entry.row < row))
