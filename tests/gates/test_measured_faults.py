"""Kinds of faults of measurements that other gates have passed: each makes a verdict weaker here, by name, and its near twin does not."""

import json

import numpy as np
import pytest

from gates.statement import to_document
from replay import documents
from tests.measured import P95, codes, gate_runs, measured_run_of, summary_of
from tests.runs import lognormal_s

VALUES = lognormal_s(2000)
RUN = measured_run_of(VALUES)


def found(candidate, baseline=RUN, text=P95, **request):
    return gate_runs(baseline, candidate, text, **request)


def invalid(code, candidate, baseline=RUN, text=P95, **request):
    result = found(candidate, baseline, text, **request)
    assert (result.verdict.basis, result.verdict.exit_code()) == ("invalid_evidence", 30)
    assert code in codes(result)
    assert result.verdict.worst.first_failing_stage == "ingress"
    return result


def fine(candidate, baseline=RUN, text=P95, **request):
    result = found(candidate, baseline, text, **request)
    assert result.verdict.basis != "invalid_evidence", codes(result)
    return result


def changed(name, values, **facts):
    return measured_run_of(VALUES, columns={name: values}, **facts)


def test_two_equal_runs_are_valid_evidence():
    assert fine(measured_run_of(VALUES)).verdict.basis == "proven_safe"


def test_empty_arms_are_invalid_on_either_side_and_on_both():
    empty = measured_run_of([])
    for arms in ((empty, RUN), (RUN, empty), (empty, empty)):
        invalid("no_requests", arms[1], arms[0])


def test_ids_of_which_97_percent_are_common_are_not_the_same_requests():
    partly = measured_run_of(VALUES, ids=[f"{'x' if index < 60 else 'r'}{index}" for index in range(2000)])
    invalid("requests_differ", partly)


def test_disjoint_ids_are_no_pairs_and_no_fault():
    assert "requests_unpaired" in codes(fine(measured_run_of(VALUES, ids=[f"x{index}" for index in range(2000)])))


def test_a_missing_row_is_enough():
    invalid("requests_differ", measured_run_of(VALUES[:-1]))
    fewer = measured_run_of(VALUES[:1900], ids=[f"x{index}" for index in range(1900)])
    invalid("counts_differ", fewer)
    fine(measured_run_of(VALUES[:1990], ids=[f"x{index}" for index in range(1990)]))


def test_rows_that_the_file_speaks_of_and_does_not_hold():
    invalid("rows_missing", measured_run_of(VALUES, expected_count=2001))
    fine(measured_run_of(VALUES, expected_count=2000))


def test_ids_that_repeat_tell_nothing_apart():
    invalid("duplicate_ids", measured_run_of(VALUES, ids=["r0", *(f"r{index}" for index in range(1999))]))


@pytest.mark.parametrize(
    ("name", "value"), [("status", "failed"), ("status", "truncated"), ("output_tokens", 0)], ids=["failed", "truncated", "zero tokens"]
)
def test_requests_that_were_not_served(name, value):
    plain = {"status": "completed", "output_tokens": 11}[name]
    lost = changed(name, [value] * 21 + [plain] * 1979)
    result = invalid("requests_not_served", lost, lost)
    assert "more than 1 %" in result.verdict.worst.reasons[0]["message"]
    few = changed(name, [value] * 4 + [plain] * 1996)
    assert "requests_not_served" in codes(fine(few, few))
    assert any("left out" in warning for warning in fine(few).verdict.worst.claims[0].warnings)


def test_a_success_without_a_token_is_none_whatever_the_file_says():
    result = invalid("requests_not_served", changed("output_tokens", [0] * 758 + [11] * 1242, completed_count=2000))
    assert "the file calls 2000 completed" in next(
        reason["message"] for reason in result.verdict.worst.reasons if reason["code"] == "requests_not_served"
    )


def test_a_candidate_that_fails_more_than_chance_explains_is_a_regression_even_below_the_limit():
    result = found(changed("status", ["failed"] * 8 + ["completed"] * 1992))
    assert (result.verdict.basis, result.verdict.worst.first_failing_stage) == ("regression", "execution")
    assert codes(result)[0] == "requests_unserved"
    assert found(changed("status", ["failed"] * 3 + ["completed"] * 1997)).verdict.basis != "regression"
    assert found(RUN, changed("status", ["failed"] * 8 + ["completed"] * 1992)).verdict.basis != "regression"


