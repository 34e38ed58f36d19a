"""What a writing process of the tests does; a module of its own, so that a new process loads little."""

from collections.abc import Sequence
from threading import Barrier

from gates.history.ledger import Ledger
from gates.history.rows import ClaimRow, VerdictRow


def write_all(place: str, rows: Sequence[tuple[VerdictRow, tuple[ClaimRow, ...]]], barrier: Barrier) -> None:
    """Append verdicts one by one, beginning when all writers do."""
    barrier.wait()
    for verdict, claims in rows:
        Ledger(place=place).append(verdict, claims)
