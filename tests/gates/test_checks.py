"""Findings about the evidence: what makes it invalid, what speaks against the candidate, what is only said."""

from dataclasses import replace

import pyarrow as pa
import pytest

from gates.checks import Evidence, run_checks
from gates.rejections import LIMITS
from replay.execution.admission import REJECTION_REASONS
from replay.provenance import ORIGIN_STATED_ON_IMPORT, ORIGIN_UNSTATED, TraceProvenance
from tests.runs import lognormal_s, make_run, policy_of

N = 2000
BASELINE = make_run(lognormal_s(N))


def provenance(kind="recorded", notes=()):
    return TraceProvenance(kind=kind, origin="azure csv", source_digest="sha256:0", rows_read=N, rows_kept=N, notes=notes)


def found(candidate=BASELINE, baseline=BASELINE, origin=None, policy=""):
    evidence = Evidence(baseline=baseline, candidate=candidate, provenance=origin or provenance(), policy=policy_of(policy))
    return {finding.code: finding for finding in run_checks(evidence)}


def with_column(run, name, values):
    table = run.requests
    position = table.column_names.index(name)
    return replace(run, requests=table.set_column(position, table.schema.field(name), pa.array(values, table.schema.field(name).type)))


def test_two_runs_of_one_recorded_trace_raise_nothing():
    assert found() == {}


@pytest.mark.parametrize(
    ("candidate", "code"),
    [
        (make_run(lognormal_s(N), trace_digest="sha256:" + "00" * 32), "trace_differs"),
        (make_run(lognormal_s(N), hardware="l40s"), "hardware_differs"),
        (replace(BASELINE, model="other"), "model_differs"),
        (replace(BASELINE, window_s=1.0), "window_s_differs"),
        (make_run(lognormal_s(N - 60)), "requests_differ"),
        (make_run(lognormal_s(N), request_ids=[f"x{index}" for index in range(N)]), "requests_differ"),
        (make_run(lognormal_s(N), request_ids=[f"r{index}" for index in reversed(range(N))]), "request_order_differs"),
        (make_run(lognormal_s(N), prompt_tokens=[999] * N), "request_shapes_differ"),
        (with_column(BASELINE, "arrival_s", [2.0 * index for index in range(N)]), "request_shapes_differ"),
    ],
)
def test_arms_that_differ_in_more_than_the_mapping_invalidate_the_evidence(candidate, code):
    finding = found(candidate)[code]
    assert (finding.effect, finding.stage, finding.bottleneck_class) == ("invalidates", "ingress", "measurement")


def test_missing_requests_are_counted_on_both_sides():
    message = found(make_run(lognormal_s(N - 60)))["requests_differ"].message
    assert "60 of 2000 only in the baseline" in message
    assert "0 of 1940 only in the candidate" in message


def test_an_empty_trace_invalidates_and_a_short_one_is_said_to_be_short():
    empty, short = make_run([]), make_run(lognormal_s(999))
    assert found(empty, empty)["no_requests"].effect == "invalidates"
    assert found(short, short)["too_few_requests_for_p99"].effect == "informs"
    assert "too_few_requests_for_p99" not in found()


def test_a_request_that_only_the_candidate_rejects_is_a_regression_of_capacity():
    finding = found(make_run(lognormal_s(N), rejected=[17]))["requests_rejected"]
    assert (finding.effect, finding.stage, finding.bottleneck_class) == ("disproves", "tiling", "memory_capacity")
    assert "1 of 2000" in finding.message
    assert "larger than the whole cache pool (kv_capacity: 1 instead of 0)" in finding.message


def test_every_reason_for_a_rejection_has_a_limit_with_its_stage_and_class():
    assert set(LIMITS) == set(REJECTION_REASONS.values())
    assert {reason: (limit.stage, limit.bottleneck_class) for reason, limit in LIMITS.items()} == {
        "kv_capacity": ("tiling", "memory_capacity"),
        "context_limit": ("execution", "queueing"),
    }


