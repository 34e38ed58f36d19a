"""Outcomes of claims: what holds, what is disproved, what stays undecided and why."""

import re
from dataclasses import replace

import numpy as np
import pytest

from gates.guardrails import guardrails
from gates.judge import judge
from gates.plan import RULES, cell_of, make_plan
from gates.policy import default_policy
from replay.assembly.percentile import percentile
from replay.errors import InvariantError, SpecError
from tests.runs import cell_for, lognormal_s, make_run, policy_of, slower

P95 = '[blocking]\nttft_s = { p95 = "3 %" }\n'


def judged(baseline, candidate, text="", seed=7):
    return {claim.id.split("/")[-1]: claim for claim in judge(cell_for(baseline, policy_of(text), seed), baseline, candidate)}


def noisy_pair(n, sd, factor=1.0, seed=5):
    """Return two arms of one trace with independent noise, the second slower by `factor`."""
    noise = np.exp(sd * np.random.default_rng(seed).standard_normal((2, n)))
    return make_run(lognormal_s(n) * noise[0]), make_run(lognormal_s(n) * noise[1] * factor)


def test_identical_arms_give_ratio_exactly_one_and_every_claim_with_data_holds():
    run = make_run(lognormal_s(12_000), prompt_tokens=[100, 1000, 4000] * 4000)
    claims = judged(run, run)
    for claim in claims.values():
        if "prompt_tokens[8192" in claim.stratum or "prompt_tokens[32768" in claim.stratum:
            assert (claim.outcome, claim.reason_code) == ("undecided", "stratum_absent")
            continue
        assert claim.outcome == "holds"
        no_change = 1.0 if claim.scale == "ratio" else 0.0
        assert (claim.interval.lower, claim.interval.upper) == (no_change, no_change)
        assert claim.difference == 0.0
        assert claim.ratio == 1.0 or claim.baseline == 0.0
        assert claim.minimum_detectable_effect == 0.0


def test_figures_are_the_percentiles_of_the_product_and_the_interval_surrounds_a_uniform_slowdown():
    run = make_run(lognormal_s(4000))
    claim = judged(run, slower(run, 1.25))["ttft_s.p99"]
    assert claim.baseline == percentile(lognormal_s(4000), 99.0)
    assert claim.ratio == pytest.approx(1.25)
    assert (claim.interval.lower, claim.interval.upper) == (pytest.approx(1.25), pytest.approx(1.25))
    assert (claim.n, claim.n_beyond, claim.replicates, claim.interval.confidence) == (4000, 40, 1000, 0.9)


@pytest.mark.parametrize(
    ("factor", "outcome"), [(0.8, "holds"), (1.0, "holds"), (1.02, "holds"), (1.029, "holds"), (1.031, "disproved"), (1.5, "disproved")]
)
def test_a_uniform_change_holds_inside_the_margin_and_is_disproved_beyond_it(factor, outcome):
    run = make_run(lognormal_s(4000))
    assert judged(run, slower(run, factor), P95)["ttft_s.p95"].outcome == outcome


@pytest.mark.parametrize(("scale", "outcome"), [(1.2, "holds"), (0.98, "holds"), (0.96, "disproved")])
def test_a_higher_is_better_metric_is_judged_the_other_way_round(scale, outcome):
    baseline = make_run(lognormal_s(300))
    claim = judged(baseline, make_run(lognormal_s(300), flops_scale=scale), '[blocking]\nsustained_flops_per_s = "3 %"')[
        "sustained_flops_per_s"
    ]
    assert (claim.outcome, claim.ratio, claim.direction) == (outcome, pytest.approx(scale), "higher")


@pytest.mark.parametrize(("stall", "outcome"), [(0.2, "holds"), (0.34, "holds"), (0.36, "disproved")])
def test_a_fraction_is_judged_in_points_and_by_layer_type(stall, outcome):
    text = P95 + '[advisory.by_layer_type]\nmemory_stall_ratio = "5 points"'
    claims = judged(make_run(lognormal_s(300)), make_run(lognormal_s(300), stall_ratio=stall), text)
    for layer in ("attention", "mlp"):
        claim = claims[f"memory_stall_ratio.{layer}"]
        assert (claim.outcome, claim.scale, claim.difference) == (outcome, "difference", pytest.approx(stall - 0.3, abs=0.01))


