"""What a check of measured runs looks at, and all of them; like every check they can only make a verdict weaker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gates.finding import Effect, Finding
from gates.measure.pairing import Pairing

if TYPE_CHECKING:
    from gates.policy import PolicySpec
    from replay.ingress.measured.measured_run import MeasuredRun
    from replay.ingress.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEvidence:
    """Both arms of a cell, each with at least one run."""

    baseline: tuple[MeasuredRun, ...]
    candidate: tuple[MeasuredRun, ...]
    pairing: Pairing
    """Of the first run of each arm."""
    policy: PolicySpec
    as_of: str | None = None
    trace: Trace | None = None
    """What both arms were driven with, where it was named."""
    mappings: tuple[bool, bool] = (False, False)
    """Whether each arm says which mapping it ran."""

    @property
    def runs(self) -> Iterator[tuple[str, MeasuredRun]]:
        """Every run with what people call it: ``the baseline``, ``run 2 of the candidate``."""
        for arm, runs in (("the baseline", self.baseline), ("the candidate", self.candidate)):
            for number, run in enumerate(runs, start=1):
                yield (arm if len(runs) == 1 else f"run {number} of {arm}"), run


MeasuredCheck = Callable[[MeasuredEvidence], Iterable[Finding]]
"""One question about the evidence of a measured cell: what was found, nothing where all is well."""


def about_runs(code: str, message: str, effect: Effect = "invalidates") -> Finding:
    """Return a finding about how the runs were measured: nothing in the candidate is known to be at fault."""
    return Finding(code=code, message=message, effect=effect, stage="ingress", bottleneck_class="measurement")
