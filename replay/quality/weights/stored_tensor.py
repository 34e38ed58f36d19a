"""One tensor as a reader of weights gives it."""

from __future__ import annotations

from dataclasses import dataclass

from replay.quality.elements import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a checkpoint."""

    name: str
    values: Values
    stored_as: str
    """Format in the file."""