def test_failures_by_the_thousand_have_the_chance_that_exact_fractions_give():
    from fractions import Fraction
    from math import comb

    from gates.checks.measured_requests import _chance_of_as_many

    exact = sum(Fraction(comb(3100, k), 2**3100) for k in range(1600, 3101))
    assert _chance_of_as_many(1500, 1600, 0.5) == pytest.approx(float(exact), rel=1e-9)


def test_failures_by_the_hundred_thousand_are_compared_in_no_time():
    from gates.checks.measured_requests import _chance_of_as_many

    assert _chance_of_as_many(200_000, 200_000, 0.5) == pytest.approx(0.5, abs=0.01)
    assert _chance_of_as_many(199_000, 201_000, 0.5) < 0.001
    assert _chance_of_as_many(10_100, 10_000, 0.5) > 0.5


@pytest.mark.parametrize("scale", [1000.0, 1 / 1000, 1e6])
def test_arms_in_different_units(scale):
    invalid("units_differ", measured_run_of(VALUES * scale))


def test_a_slowdown_is_no_unit():
    assert found(measured_run_of(VALUES * 30)).verdict.basis == "regression"


def test_columns_of_one_file_in_different_units():
    mixed = changed("tpot_s", VALUES / 10 * 1000)
    invalid("units_inconsistent", mixed, mixed)


def test_milliseconds_in_the_header_and_seconds_in_the_cells():
    # The fault of a public results page: 0.0488 s per token under a heading that says (ms), so 48.8 us.
    wrong = measured_run_of(VALUES / 1000 / np.median(VALUES) * 0.488)
    invalid("units_implausible", wrong, wrong)
    right = measured_run_of(VALUES / np.median(VALUES) * 0.488)
    fine(right, right)


def test_a_first_token_after_the_end():
    late = changed("e2e_s", VALUES / 2)
    invalid("times_out_of_order", late, late)


def test_arms_that_were_offered_different_loads():
    arms = [measured_run_of(VALUES, offered_rate_per_s=rate) for rate in (10.0, 10.05, 10.2)]
    fine(arms[1], arms[0])
    invalid("offered_load_differs", arms[2], arms[0])
    invalid("offered_load_differs", measured_run_of(VALUES, offered_rate_per_s=float("inf")), arms[0])
    invalid("concurrency_differs", measured_run_of(VALUES, concurrency=8), measured_run_of(VALUES, concurrency=16))


def test_loads_that_nothing_states_and_that_differ_all_the_same():
    invalid("achieved_load_differs", measured_run_of(VALUES, gap_s=0.11))
    fine(measured_run_of(VALUES, gap_s=0.102))


def test_a_load_that_was_asked_for_and_not_sent():
    slow = measured_run_of(VALUES, offered_rate_per_s=12.0)
    invalid("offered_load_not_reached", slow, slow)
    near = measured_run_of(VALUES, offered_rate_per_s=10.5)
    fine(near, near)


def test_waiting_in_the_client_that_is_not_counted():
    capped = measured_run_of(VALUES, arrivals="sent", offered_rate_per_s=10.0, concurrency=8)
    invalid("coordinated_omission", capped, capped)
    for facts in ({"arrivals": "scheduled", "concurrency": 8}, {"arrivals": "sent", "concurrency": None}):
        twin = measured_run_of(VALUES, offered_rate_per_s=10.0, **facts)
        fine(twin, twin)
    invalid("arrival_meaning_differs", measured_run_of(VALUES, arrivals="sent"))


def test_a_prefix_cache_that_one_arm_found_warm():
    warm = changed("prefix_hit_tokens", [900] * 2000)
    message = invalid("cache_state_differs", warm).verdict.worst.reasons[0]["message"]
    assert "0 % of the baseline's" in message
    assert "90 %" in message
    fine(warm, warm)
    assert "cache_state_unknown" in codes(fine(*[changed("prefix_hit_tokens", [None] * 2000)] * 2))


def test_a_cold_start_in_one_arm():
    cold = measured_run_of(np.concatenate([[20.0] * 10, VALUES[10:]]))
    invalid("cold_start_in_one_arm", cold, measured_run_of(np.concatenate([[0.1] * 10, VALUES[10:]])))
    assert "cold_start" in codes(fine(cold, cold))


