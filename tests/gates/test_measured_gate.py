"""The gate on measured runs: what holds, what is disproved, what stays open, and by which statistics."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.measure.measured import Measured
from gates.measure.run_effect import over_runs, run_effects, student_distribution, student_quantiles
from gates.plan import CellSpec, make_plan
from gates.policy import default_measured_policy, parse_policy
from replay.errors import SpecError
from tests.measured import P95, codes, gate_runs, measured_run_of
from tests.runs import lognormal_s

N = 4000
QUIET = "run_effect_sd = 0\n"


def jittered(values, seed, scale=1.0):
    return scale * values * np.exp(0.05 * np.random.default_rng(seed).standard_normal(len(values)))


def test_a_repeat_of_the_same_build_is_no_regression_and_a_slower_one_is():
    values = lognormal_s(N)
    baseline = measured_run_of(jittered(values, 1))
    assert gate_runs(baseline, measured_run_of(jittered(values, 2))).verdict.basis != "regression"
    result = gate_runs(baseline, measured_run_of(jittered(values, 2, 1.3)))
    assert (result.verdict.basis, result.verdict.exit_code()) == ("regression", 10)
    assert result.verdict.worst.first_failing_stage == "quality_sla"
    assert {claim.method for claim in result.verdict.worst.claims} == {"paired_circular_block_bootstrap"}


def test_identical_files_release_only_inside_the_assumed_run_effect():
    values = lognormal_s(N)
    run = measured_run_of(values)
    assert gate_runs(run, run, QUIET + P95).verdict.basis == "proven_safe"
    claim = gate_runs(run, run).verdict.worst.claims[0]
    # Bounds of exp(1.645 x sqrt(2) x 1 %), by the normal quantile; the margin of 3 % contains them.
    assert claim.interval.upper == pytest.approx(math.exp(1.645 * math.sqrt(2) * 0.01), abs=2e-4)
    assert claim.outcome == "holds"
    assert gate_runs(run, run, 'run_effect_sd = "5 %"\n' + P95).verdict.basis == "inconclusive"


def test_an_undecided_claim_of_one_pair_says_how_many_runs_would_decide_it():
    values = lognormal_s(N)
    result = gate_runs(measured_run_of(jittered(values, 1)), measured_run_of(jittered(values, 2, 1.02)), 'run_effect_sd = "3 %"\n' + P95)
    claim = result.verdict.worst.claims[0]
    assert claim.outcome == "undecided"
    assert "runs per arm instead of 1 would decide it" in claim.reason
    assert claim.n_needed is None
    assert any("standard deviation of 3 %" in warning for warning in claim.warnings)


def test_runs_of_requests_that_nothing_matches_are_resampled_alone_which_takes_far_more_of_them():
    values = lognormal_s(N)
    baseline = measured_run_of(jittered(values, 1))
    paired = measured_run_of(jittered(values, 2))
    foreign = measured_run_of(jittered(values, 2), ids=[f"x{index}" for index in range(N)])
    intervals = [gate_runs(baseline, candidate).verdict.worst.claims[0].interval for candidate in (paired, foreign)]
    widths = [interval.upper - interval.lower for interval in intervals]
    assert widths[1] > 2 * widths[0]
    result = gate_runs(baseline, foreign)
    assert result.verdict.worst.claims[0].method == "unpaired_circular_block_bootstrap"
    assert "requests_unpaired" in codes(result)


def test_requests_without_ids_pair_by_equal_prompts_in_the_same_order():
    values, prompts = lognormal_s(N), list(range(1, N + 1))
    columns = {"prompt_tokens": prompts}
    arms = [measured_run_of(jittered(values, seed), columns=columns, identity="order") for seed in (1, 2)]
    assert gate_runs(*arms).verdict.worst.claims[0].method == "paired_circular_block_bootstrap"
    shuffled = measured_run_of(jittered(values, 2), columns={"prompt_tokens": prompts[::-1]}, identity="order")
    assert gate_runs(arms[0], shuffled).verdict.worst.claims[0].method == "unpaired_circular_block_bootstrap"


def test_ids_drawn_anew_in_each_run_pair_by_prompts_unless_all_prompts_are_alike():
    values = lognormal_s(N)
    anew = [[f"{arm}{index}" for index in range(N)] for arm in "ab"]

    def method(prompts):
        arms = [measured_run_of(jittered(values, seed), ids=anew[seed], columns={"prompt_tokens": prompts}) for seed in (0, 1)]
        return gate_runs(*arms).verdict.worst.claims[0].method

    assert method(list(range(1, N + 1))) == "paired_circular_block_bootstrap"
    assert method([1000] * N) == "unpaired_circular_block_bootstrap"


def test_repeated_runs_measure_their_own_spread():
    values = lognormal_s(2000)
    arms = [[measured_run_of(jittered(values, 10 * arm + run)) for run in range(4)] for arm in (0, 1)]
    result = gate_runs(arms[0], arms[1])
    assert {claim.method for claim in result.verdict.worst.claims} == {"welch_t_over_runs"}
    assert result.verdict.basis != "regression"
    worse = [measured_run_of(jittered(values, 20 + run, 1.3)) for run in range(4)]
    assert gate_runs(arms[0], worse).verdict.basis == "regression"
    with pytest.raises(SpecError, match="4 runs of the baseline and 1 of the candidate"):
        gate_runs(arms[0], arms[1][:1])


@settings(max_examples=25, deadline=None)
@given(
    baseline=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6),
    candidate=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6),
)
def test_the_bounds_over_runs_are_those_of_welchs_t(baseline, candidate):
    import scipy.stats

    logs = [np.log(arm) for arm in (baseline, candidate)]
    if min(float(np.ptp(arm)) for arm in logs) < 1e-3:
        return
    cell = make_plan(parse_policy("replicates = 4000\n" + P95, "p"), [CELL], 1).cells[0]
    before, after = over_runs(cell, Measured(), (baseline, candidate), by_ratio=True).replicates
    # Rounding the degrees of freedom down never narrows the bounds.
    interval = scipy.stats.ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(0.9)
    effects = np.sort(np.log(after / before))
    k = math.floor(0.05 * 4001)
    assert effects[k - 1] <= interval.low + 0.01 * (interval.high - interval.low)
    assert effects[-k] >= interval.high - 0.01 * (interval.high - interval.low)
    assert float(effects.mean()) == pytest.approx(float(logs[1].mean() - logs[0].mean()), abs=1e-9)


CELL = CellSpec(trace="t", trace_digest="d", hardware="h", model="m", layer_types=())


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30])
def test_students_t_is_scipys(freedom):
    import scipy.stats

    shares = np.linspace(0.001, 0.999, 201)
    assert student_quantiles(shares, freedom) == pytest.approx(scipy.stats.t.ppf(shares, freedom), rel=1e-9, abs=1e-7)
    points = np.linspace(0.0, 9.0, 31)
    assert student_distribution(points, freedom) == pytest.approx(scipy.stats.t.cdf(points, freedom), abs=1e-12)


def test_the_assumed_run_effect_has_exactly_the_spread_of_two_runs_whatever_the_seed():
    policy = parse_policy('run_effect_sd = "2 %"\n' + P95, "p")
    drawn = [run_effects(make_plan(policy, [CELL], seed).cells[0]) for seed in (1, 2)]
    assert np.std(drawn[0]) == pytest.approx(0.02 * math.sqrt(2), rel=0.01)
    assert not np.array_equal(*drawn)
    assert np.array_equal(*map(np.sort, drawn))


def test_the_plan_knows_nothing_of_the_candidate():
    values = lognormal_s(500)
    run = measured_run_of(values)
    digests = {gate_runs(run, measured_run_of(values * scale)).plan.digest for scale in (1.0, 2.0)}
    assert len(digests) == 1
    assert gate_runs(measured_run_of(values, digest="sha256:" + "34" * 32), run).plan.digest not in digests
    assert gate_runs(run, run, 'run_effect_sd = "2 %"\n' + P95).plan.digest not in digests


def test_the_candidate_is_read_after_the_plan_is_made():
    from dataclasses import replace

    from gates.measured_gate import gate_measured

    seen = []
    run = measured_run_of(lognormal_s(500))
    result = gate_runs(run, run)

    def read():
        seen.append("candidate")
        return result.candidate

    gate_measured(replace(result.request, read_candidate=read), seen.append)
    assert seen[-1] == "candidate"
    assert result.plan.digest[7:19] in seen[0]


def test_claims_that_no_measurement_has_figures_for_are_undecided_and_never_dropped():
    run = measured_run_of(lognormal_s(N))
    text = P95 + 'sustained_flops_per_s = "3 %"\n[blocking.by_layer_type]\nmemory_stall_ratio = "5 points"\n'
    result = gate_runs(run, run, QUIET + text)
    outcomes = {claim.key: (claim.outcome, claim.reason_code) for claim in result.verdict.worst.claims}
    assert outcomes == {
        "ttft_s.p95": ("holds", None),
        "sustained_flops_per_s": ("undecided", "metric_absent"),
        "memory_stall_ratio.all": ("undecided", "metric_absent"),
    }
    assert result.verdict.basis == "inconclusive"


def test_the_shipped_policy_for_measured_runs_asks_only_what_they_record():
    run = measured_run_of(lognormal_s(20_000), gap_s=0.01)
    result = gate_runs(run, run, "run_effect_sd = 0")
    assert result.verdict.basis == "inconclusive"  # the policy for replays wants sustained FLOP/s
    assert {claim.metric for claim in default_measured_policy().claims if claim.blocking} == {"ttft_s", "tpot_s", "e2e_s"}
    assert default_measured_policy().run_effect_sd == 0.01


def test_medians_can_be_claimed():
    values = lognormal_s(N)
    text = '[blocking]\ntpot_s = { p50 = "3 %" }'
    result = gate_runs(measured_run_of(jittered(values, 1)), measured_run_of(jittered(values, 2, 1.2)), text)
    assert [claim.outcome for claim in result.verdict.worst.claims] == ["disproved"]


def test_attainment_of_limits_is_judged_and_a_limit_on_what_is_not_recorded_is_not_met_for_free():
    values = lognormal_s(N)
    limit_s = float(np.quantile(values, 0.97))
    text = f"[slo]\nttft_s = {limit_s}\nmargin = 0.01\n" + P95
    run = measured_run_of(values)
    claims = {claim.metric: claim for claim in gate_runs(run, measured_run_of(1.2 * values), text).verdict.worst.claims}
    slo = claims["slo_attainment_ratio"]
    assert slo.baseline == pytest.approx(0.97, abs=0.001)
    assert slo.outcome == "disproved"
    blind = measured_run_of(values, columns={"tpot_s": [None] * N})
    claims = {claim.metric: claim for claim in gate_runs(blind, blind, text.replace("ttft_s =", "tpot_s =", 1)).verdict.worst.claims}
    assert claims["slo_attainment_ratio"].reason_code == "metric_absent"


def test_throughput_counts_the_tokens_of_the_runs_duration():
    run = measured_run_of([0.5] * 1000)
    text = P95 + 'throughput_tokens_per_s = "3 %"\n'
    claim = next(claim for claim in gate_runs(run, run, text).verdict.worst.claims if claim.metric == "throughput_tokens_per_s")
    # 1000 requests of 1011 tokens; the last ends 1 s after its arrival at 99.9 s.
    assert claim.baseline == pytest.approx(1000 * 1011 / 100.9)
    assert claim.outcome == "holds"


def test_steps_beside_the_requests_make_throughput_that_of_the_busy_time():
    from dataclasses import replace

    import pyarrow as pa

    starts = np.arange(200) * 1.0
    steps = pa.table({"start_s": starts, "end_s": starts + 0.5, "tokens": [100] * 200, "sequences": [1] * 200, "kv_tokens": [1] * 200})
    run = replace(measured_run_of([0.5] * 1000), steps=steps)
    text = P95 + 'throughput_tokens_per_s = "3 %"\n'
    claim = next(claim for claim in gate_runs(run, run, text).verdict.worst.claims if claim.metric == "throughput_tokens_per_s")
    assert claim.baseline == pytest.approx(200.0)


def test_each_load_of_a_file_is_a_cell_of_its_own():
    values = lognormal_s(N)
    slow, fast = ({"offered_rate_per_s": rate} for rate in (10.0, 20.0))
    baseline = [measured_run_of(jittered(values, 1), **slow), measured_run_of(jittered(values, 2), gap_s=0.05, **fast)]
    candidate = [measured_run_of(jittered(values, 3, 1.3), gap_s=0.05, **fast), measured_run_of(jittered(values, 4), **slow)]
    result = gate_runs(baseline, candidate)
    assert [cell.basis == "regression" for cell in result.verdict.cells] == [False, True]
    assert [cell.trace for cell in result.verdict.cells] == ["load 10 per s", "load 20 per s"]
    alone = gate_runs(baseline, candidate[:1])
    assert "load_missing" in [reason["code"] for reason in alone.verdict.cells[0].reasons]
    assert alone.verdict.cells[0].basis == "invalid_evidence"


def test_the_same_seed_gives_the_same_claims_and_another_moves_only_the_bounds():
    values = lognormal_s(N)
    arms = measured_run_of(jittered(values, 1)), measured_run_of(jittered(values, 2))
    first, again, other = (gate_runs(*arms, seed=seed).verdict.worst.claims[0] for seed in (1, 1, 2))
    assert first == again
    assert (first.ratio, first.interval) == (other.ratio, first.interval)
    assert first.interval != other.interval
