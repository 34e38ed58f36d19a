"""All checks of measured runs, before any statistics."""

from __future__ import annotations

from gates.checks.measured_evidence import MeasuredCheck, MeasuredEvidence
from gates.checks.measured_load import arrivals, cache_state, load_was_sent, offered_load, warm_up
from gates.checks.measured_outliers import outlier_run
from gates.checks.measured_requests import candidate_serves_fewer, requests_recorded, requests_served, same_requests
from gates.checks.measured_setup import arms_apart, baseline_age, load_origin, mapping_recorded, same_setup
from gates.checks.measured_times import plausible_units, same_units
from gates.finding import Finding

MEASURED_CHECKS: tuple[MeasuredCheck, ...] = (
    requests_recorded,
    requests_served,
    candidate_serves_fewer,
    same_requests,
    same_units,
    plausible_units,
    offered_load,
    load_was_sent,
    arrivals,
    cache_state,
    warm_up,
    same_setup,
    arms_apart,
    outlier_run,
    load_origin,
    baseline_age,
    mapping_recorded,
)


def run_measured_checks(evidence: MeasuredEvidence, checks: tuple[MeasuredCheck, ...] = MEASURED_CHECKS) -> tuple[Finding, ...]:
    """Return the findings of all checks, in their order."""
    return tuple(finding for check in checks for finding in check(evidence))
