"""What a plan carries from a history: the drift that each blocking claim brings along."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gates.history.chain import Drift


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedDrift:
    """Drift that one blocking claim brings along."""

    key: str
    drift: Drift


@dataclass(frozen=True, slots=True, kw_only=True)
class CellDrift:
    """What a cell's blocking claims bring along from the history, fixed in the plan."""

    budget: float
    """Largest worsening since the anchor, as a fraction."""
    max_gap_days: float | None
    carried: tuple[CarriedDrift, ...] = ()
    undeclared: tuple[str, ...] = ()
    """Claims of the history that this plan does not declare."""
    last_release_at: str | None = None
    problem: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form that is digested."""
        rows = [{"claim": one.key, **asdict(one.drift), "verdicts": list(one.drift.verdicts)} for one in self.carried]
        return {**asdict(self), "carried": rows, "undeclared": list(self.undeclared)}
