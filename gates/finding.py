"""Findings: facts about the evidence or the candidate that are not claims about a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from replay.specs.knobs import Stage

Effect = Literal["invalidates", "disproves", "informs"]
"""What a finding does to the cell: the evidence cannot support a decision; the candidate is worse; or it is only reported."""


CODES = frozenset({
    "achieved_load_differs", "archive_too_small", "arms_not_comparable", "arms_not_interleaved", "arrival_meaning_differs",
    "arrivals_sent", "arrivals_unknown", "attribution_needs_replay", "baseline_age", "baseline_age_unknown",
    "baseline_from_the_future", "baseline_overloaded", "baseline_too_old", "cache_state_differs", "cache_state_unknown",
    "candidate_overloaded", "candidate_still_heating", "candidate_throttles", "cold_start_in_one_arm", "concurrency_differs",
    "coordinated_omission", "counts_differ", "drift_budget_exceeded", "drift_history_gap", "drift_history_missing",
    "drift_not_known", "drift_not_limited", "drift_starts_here", "duplicate_ids", "evidence_missing", "hardware_changed",
    "history_age", "history_stale", "history_undeclared", "load_differs", "load_differs_from_reference", "load_missing",
    "load_not_comparable", "load_not_in_baseline", "many_knobs_changed", "mapping_unknown", "measure_next", "measurements_unused",
    "model_changed", "model_error_unestimated", "no_requests", "offered_load_differs", "offered_load_not_reached",
    "origin_stated_on_import", "origin_unstated", "outlier_run", "overloaded", "owners_changed", "owners_rule_matches_nothing",
    "policy_changed", "project_changed", "quality_at_floor", "quality_evidence_missing", "quality_items_beyond_traffic",
    "quality_items_differ", "quality_models_differ", "quality_note", "quality_settings_differ", "reconstructed_trace",
    "reference_missing", "reference_unusable", "request_order_differs", "request_shapes_differ", "requests_differ",
    "requests_never_fit", "requests_newly_served", "requests_not_served", "requests_rejected", "requests_unpaired",
    "requests_unserved", "rows_missing", "run_not_valid", "same_result", "selfcheck", "selfcheck_expired", "selfcheck_foreign",
    "settings_differ", "shape_mix_differs", "shapes_not_covered", "summary_only", "synthetic_trace",
    "synthetic_trace_not_allowed", "times_not_positive", "times_out_of_order", "tool_version_differs", "trace_age_unknown",
    "trace_changed", "trace_differs", "trace_from_the_future", "trace_too_old", "units_differ", "units_implausible",
    "units_inconsistent",
})  # fmt: skip
"""Every code that a finding can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact: `code` for machines, `message` for people (where, what was found, what it means)."""

    code: str
    message: str
    effect: Effect
    stage: Stage
    bottleneck_class: str | None = None
    claim: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the reason as the verdict document carries it."""
        reason = {"code": self.code, "message": self.message}
        return reason if self.claim is None else {**reason, "claim": self.claim}