@pytest.mark.parametrize("reason", REJECTION_REASONS.values())
@pytest.mark.parametrize("already", [0, 3])
def test_a_rejection_is_charged_to_the_stage_and_class_of_the_limit_that_refuses_more(reason, already):
    other = next(name for name in REJECTION_REASONS.values() if name != reason)
    before = replace(make_run(lognormal_s(N), rejected=range(already)), rejected=((other, already),) if already else ())
    after = replace(make_run(lognormal_s(N), rejected=range(already + 7)), rejected=((reason, 7), (other, already)))
    finding = found(after, before)["requests_rejected"]
    assert (finding.stage, finding.bottleneck_class) == (LIMITS[reason].stage, LIMITS[reason].bottleneck_class)
    assert f"the candidate rejects 7 of {N} requests" in finding.message
    assert reason in finding.message
    assert other not in finding.message
    assert found(before, after)["requests_newly_served"].stage == LIMITS[reason].stage


def test_two_limits_that_both_refuse_more_are_two_findings():
    after = replace(make_run(lognormal_s(N), rejected=range(5)), rejected=(("context_limit", 2), ("kv_capacity", 3)))
    evidence = Evidence(baseline=BASELINE, candidate=after, provenance=provenance(), policy=policy_of(""))
    assert [finding.stage for finding in run_checks(evidence) if finding.code == "requests_rejected"] == ["tiling", "execution"]


def test_limits_that_trade_places_still_disprove():
    before = replace(make_run(lognormal_s(N), rejected=[0]), rejected=(("kv_capacity", 1),))
    after = replace(make_run(lognormal_s(N), rejected=[1]), rejected=(("kv_capacity", 1),))
    assert found(after, before)["requests_rejected"].stage == "tiling"


def test_requests_that_both_arms_reject_are_said_up_to_one_percent_and_invalidate_beyond():
    few, many = (make_run(lognormal_s(N), rejected=range(count)) for count in (20, 21))
    assert found(few, few)["requests_never_fit"].effect == "informs"
    assert found(many, many)["requests_never_fit"].effect == "invalidates"


def test_requests_that_only_the_baseline_rejects_are_said_and_do_not_disprove():
    codes = found(BASELINE, make_run(lognormal_s(N), rejected=[1, 2]))
    assert codes["requests_newly_served"].effect == "informs"
    assert "requests_rejected" not in codes


def test_a_synthetic_trace_needs_permission_and_is_called_synthetic_with_it():
    refused = found(origin=provenance("synthetic"))["synthetic_trace_not_allowed"]
    assert (refused.effect, refused.stage) == ("invalidates", "ingress")
    allowed = found(origin=provenance("synthetic"), policy="allow_synthetic = true")["synthetic_trace"]
    assert allowed.effect == "informs"
    assert "not about production" in allowed.message


def test_a_reconstructed_trace_says_what_was_derived():
    finding = found(origin=provenance("reconstructed", notes=("arrivals generated",)))["reconstructed_trace"]
    assert finding.effect == "informs"
    assert "arrivals generated" in finding.message


def test_the_share_that_the_baseline_may_reject_is_the_policys():
    run = make_run(lognormal_s(N), rejected=range(100))
    assert found(run, run, policy="max_rejected_ratio = 0.05")["requests_never_fit"].effect == "informs"
    strict = found(run, run, policy="max_rejected_ratio = 0.049")["requests_never_fit"]
    assert strict.effect == "invalidates"
    assert "more than 4.9 %" in strict.message


def test_rows_of_unstated_origin_and_rows_that_somebody_vouches_for_are_said_to_be_so():
    unstated = found(origin=provenance("reconstructed", notes=(ORIGIN_UNSTATED,)))
    assert unstated["origin_unstated"].effect == "informs"
    vouched = found(origin=provenance(notes=(ORIGIN_UNSTATED, f"{ORIGIN_STATED_ON_IMPORT}; before: reconstructed, x")))
    assert set(vouched) == {"origin_stated_on_import"}
