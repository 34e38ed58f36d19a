"""Ages: whether the recording is recent enough to say something about today's traffic."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from gates.checks.check import Evidence
from gates.finding import Finding
from replay.errors import InvariantError

_DAY_S = 86_400.0


def trace_age(evidence: Evidence) -> Iterator[Finding]:
    """Find traces older than the policy accepts, or of unknown age where it limits the age."""
    limit_days, trace = evidence.policy.max_trace_age_days, evidence.baseline.trace
    if limit_days is None:
        return
    if evidence.as_of is None:
        raise InvariantError("the policy limits ages and no moment was given to count them from")
    recorded_at = evidence.provenance.recorded_at
    if recorded_at is None:
        yield _invalid(
            "trace_age_unknown", f"trace {trace} does not say when it was recorded; the policy accepts {limit_days:g} days at most"
        )
        return
    age_days = (parse_time(evidence.as_of) - parse_time(recorded_at)).total_seconds() / _DAY_S
    if age_days > limit_days:
        message = f"trace {trace} was recorded {age_days:.1f} days before {evidence.as_of}; the policy accepts {limit_days:g} days at most"
        yield _invalid("trace_too_old", message)
    elif age_days < 0:
        yield _invalid("trace_from_the_future", f"trace {trace} was recorded at {recorded_at}, after {evidence.as_of}")


def parse_time(text: str) -> datetime:
    """Return the moment of an ISO 8601 text; without a zone it is read as UTC.

    Raises:
        ValueError: it is no such text.
    """
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _invalid(code: str, message: str) -> Finding:
    return Finding(code=code, message=message, effect="invalidates", stage="ingress", bottleneck_class="measurement")