@pytest.mark.parametrize("fact", ["format", "model", "hardware", "dataset"])
def test_runs_of_different_things_are_not_compared(fact):
    code = {"format": "tools_differ", "model": "model_differs", "hardware": "hardware_differs", "dataset": "dataset_differs"}[fact]
    invalid(code, measured_run_of(VALUES, **{fact: "another"}), measured_run_of(VALUES, **{fact: "one"}))
    if fact != "format":
        fine(measured_run_of(VALUES, **{fact: None}), measured_run_of(VALUES, **{fact: "one"}))


def test_one_result_on_both_sides_is_said_to_show_nothing():
    assert "same_result" in codes(fine(RUN))
    assert "same_result" not in codes(fine(measured_run_of(VALUES, digest="sha256:" + "56" * 32)))


def test_repeated_runs_that_took_no_turns_are_said():
    def arm(*days):
        return [
            measured_run_of(VALUES * (1 + 0.001 * day), started_at=f"2026-01-{day:02}T00:00:00Z", digest=f"sha256:{day:064}")
            for day in days
        ]

    assert "arms_not_interleaved" in codes(gate_runs(arm(1, 2), arm(3, 4), P95))
    assert "arms_not_interleaved" not in codes(gate_runs(arm(1, 4), arm(2, 3), P95))


def test_longer_answers_are_another_load():
    invalid("request_shapes_differ", changed("output_tokens", [12] * 2000))
    invalid("request_shapes_differ", changed("prompt_tokens", [1100] * 2000))


def test_a_synthetic_load_needs_the_policys_permission():
    made = measured_run_of(VALUES, is_synthetic=True)
    invalid("synthetic_trace_not_allowed", made, made)
    assert "synthetic_trace" in codes(fine(made, made, "allow_synthetic = true\n" + P95))
    assert "origin_unstated" in codes(fine(*[measured_run_of(VALUES, is_synthetic=None)] * 2))


def test_the_age_of_the_baseline_is_stated_and_refused_beyond_the_policys_limit():
    def aged(started_at, as_of="2026-03-01T00:00:00+00:00", limit="max_trace_age_days = 30\n"):
        return RUN, measured_run_of(VALUES, started_at=started_at), limit + P95, {"as_of": as_of}

    def asked(check, *arguments):
        candidate, baseline, text, request = aged(*arguments)
        return check(candidate, baseline, text, **request)

    asked(lambda *given, **request: invalid("baseline_too_old", *given, **request), "2026-01-29T00:00:00Z")
    asked(lambda *given, **request: invalid("baseline_age_unknown", *given, **request), None)
    asked(lambda *given, **request: invalid("baseline_from_the_future", *given, **request), "2026-03-02T00:00:00Z")
    result = asked(fine, "2026-02-01T00:00:00Z")
    assert "the baseline was measured 28.0 days before" in str(result.verdict.worst.reasons)


def test_summaries_decide_nothing_and_say_so():
    summary = summary_of(completed_count=1000, expected_count=1000)
    result = fine(summary, summary)
    assert result.verdict.basis == "inconclusive"
    assert {claim.reason_code for claim in result.verdict.worst.claims} == {"summary_only"}
    invalid("requests_not_served", summary_of(completed_count=900, expected_count=1000), summary)


def test_a_run_that_its_own_tool_calls_invalid_is_no_evidence():
    invalid("run_not_valid", summary_of(is_valid=False), summary_of(is_valid=True))
    fine(summary_of(is_valid=True), summary_of(is_valid=True))


def test_zero_variance_and_a_zero_baseline_give_a_strict_document():
    for baseline_s, candidate_s in ((0.5, 0.5), (0.0, 0.0), (0.0, 0.5)):
        result = gate_runs(measured_run_of([baseline_s] * 2000), measured_run_of([candidate_s] * 2000))
        document = to_document(result.verdict, plan=result.plan, inputs=result.inputs, tool_version="0")
        documents.check(document, "verdict.v1", "verdict")
        assert json.loads(json.dumps(document, allow_nan=False)) == document
        assert (result.verdict.decision == "release") == (0.0 < candidate_s <= baseline_s)


