"""Load: whether an arm keeps up with the trace; where it does not, its percentiles grow with the length of the trace."""

from __future__ import annotations

from collections.abc import Iterator

from gates.checks.check import Evidence
from gates.finding import Finding
from replay.assembly.run import Run

BACKLOG_RATIO = 0.25
"""Time to finish after the last arrival, as a share of the trace's span, from which an arm counts as overloaded."""


def keeps_up(evidence: Evidence) -> Iterator[Finding]:
    """Find arms that are still working long after the last request arrived."""
    for arm, run in (("baseline", evidence.baseline), ("candidate", evidence.candidate)):
        span_s, backlog_s = _backlog(run)
        if span_s > 0 and backlog_s > BACKLOG_RATIO * span_s:
            message = (
                f"the {arm} does not keep up: it works on for {backlog_s:.4g} s after the last arrival of a trace of {span_s:.4g} s, "
                "so its percentiles depend on how long the trace is"
            )
            yield Finding(
                code=f"{arm}_overloaded", message=message, effect="informs", stage="release_decision", bottleneck_class="queueing"
            )


def _backlog(run: Run) -> tuple[float, float]:
    """Return (span of the arrivals, time from the last arrival to the last step's end), s."""
    import pyarrow.compute as pc

    if run.requests.num_rows == 0 or run.steps.num_rows == 0:
        return 0.0, 0.0
    bounds = pc.min_max(run.requests["arrival_s"]).as_py()
    return bounds["max"] - bounds["min"], float(pc.max(run.steps["end_s"]).as_py()) - bounds["max"]
