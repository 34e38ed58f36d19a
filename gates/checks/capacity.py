"""Capacity: requests that can never fit under a mapping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gates.checks.check import Evidence
from gates.finding import Finding

if TYPE_CHECKING:
    from replay.assembly.run import Run

_TOLERATED_SHARE = 0.01  # beyond it, the tail that p99 is about may lie among the requests that were never served


def requests_rejected(evidence: Evidence) -> Iterator[Finding]:
    """Find requests that an arm rejects; that the candidate alone rejects one is a regression whatever the latencies say."""
    baseline, candidate = _rejected(evidence.baseline), _rejected(evidence.candidate)
    total = evidence.baseline.requests.num_rows
    lost, gained = candidate - baseline, baseline - candidate
    if lost:
        message = (
            f"the candidate rejects {len(lost)} of {total} requests that the baseline serves{_reasons(evidence.candidate)}, "
            f"for example {min(lost)}"
        )
        yield Finding(code="requests_rejected", message=message, effect="disproves", stage="tiling", bottleneck_class="memory_capacity")
    if gained:
        message = f"the candidate serves {len(gained)} of {total} requests that the baseline rejects; their latencies are not compared"
        yield Finding(code="requests_newly_served", message=message, effect="informs", stage="tiling")
    if not baseline:
        return
    message = f"the baseline itself rejects {len(baseline)} of {total} requests{_reasons(evidence.baseline)}"
    if len(baseline) > _TOLERATED_SHARE * total:
        message += f", more than {_TOLERATED_SHARE:.0%}: the trace does not fit the deployment, so its tail was not replayed"
        yield Finding(code="requests_never_fit", message=message, effect="invalidates", stage="ingress", bottleneck_class="measurement")
    else:
        yield Finding(code="requests_never_fit", message=message + "; they are left out", effect="informs", stage="ingress")


def _rejected(run: Run) -> set[str]:
    from replay.execution.tables import COMPLETED

    pairs = zip(run.requests["request_id"].to_pylist(), run.requests["status"].to_pylist(), strict=True)
    return {request for request, status in pairs if status != COMPLETED}


def _reasons(run: Run) -> str:
    return f" ({', '.join(f'{reason}: {count}' for reason, count in run.rejected)})" if run.rejected else ""
