"""Which knobs a verdict blames, and the line of the mapping file that sets each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]


def blamed(predicate: Document) -> Iterator[Document]:
    """Yield the knobs to undo, or every changed one where no revert is known and knobs may be at fault."""
    mitigation = predicate["mitigation"]
    if mitigation is not None:
        yield from (knob for knob in predicate["knobs"] if knob["knob"] in mitigation["revert"])
    elif predicate["basis"] not in ("invalid_evidence", "proven_safe"):
        yield from predicate["knobs"]


def mapping_file(predicate: Document) -> str | None:
    """Return the candidate's mapping file; of ``git:REF:path`` the path."""
    name = next((record["name"] for record in predicate["inputs"] if record["role"] == "candidate_mapping"), None)
    if name is None or not name.startswith("git:"):
        return name
    parts = name.split(":", 2)
    return parts[2] if len(parts) == 3 else None
