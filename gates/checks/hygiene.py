"""Change hygiene: how much one change changes."""

from __future__ import annotations

from collections.abc import Iterator

from gates.checks.check import Evidence
from gates.finding import Finding
from replay.specs.mapping import diff

_SHOWN = 6


def few_knobs(evidence: Evidence) -> Iterator[Finding]:
    """Find changes of more knobs at once than the policy asks for."""
    limit = evidence.policy.max_changed_knobs
    if limit is None or evidence.mappings is None:
        return
    knobs = [change.knob for change in diff(*evidence.mappings)]
    if len(knobs) > limit:
        more = f" and {len(knobs) - _SHOWN} more" if len(knobs) > _SHOWN else ""
        message = (
            f"{len(knobs)} knobs change at once ({', '.join(knobs[:_SHOWN])}{more}) and the policy asks for {limit} at most: "
            "ship them one by one, so that a regression in production has one cause"
        )
        yield Finding(code="many_knobs_changed", message=message, effect="informs", stage="release_decision")
