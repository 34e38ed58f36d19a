"""Kinds of faults that other gates have shipped: each must fail closed here, or be measured."""

import json

import numpy as np
import pytest

from gates.checks import Evidence, run_checks
from gates.judge import judge
from gates.plan import cell_of, make_plan
from gates.policy import parse_policy
from gates.statement import to_document
from gates.verdict import EXIT_CODES, cell_verdict, combine
from replay.assembly.percentile import percentile
from replay.errors import SpecError
from replay.provenance import TraceProvenance
from tests.runs import cell_for, lognormal_s, make_run, policy_of

RECORDED = TraceProvenance(kind="recorded", origin="jsonl", source_digest="sha256:0", rows_read=1, rows_kept=1)
P95 = '[blocking]\nttft_s = { p95 = "3 %" }\n'
STRATA = 'prompt_bin_edges_tokens = [1000]\n[blocking.by_prompt_bin]\nttft_s = { p95 = "3 %" }'


def verdict_of(baseline, candidate, text=P95):
    policy = policy_of(text)
    cell = cell_for(baseline, policy)
    findings = run_checks(Evidence(baseline=baseline, candidate=candidate, provenance=RECORDED, policy=policy))
    return combine([cell_verdict(cell.spec, judge(cell, baseline, candidate), findings)])


def test_a_stratum_that_is_empty_in_both_arms_never_passes():
    run = make_run(lognormal_s(2000), prompt_tokens=[10] * 2000)
    verdict = verdict_of(run, run, STRATA)
    assert verdict.basis == "inconclusive"
    assert "stratum_absent" in {reason["code"] for reason in verdict.worst.reasons}


@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_a_metric_of_one_arm_only_never_passes(side):
    values = lognormal_s(2000)
    arms = {"baseline": make_run(values), "candidate": make_run(values), side: make_run(values, metrics={"ttft_s": [None] * 2000})}
    assert verdict_of(arms["baseline"], arms["candidate"]).decision == "rollback"


def test_a_stratum_whose_requests_the_candidate_rejects_never_passes():
    values, prompts = lognormal_s(3000), [10] * 2700 + [2000] * 300
    verdict = verdict_of(
        make_run(values, prompt_tokens=prompts), make_run(values, prompt_tokens=prompts, rejected=range(2700, 3000)), STRATA
    )
    assert verdict.basis == "regression"


def test_arms_in_which_every_request_failed_are_invalid_evidence():
    run = make_run(lognormal_s(2000), rejected=range(2000))
    verdict = verdict_of(run, run)
    assert (verdict.basis, verdict.exit_code()) == ("invalid_evidence", 30)
    assert {claim.outcome for claim in verdict.worst.claims} == {"undecided"}


def test_empty_arms_are_invalid_evidence_and_crash_nothing():
    empty = make_run([], windows_count=0)
    verdict = verdict_of(empty, empty)
    assert verdict.basis == "invalid_evidence"
    assert verdict_of(empty, make_run(lognormal_s(100))).basis == "invalid_evidence"
    assert verdict_of(make_run(lognormal_s(100)), empty).basis == "invalid_evidence"


@pytest.mark.parametrize(("baseline_s", "candidate_s"), [(0.0, 0.0), (0.0, 0.5), (0.5, 0.0), (1e-300, 1e300)])
def test_zero_durations_and_ties_give_a_strict_document_without_nan_or_infinity(baseline_s, candidate_s):
    baseline, candidate = make_run(np.full(2000, baseline_s)), make_run(np.full(2000, candidate_s))
    policy = policy_of()
    plan = make_plan(policy, [cell_of(baseline)], 1)
    claims = judge(plan.cells[0], baseline, candidate)
    verdict = combine([cell_verdict(plan.cells[0].spec, claims, [])])
    document = to_document(verdict, plan=plan, inputs=[], tool_version="0")
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (verdict.decision == "release") == (candidate_s <= baseline_s)


def test_a_regression_never_exits_zero():
    baseline = make_run(lognormal_s(2000))
    verdict = verdict_of(baseline, make_run(2 * lognormal_s(2000)))
    assert verdict.exit_code() == EXIT_CODES["regression"] == 10


@pytest.mark.parametrize("n", [2001, 10_050])
def test_the_gate_and_the_product_use_one_definition_of_p99(n):
    values = lognormal_s(n, seed=n)
    run = make_run(values)
    claim = judge(cell_for(run, policy_of('[blocking]\nttft_s = { p99 = "3 %" }')), run, run)[0]
    assert claim.baseline == percentile(values, 99.0) == np.sort(values)[-(-n * 99 // 100) - 1]


@pytest.mark.parametrize(("written", "margin"), [('"0.5 %"', 0.005), ('"2.5 %"', 0.025), ('"150 %"', 1.5), ("0.03", 0.03)])
def test_every_way_to_write_a_margin_means_one_thing(written, margin):
    assert parse_policy(f"[blocking]\nttft_s = {{ p95 = {written} }}", "p").claims[0].margin == pytest.approx(margin)


def test_a_bare_3_is_refused():
    with pytest.raises(SpecError, match="bare number 3"):
        parse_policy("[blocking]\nttft_s = { p95 = 3 }", "p")


def test_a_baseline_from_another_accelerator_is_invalid_evidence():
    run = make_run(lognormal_s(2000))
    assert verdict_of(run, make_run(lognormal_s(2000), hardware="l40s")).basis == "invalid_evidence"


def test_a_worse_point_estimate_inside_a_wide_interval_is_inconclusive_and_never_a_regression():
    # Two independent draws of one distribution: the second happens to be 8 % worse.
    baseline, candidate = make_run(lognormal_s(400, seed=3)), make_run(lognormal_s(400, seed=18))
    verdict = verdict_of(baseline, candidate)
    claim = verdict.worst.claims[0]
    assert claim.ratio > 1.03
    assert claim.interval.lower < 1.0
    assert verdict.basis == "inconclusive"