def test_noise_whose_interval_includes_no_change_is_undecided_and_says_how_much_more_would_decide():
    claim = judged(*noisy_pair(2000, 0.3), P95)["ttft_s.p95"]
    assert claim.interval.lower < 1.0
    assert claim.interval.upper > 1.03
    assert (claim.outcome, claim.reason_code) == ("undecided", "margin_not_shown")
    assert claim.n_needed > 2000
    assert str(claim.n_needed) in claim.reason


def test_nine_samples_beyond_are_undecided_ten_are_decided_with_a_warning_and_a_hundred_without():
    for n, beyond in ((199, 9), (200, 10), (1999, 99), (2000, 100)):
        run = make_run(lognormal_s(n))
        claim = judged(run, run, P95)["ttft_s.p95"]
        assert claim.n_beyond == beyond
        assert claim.outcome == ("undecided" if beyond < 10 else "holds")
        assert bool(claim.warnings) == (10 <= beyond < 100)
        assert claim.reason_code == ("too_few_samples" if beyond < 10 else None)
        assert (claim.n_needed == 200) == (beyond < 10)


def test_too_few_samples_are_undecided_even_where_every_figure_is_far_worse():
    run = make_run(lognormal_s(150))
    claim = judged(run, slower(run, 10.0), P95)["ttft_s.p95"]
    assert (claim.outcome, claim.adjusted_p) == ("undecided", 1.0)
    assert claim.ratio == pytest.approx(10.0)


def test_a_worsening_that_the_other_claims_of_the_family_explain_away_is_undecided():
    # Alone the worsening is significant; beside 21 blocking claims without data, Holm asks for 22 times as small a p-value.
    baseline, candidate = noisy_pair(6000, 0.2, factor=1.04)
    edges = ", ".join(str(edge) for edge in range(100, 2100, 100))
    alone = judged(baseline, candidate, P95)["ttft_s.p95"]
    family = f'prompt_bin_edges_tokens = [{edges}]\n{P95}[blocking.by_prompt_bin]\ne2e_s = {{ p95 = "3 %" }}'
    among_many = judged(baseline, candidate, family)["ttft_s.p95"]
    assert (alone.outcome, alone.interval) == ("disproved", among_many.interval)
    assert (among_many.outcome, among_many.reason_code) == ("undecided", "worsening_not_significant")
    assert among_many.adjusted_p > 0.05 >= alone.adjusted_p


def test_advisory_claims_carry_no_adjusted_p_and_do_not_enlarge_the_family():
    run = make_run(lognormal_s(4000))
    claims = judged(run, slower(run, 1.5))
    blocking = [claim for claim in claims.values() if claim.blocking]
    assert {claim.adjusted_p for claim in claims.values() if not claim.blocking} == {None}
    assert claims["ttft_s.p95"].adjusted_p == len(blocking) / 1001
    assert claims["queue_s.p99"].outcome == "disproved"


@pytest.mark.parametrize(("baseline_lacks", "candidate_lacks"), [(True, False), (False, True), (True, True)])
def test_a_metric_that_an_arm_lacks_is_undecided_and_never_dropped(baseline_lacks, candidate_lacks):
    values = lognormal_s(3000)
    lacking = {"tpot_s": [None] * 3000}
    arms = [make_run(values, metrics=lacking if lacks else {}) for lacks in (baseline_lacks, candidate_lacks)]
    claim = judged(*arms, '[blocking]\ntpot_s = { p95 = "3 %" }')["tpot_s.p95"]
    assert claim.outcome == "undecided"
    assert claim.reason_code == ("metric_absent" if baseline_lacks and candidate_lacks else "one_sided_values")
    assert (claim.baseline, claim.candidate, claim.ratio, claim.interval) == (None, None, None, None)


def test_one_missing_value_in_one_arm_is_enough_to_leave_a_claim_undecided():
    values = lognormal_s(3000)
    candidate = make_run(values, metrics={"ttft_s": [None, *values[1:]]})
    claim = judged(make_run(values), candidate, P95)["ttft_s.p95"]
    assert (claim.outcome, claim.reason_code) == ("undecided", "one_sided_values")


def test_requests_that_one_arm_rejects_are_left_out_of_both_arms_and_said_so():
    values = np.concatenate([lognormal_s(2000), [1e6] * 200])
    claim = judged(make_run(values), make_run(values, rejected=range(2000, 2200)), P95)["ttft_s.p95"]
    assert (claim.n, claim.baseline) == (2000, percentile(values[:2000], 95.0))
    assert any("200 requests that one arm rejects" in warning for warning in claim.warnings)


