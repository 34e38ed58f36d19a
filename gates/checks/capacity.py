"""Capacity: requests that can never fit under a mapping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gates.checks.check import Evidence
from gates.finding import Finding
from gates.rejections import LIMITS, rejected_more

if TYPE_CHECKING:
    from replay.assembly.run import Run


def requests_rejected(evidence: Evidence) -> Iterator[Finding]:
    """Find requests that an arm rejects; that the candidate alone rejects one is a regression whatever the latencies say."""
    baseline, candidate = _rejected(evidence.baseline), _rejected(evidence.candidate)
    total = evidence.baseline.requests.num_rows
    lost, gained = candidate - baseline, baseline - candidate
    if lost:
        yield from _against(evidence, lost, total)
    if gained:
        message = f"the candidate serves {len(gained)} of {total} requests that the baseline rejects; their latencies are not compared"
        relaxed = rejected_more(evidence.candidate, evidence.baseline) or dict(evidence.baseline.rejected)
        yield Finding(code="requests_newly_served", message=message, effect="informs", stage=LIMITS[next(iter(relaxed))].stage)
    if not baseline:
        return
    message = f"the baseline itself rejects {len(baseline)} of {total} requests{_reasons(evidence.baseline)}"
    if len(baseline) > evidence.policy.max_rejected_ratio * total:
        # The tail that p99 is about may lie among the requests that were never served.
        accepted = f"{evidence.policy.max_rejected_ratio * 100:g} %"
        message += f", more than {accepted}: the trace does not fit the deployment, so its tail was not replayed"
        yield Finding(code="requests_never_fit", message=message, effect="invalidates", stage="ingress", bottleneck_class="measurement")
    else:
        yield Finding(code="requests_never_fit", message=message + "; they are left out", effect="informs", stage="ingress")


def _against(evidence: Evidence, lost: set[str], total: int) -> Iterator[Finding]:
    """Yield a finding for each limit that refuses more requests than before, charged to the stage that owns the limit."""
    # Where the counts only changed places, every limit that refuses something is named.
    tightened = rejected_more(evidence.baseline, evidence.candidate) or dict(evidence.candidate.rejected)
    for reason in tightened:
        limit, before, after = LIMITS[reason], dict(evidence.baseline.rejected).get(reason, 0), dict(evidence.candidate.rejected)[reason]
        message = (
            f"the candidate rejects {len(lost)} of {total} requests that the baseline serves, for example {min(lost)}: "
            f"{limit.phrase} ({reason}: {after} instead of {before})"
        )
        yield Finding(
            code="requests_rejected", message=message, effect="disproves", stage=limit.stage, bottleneck_class=limit.bottleneck_class
        )


def _rejected(run: Run) -> set[str]:
    from replay.execution.tables import COMPLETED

    pairs = zip(run.requests["request_id"].to_pylist(), run.requests["status"].to_pylist(), strict=True)
    return {request for request, status in pairs if status != COMPLETED}


def _reasons(run: Run) -> str:
    return f" ({', '.join(f'{reason}: {count}' for reason, count in run.rejected)})" if run.rejected else ""