def test_a_stratum_of_one_arm_or_of_too_few_is_undecided():
    text = 'prompt_bin_edges_tokens = [500]\n[blocking.by_prompt_bin]\nttft_s = { p95 = "3 %" }\n'
    few = changed("prompt_tokens", [1000] * 1990 + [10] * 10)
    reasons = {claim.stratum: claim.reason_code for claim in fine(few, few, text).verdict.worst.claims}
    assert reasons == {"prompt_tokens[0,500)": "too_few_samples", "prompt_tokens[500,inf)": None}
    one_sided = {claim.stratum: claim.reason_code for claim in fine(few, RUN, text).verdict.worst.claims}
    assert one_sided["prompt_tokens[0,500)"] == "stratum_absent"
    unknown = changed("prompt_tokens", [None] * 2000)
    assert {claim.reason_code for claim in fine(unknown, unknown, text).verdict.worst.claims} == {"stratum_absent"}


def test_three_equal_runs_of_a_thousand_requests_never_roll_back():
    # A public benchmark repeated on one build: p99 TTFT spread by 39 % over three runs.
    rng = np.random.default_rng(5)
    runs = [measured_run_of(lognormal_s(1000, seed=int(seed))) for seed in rng.integers(0, 10**6, 3)]
    text = '[blocking]\nttft_s = { p95 = "3 %", p99 = "3 %" }\n'
    for first, second in ((0, 1), (1, 2), (0, 2)):
        foreign = measured_run_of(runs[second].requests["ttft_s"].to_numpy(), ids=[f"x{index}" for index in range(1000)])
        assert gate_runs(runs[first], foreign, text).verdict.basis == "inconclusive"


@pytest.mark.parametrize("values", [np.zeros(2000), np.where(np.arange(2000) < 40, 0.0, VALUES)])
def test_requests_that_took_no_time_are_no_measurements_in_either_arm_or_both(values):
    still = measured_run_of(values)
    for arms in ((still, RUN), (RUN, still), (still, still)):
        invalid("times_not_positive", *arms)


@pytest.mark.parametrize("gap_s", [0.125, 1.0, 0.09])
def test_scheduled_arrivals_at_another_rate_are_another_load_though_no_file_says_when_requests_were_sent(gap_s):
    unsent = {"sent_s": [None] * 2000}
    baseline, other = (measured_run_of(VALUES, columns=unsent, gap_s=gap) for gap in (0.1, gap_s))
    invalid("achieved_load_differs", other, baseline)
    fine(measured_run_of(VALUES, columns=unsent, gap_s=0.101), baseline)


@pytest.mark.parametrize("seed", range(20))
def test_arrivals_that_each_run_drew_for_itself_at_one_rate_are_one_load(seed):
    draw = np.random.default_rng(seed)
    arms = [
        measured_run_of(VALUES[:1000], columns={"sent_s": [None] * 1000, "arrival_s": np.cumsum(draw.exponential(0.1, 1000)).tolist()})
        for _ in range(2)
    ]
    assert "achieved_load_differs" not in codes(found(arms[1], arms[0]))


def test_other_prompts_under_equal_ids_are_other_requests():
    lengths = np.random.default_rng(1).integers(10, 2000, 2000)
    baseline = changed("prompt_tokens", lengths.tolist())
    invalid("requests_differ", changed("prompt_tokens", lengths[::-1].tolist()), baseline)
    fine(changed("prompt_tokens", lengths.tolist()), baseline)


def lengths_of(change):
    """Runs whose answers differ in length by `change` [requests]."""
    outputs = np.random.default_rng(2).integers(50, 400, 2000)
    return [changed("output_tokens", (outputs + step).tolist()) for step in (np.zeros(2000, dtype=int), change)]


@pytest.mark.parametrize("count", [40, 20])
@pytest.mark.parametrize("step", [-30, 30])
def test_answers_that_all_change_in_one_direction_are_other_work_however_few(count, step):
    baseline, candidate = lengths_of(np.where(np.arange(2000) < count, step, 0))
    invalid("request_shapes_differ", candidate, baseline)


def test_answers_of_other_lengths_in_both_directions_are_sampling():
    draw = np.random.default_rng(3)
    baseline, candidate = lengths_of(np.where(draw.random(2000) < 0.5, draw.integers(-20, 20, 2000), 0))
    fine(candidate, baseline)
    baseline, candidate = lengths_of(np.where(np.arange(2000) < 19, -30, 0))
    fine(candidate, baseline)