def test_a_layer_type_without_time_is_undecided():
    baseline = make_run(lognormal_s(300))
    cell = make_plan(policy_of(P95 + '[advisory.by_layer_type]\nmemory_stall_ratio = "5 points"'), [cell_of(baseline)], 1).cells[0]
    windows = baseline.windows.filter([layer != "mlp" for layer in baseline.windows["layer_type"].to_pylist()])
    candidate = replace(baseline, windows=windows)
    claim = next(claim for claim in judge(cell, baseline, candidate) if claim.layer_type == "mlp")
    assert (claim.outcome, claim.reason_code) == ("undecided", "metric_absent")
    assert "candidate" in claim.reason


@pytest.mark.parametrize(
    ("windows", "outcome", "warned"), [(9, "undecided", False), (10, "holds", True), (24, "holds", True), (25, "holds", False)]
)
def test_claims_over_windows_need_ten_and_warn_below_25(windows, outcome, warned):
    run = make_run(lognormal_s(300), windows_count=windows)
    claim = judged(run, run, '[blocking]\nsustained_flops_per_s = "3 %"')["sustained_flops_per_s"]
    assert (claim.outcome, bool(claim.warnings), claim.n) == (outcome, warned, windows)


def test_an_arm_that_ends_later_is_compared_over_its_whole_run():
    text = '[blocking]\nsustained_flops_per_s = "3 %"'
    claim = judged(make_run(lognormal_s(300), windows_count=40), make_run(lognormal_s(300), windows_count=50), text)[
        "sustained_flops_per_s"
    ]
    assert claim.n == 50
    assert claim.interval is not None


def test_arms_with_different_requests_leave_every_claim_undecided():
    baseline = make_run(lognormal_s(300))
    other = make_run(lognormal_s(300), request_ids=[f"x{index}" for index in range(300)])
    claims = judged(baseline, other)
    assert {(claim.outcome, claim.reason_code) for claim in claims.values()} == {("undecided", "unpaired_arms")}
    assert len(claims) == len(cell_for(baseline, default_policy()).claims)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_or_infinity_in_a_table_is_our_fault_and_never_a_verdict(bad):
    values = lognormal_s(300)
    broken = make_run(values, metrics={"ttft_s": [bad, *values[1:]]})
    with pytest.raises(InvariantError, match="ttft_s"):
        judged(make_run(values), broken)


def test_a_baseline_without_queueing_is_compared_by_difference():
    zeros, waits = np.zeros(2000), np.full(2000, 0.25)
    text = '[blocking]\nqueue_s = { p99 = "3 %" }'
    baseline = make_run(lognormal_s(2000), metrics={"queue_s": zeros})
    same = judged(baseline, baseline, text)["queue_s.p99"]
    worse = judged(baseline, make_run(lognormal_s(2000), metrics={"queue_s": waits}), text)["queue_s.p99"]
    assert (same.outcome, same.scale, same.ratio, same.margin) == ("holds", "difference", None, 0.0)
    assert (worse.outcome, worse.difference, worse.ratio) == ("disproved", 0.25, None)
    assert any("by difference" in warning for warning in worse.warnings)


def test_slo_attainment_counts_rejected_requests_as_missed_and_single_tokens_as_met():
    text = "[slo]\nttft_s = 1.0\ntpot_s = 0.5\n" + P95
    met = [0.5] * 1000
    tpot = [None if index % 10 == 0 else 0.1 for index in range(1000)]
    baseline = make_run(met, metrics={"tpot_s": tpot})
    claims = judged(baseline, make_run(met, metrics={"tpot_s": tpot}, rejected=range(0, 1000, 10)), text)
    claim = claims["slo_attainment_ratio"]
    assert (claim.baseline, claim.candidate, claim.outcome, claim.unit) == (1.0, 0.9, "disproved", "fraction")


def test_a_share_needs_three_requests_per_margin():
    text = '[slo]\nttft_s = 10.0\nmargin = "1 point"\n' + P95
    for n, outcome in ((299, "undecided"), (300, "holds")):
        run = make_run(np.full(n, 0.5))
        assert judged(run, run, text)["slo_attainment_ratio"].outcome == outcome


