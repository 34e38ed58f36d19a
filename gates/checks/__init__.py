"""Checks of the evidence and of hard limits: they can only make a verdict weaker, never stronger.

Open `check.py` for what a check is (`measured_evidence.py` for measured runs); every other file is one family.
"""

from __future__ import annotations

from gates.checks.ages import trace_age
from gates.checks.capacity import requests_rejected
from gates.checks.check import Check, Evidence
from gates.checks.evidence import arms_comparable, requests_present, trace_provenance
from gates.checks.hygiene import few_knobs
from gates.checks.load import keeps_up
from gates.checks.precision import quality_evidence
from gates.checks.representative import represents
from gates.checks.stability import stays_fast
from gates.finding import Finding

CHECKS: tuple[Check, ...] = (
    requests_present,
    arms_comparable,
    trace_provenance,
    trace_age,
    represents,
    quality_evidence,
    requests_rejected,
    keeps_up,
    stays_fast,
    few_knobs,
)


def run_checks(evidence: Evidence, checks: tuple[Check, ...] = CHECKS) -> tuple[Finding, ...]:
    """Return the findings of all checks, in their order."""
    return tuple(finding for check in checks for finding in check(evidence))


__all__ = ["CHECKS", "Check", "Evidence", "run_checks"]
