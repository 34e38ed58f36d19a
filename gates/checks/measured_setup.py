"""What was measured, on what, with which settings and when."""

from __future__ import annotations

from collections.abc import Iterator

from gates.checks.ages import parse_time
from gates.checks.measured_evidence import MeasuredEvidence, about_runs
from gates.finding import Finding
from replay.errors import InvariantError

_DAY_S = 86_400.0
_REPEATED = 2  # runs per arm; a single pair has no turns to take
_SAME = {"format": "tools_differ", "model": "model_differs", "hardware": "hardware_differs", "dataset": "dataset_differs"}
"""Facts that have to be the same in all runs where they are recorded."""


def same_setup(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find runs of different tools, models, accelerators or data sets, and name settings that differ."""
    first = evidence.baseline[0].facts
    for name, run in list(evidence.runs)[1:]:
        for fact, code in _SAME.items():
            before, after = getattr(first, fact), getattr(run.facts, fact)
            if before is not None and after is not None and before != after:
                yield about_runs(code, f"{name} has {fact} {after} and the baseline {before}: they cannot be compared")
            elif before != after:
                known = name if before is None else "the baseline"
                message = f"only {known} says its {fact} ({before or after}): that it is the same in {name} and the baseline is not shown"
                yield about_runs(code.replace("_differs", "_unstated"), message, "informs")
        before_settings, after_settings = dict(first.settings), dict(run.facts.settings)
        changed = [key for key in (*before_settings, *after_settings) if before_settings.get(key) != after_settings.get(key)]
        if changed and before_settings and after_settings:
            shown = ", ".join(f"{key}: {before_settings.get(key)} -> {after_settings.get(key)}" for key in dict.fromkeys(changed))
            yield about_runs("settings_differ", f"recorded settings of {name} differ from the baseline's: {shown[:400]}", "informs")
        if first.tool_version != run.facts.tool_version:
            message = f"{name} was measured with {first.tool} {run.facts.tool_version} and the baseline with {first.tool_version}"
            yield about_runs("tool_version_differs", message, "informs")


def arms_apart(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Say where both arms are one file, or where all runs of one arm came before the other's, so that a drift would count as the change."""
    digests = [{run.facts.digest for run in arm} for arm in (evidence.baseline, evidence.candidate)]
    if digests[0] & digests[1]:
        yield about_runs("same_result", "baseline and candidate are the same result: the verdict shows nothing about a change", "informs")
    starts = [[run.facts.started_at for run in arm] for arm in (evidence.baseline, evidence.candidate)]
    if min(map(len, starts)) < _REPEATED or any(moment is None for arm in starts for moment in arm):
        return
    before, after = ([parse_time(moment) for moment in arm if moment is not None] for arm in starts)
    if max(before) < min(after) or max(after) < min(before):
        message = "all runs of one arm were made before those of the other: take turns, or a drift of the machine counts as the change"
        yield about_runs("arms_not_interleaved", message, "informs")


def mapping_recorded(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Say where an arm does not tell which mapping it ran, so that nothing can be attributed."""
    lacking = [name for name, known in zip(("the baseline", "the candidate"), evidence.mappings, strict=True) if not known]
    if lacking:
        message = f"{' and '.join(lacking)} came without a mapping: knobs and attribution stay empty. Put mapping.toml beside the results"
        yield about_runs("mapping_unknown", message, "informs")
    else:
        message = "measured arms cannot be replayed with knobs reverted: gate the two mapping files on the trace to attribute a change"
        yield about_runs("attribution_needs_replay", message, "informs")


def load_origin(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """Find synthetic loads: they need the policy's permission, and the verdict says so; of unknown ones too."""
    synthetic = evidence.baseline[0].facts.is_synthetic
    trace = evidence.trace
    if trace is not None:
        synthetic = trace.provenance.kind == "synthetic"
    what = f"trace {trace.name}" if trace is not None else "the load"
    if synthetic and not evidence.policy.allow_synthetic:
        message = f"{what} is synthetic and the policy does not allow it: it cannot by itself support a release"
        yield about_runs("synthetic_trace_not_allowed", message)
    elif synthetic:
        yield about_runs("synthetic_trace", f"every claim here is about {what}, which is synthetic, not about production", "informs")
    elif synthetic is None:
        yield about_runs("origin_unstated", "no file says where the prompts of the load come from: they may be synthetic", "informs")


def baseline_age(evidence: MeasuredEvidence) -> Iterator[Finding]:
    """State how old the baseline is; find one older than the policy accepts, of unknown age where it limits that, or of the future."""
    limit_days, first = evidence.policy.max_trace_age_days, evidence.baseline[0].facts
    recorded_at = evidence.trace.provenance.recorded_at if evidence.trace is not None else first.started_at
    if evidence.as_of is None:
        if limit_days is not None:
            raise InvariantError("the policy limits ages and no moment was given to count them from")
        return
    if recorded_at is None:
        if limit_days is not None:
            message = f"the baseline ({first.file_name}) does not say when it was measured; the policy accepts {limit_days:g} days at most"
            yield about_runs("baseline_age_unknown", message)
        return
    age_days = (parse_time(evidence.as_of) - parse_time(recorded_at)).total_seconds() / _DAY_S
    if age_days < 0:
        yield about_runs("baseline_from_the_future", f"the baseline was measured at {recorded_at}, after {evidence.as_of}")
    elif limit_days is not None and age_days > limit_days:
        message = f"the baseline was measured {age_days:.1f} days before {evidence.as_of}; the policy accepts {limit_days:g} days at most"
        yield about_runs("baseline_too_old", message)
    else:
        yield about_runs("baseline_age", f"the baseline was measured {age_days:.1f} days before {evidence.as_of}", "informs")