def test_a_stratum_packed_into_one_spot_of_the_trace_is_undecided():
    prompts = [5000 if 1000 <= index < 1210 else 100 for index in range(20_000)]
    run = make_run(lognormal_s(20_000), prompt_tokens=prompts)
    text = 'prompt_bin_edges_tokens = [1000]\n[blocking.by_prompt_bin]\nttft_s = { p95 = "3 %" }'
    claims = judged(run, run, text)
    assert claims["ttft_s.p95@prompt_tokens[0,1000)"].outcome == "holds"
    packed = claims["ttft_s.p95@prompt_tokens[1000,inf)"]
    assert (packed.outcome, packed.reason_code, packed.n_beyond) == ("undecided", "undefined_resamples", 10)


def test_the_same_seed_gives_the_same_claims():
    run, candidate = noisy_pair(2000, 0.1)
    assert judged(run, candidate) == judged(run, candidate)
    assert judged(run, candidate, seed=1)["ttft_s.p95"].interval != judged(run, candidate, seed=2)["ttft_s.p95"].interval


def test_plan_states_each_claim_and_its_boundary_in_words_and_numbers():
    run = make_run(lognormal_s(10))
    text = 'prompt_bin_edges_tokens = [512]\n[blocking]\nttft_s = { p99 = "3 %" }\nsustained_flops_per_s = "3 %"\nmfu_ratio = "1 point"\n'
    claims = {
        claim.spec.key: claim for claim in cell_for(run, policy_of(text + '[blocking.by_prompt_bin]\ne2e_s = { p95 = "10 %" }')).claims
    }
    assert claims["ttft_s.p99"].disproof_criterion == (
        "TTFT p99, trace chat, h100-sxm: the candidate is no more than 3 % worse. Disproved when the one-sided 95 % upper bound of "
        "candidate/baseline is above 1.03 and the lower bound is above 1, with a Holm-adjusted p of at most 0.05."
    )
    assert claims["ttft_s.p99"].rollback_boundary == "Roll back when TTFT p99 rises above 1.03 x the baseline's."
    assert (
        "lower bound of candidate/baseline is below 0.97 and the upper bound is below 1"
        in claims["sustained_flops_per_s"].disproof_criterion
    )
    assert claims["mfu_ratio"].rollback_boundary == "Roll back when MFU falls below the baseline's - 1 point."
    assert "(prompts of 512 tokens or more)" in claims["e2e_s.p95@prompt_tokens[512,inf)"].disproof_criterion


def test_plan_digest_covers_margins_seed_trace_and_rules_and_nothing_of_the_candidate():
    run = make_run(lognormal_s(10))
    plan = make_plan(default_policy(), [cell_of(run)], 7)
    assert plan.digest == make_plan(default_policy(), [cell_of(slower(run, 9.0))], 7).digest
    others = [
        make_plan(default_policy(), [cell_of(run)], 8),
        make_plan(default_policy(), [cell_of(run)], 7, as_of="2024-01-01T00:00:00Z"),
        make_plan(policy_of("alpha = 0.01"), [cell_of(run)], 7),
        make_plan(default_policy(), [cell_of(make_run(lognormal_s(10), trace_digest="sha256:0"))], 7),
        make_plan(default_policy(), [cell_of(make_run(lognormal_s(10), hardware="l40s"))], 7),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == 6
    document = plan.to_document()
    assert document["rules"] == RULES
    assert document["seed"] == "7"
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", plan.digest)


def test_a_plan_with_the_same_cell_twice_is_refused():
    cell = cell_of(make_run(lognormal_s(10)))
    with pytest.raises(SpecError, match="chat on h100-sxm is given twice"):
        make_plan(default_policy(), [cell, cell], 1)


@pytest.mark.parametrize("percent", ["50", "70", "80", "90", "95", "97.5", "99", "99.9"])
def test_the_requests_a_percentile_needs_are_those_that_decide_it_in_claims_and_guardrails_alike(percent):
    text = f'warning_beyond = 10\n[blocking]\nttft_s = {{ "p{percent}" = "3 %" }}\n'
    short = make_run(lognormal_s(15))
    n_needed = judged(short, short, text)[f"ttft_s.p{percent}"].n_needed
    enough, too_few = make_run(lognormal_s(n_needed)), make_run(lognormal_s(n_needed - 1))
    claim = judged(enough, enough, text)[f"ttft_s.p{percent}"]
    assert (claim.outcome, claim.n_beyond) == ("holds", 10)
    assert judged(too_few, too_few, text)[f"ttft_s.p{percent}"].reason_code == "too_few_samples"
    [row] = guardrails([claim], policy_of(text))
    assert row["window"].startswith(f"any {n_needed} consecutive requests")
