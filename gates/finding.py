"""Findings: facts about the evidence or the candidate that are not claims about a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from replay.specs.knobs import Stage

Effect = Literal["invalidates", "disproves", "informs"]
"""What a finding does to the cell: the evidence cannot support a decision; the candidate is worse; or it is only reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact: `code` for machines, `message` for people (where, what was found, what it means)."""

    code: str
    message: str
    effect: Effect
    stage: Stage
    bottleneck_class: str | None = None
    claim: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the reason as the verdict document carries it."""
        reason = {"code": self.code, "message": self.message}
        return reason if self.claim is None else {**reason, "claim": self.claim}
