"""Requests that a mapping can never serve: which limit refuses them, whose stage it is, and what kind of bottleneck it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay.specs.knobs import KNOBS, Stage

if TYPE_CHECKING:
    from replay.assembly.run import Run

KV_CAPACITY, CONTEXT_LIMIT = "kv_capacity", "context_limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit that refuses requests."""

    knob: str
    """The knob that stands for it."""
    bottleneck_class: str
    phrase: str
    """What the requests are that it refuses."""

    @property
    def stage(self) -> Stage:
        """The stage that owns the limit: that of its knob."""
        return KNOBS[self.knob].stage


LIMITS: dict[str, Limit] = {
    KV_CAPACITY: Limit(knob="kv.memory_ratio", bottleneck_class="memory_capacity", phrase="larger than the whole cache pool"),
    # A context limit is a number in the admission policy: no resource of the device is short, the queue refuses the request.
    CONTEXT_LIMIT: Limit(
        knob="batching.max_context_tokens",
        bottleneck_class="queueing",
        phrase="longer than batching.max_context_tokens allows",
    ),
}
"""By the reasons of `Run.rejected`."""


def rejected_more(baseline: Run, candidate: Run) -> dict[str, int]:
    """Return for each reason how many more requests the candidate rejects than the baseline; reasons without any are left out."""
    before, after = dict(baseline.rejected), dict(candidate.rejected)
    grown = {reason: after.get(reason, 0) - before.get(reason, 0) for reason in LIMITS}
    return {reason: count for reason, count in grown.items() if count > 0}
