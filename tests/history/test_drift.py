"""Slow drift: what is carried from the anchor, when the budget is exceeded, and what cannot be known."""

import math
from dataclasses import replace

import pytest

from gates.checks.drift import HistoryInput
from gates.history.chain import History, drift_of
from gates.policy import parse_policy
from gates.statement import INPUT_ROLES
from replay import documents
from replay.errors import SpecError
from tests.history.histories import CELL, CLAIM, chained, gate_document, mapping, released_of_ten, steady, with_verdict

NAME = (CELL.trace, CELL.hardware, CELL.model)
BUDGET = CLAIM + '[drift]\nbudget = "5 %"\n'
KEY = "ttft_s.p99"


def creeping(count, step=1.01):
    return [step**number for number in range(count + 1)]


def gated(history, baseline, candidate, policy=BUDGET, **given):
    """Return (basis, codes) of a gate of one (mapping, level) against another, under a history."""
    known = HistoryInput(name="history.db", history=history, **given)
    arms = ((number, steady(level)) for number, level in (baseline, candidate))
    predicate = gate_document(*arms, policy=policy, given=known, as_of="2026-02-01T00:00:00+00:00")["predicate"]
    return predicate["basis"], {reason["code"]: reason["message"] for reason in predicate["reasons"]}


def test_drift_is_the_sum_of_the_logs_of_the_releases_since_the_anchor():
    releases = chained(creeping(4)).releases(NAME, KEY)
    drift = drift_of(releases, mapping(4))
    assert drift.anchor == mapping(0)
    assert drift.carried == pytest.approx(4 * math.log(1.01), rel=1e-6)
    assert len(drift.verdicts) == 4
    assert drift_of(releases, mapping(4), mapping(2)).carried == pytest.approx(2 * math.log(1.01), rel=1e-6)


def test_the_fifth_percent_is_released_alone_and_refused_by_a_budget_of_five():
    history = chained(creeping(4))
    basis, codes = gated(history, (4, 1.01**4), (5, 1.01**5))
    assert basis == "regression"
    assert "+5.1 % over 4 releases since" in codes["drift_budget_exceeded"]
    assert "the budget is 5 %" in codes["drift_budget_exceeded"]
    assert gated(history, (4, 1.01**4), (5, 1.01**5), policy=CLAIM)[0] == "proven_safe"
    assert gated(history, (4, 1.01**4), (5, 1.0085 * 1.01**4))[0] == "proven_safe"


def test_the_budget_never_makes_a_verdict_stronger():
    slower = chained([1.0, 0.9, 0.8])  # carries an improvement of 20 %
    assert gated(slower, (2, 0.8), (3, 0.88))[0] == "regression"


def test_higher_is_better_is_counted_the_other_way_round():
    claim = 'replicates = 200\n[blocking]\nsustained_flops_per_s = "3 %"\n'
    policy = claim + '[drift]\nbudget = "5 %"\n'
    rising, falling = chained([1.0, 1.02, 1.04], claim), chained([1.0, 0.98, 0.9604], claim)
    assert gated(rising, (2, 1.04), (3, 1.02), policy)[0] == "proven_safe"
    basis, codes = gated(falling, (2, 0.9604), (3, 0.945), policy)
    assert basis == "regression"
    assert "-5.5 %" in codes["drift_budget_exceeded"]


def test_a_change_that_is_gated_five_times_counts_once():
    history = chained(creeping(2))
    for day in range(3, 8):
        history = with_verdict(history, gate_document((2, steady(1.0201)), (9, steady(1.02 * 1.0201))), day)
        assert drift_of(history.releases(NAME, KEY), mapping(2)).carried == pytest.approx(2 * math.log(1.01), rel=1e-6)


def test_a_revert_to_the_anchor_owes_nothing():
    history = with_verdict(chained(creeping(1)), gate_document((1, steady(1.01)), (0, steady(1.0))), 2)
    assert drift_of(history.releases(NAME, KEY), mapping(0)).carried == 0.0
    assert drift_of(history.releases(NAME, KEY), mapping(1)).carried == pytest.approx(math.log(1.01), rel=1e-6)


def test_a_rollback_is_no_step_and_a_mapping_that_never_passed_is_a_gap():
    refused = with_verdict(chained(creeping(2)), gate_document((2, steady(1.02)), (3, steady(1.2))), 3)
    basis, codes = gated(refused, (3, 1.2), (4, 1.2))
    assert basis == "invalid_evidence"
    assert f"no release of {mapping(3)[7:19]} lies between it and the anchor" in codes["drift_history_gap"]
    assert "name a later anchor" in codes["drift_history_gap"]


def test_naming_the_baseline_as_the_anchor_starts_afresh():
    policy = f'{CLAIM}[drift]\nbudget = "5 %"\nanchor = "{mapping(0xABC)}"\n'
    assert gated(chained(creeping(4)), (0xABC, 1.0), (5, 1.0), policy, anchor=mapping(0xABC))[0] == "proven_safe"


def test_a_step_that_did_not_judge_the_claim_is_a_gap():
    other = 'replicates = 200\n[blocking]\ntpot_s = { p99 = "3 %" }\n'
    history = with_verdict(chained(creeping(1)), gate_document((1, steady(1.01)), (2, steady(1.02)), policy=other), 2)
    basis, codes = gated(history, (2, 1.02), (3, 1.02))
    assert basis == "invalid_evidence"
    assert "did not record it" in codes["drift_history_gap"]


def test_a_metric_that_no_plan_declares_any_more_is_named_and_not_judged():
    history = chained(creeping(3), CLAIM + 'e2e_s = { p90 = "3 %" }\n')
    basis, codes = gated(history, (3, 1.01**3), (4, 1.01**3))
    assert basis == "proven_safe"
    assert codes["history_undeclared"].endswith("not judged: e2e_s.p90")


def test_a_budget_without_a_history_supports_no_release():
    document = gate_document((0, steady(1.0)), (1, steady(1.0)), policy=BUDGET)
    assert document["predicate"]["basis"] == "invalid_evidence"
    assert document["predicate"]["reasons"][0]["code"] == "drift_history_missing"
    assert gated(History(), (0, 1.0), (1, 1.0), problem="the file is broken")[0] == "invalid_evidence"


def test_an_empty_history_says_that_counting_starts_here():
    basis, codes = gated(History(), (0, 1.0), (1, 1.01))
    assert basis == "proven_safe"
    assert "drift_starts_here" in codes
    assert gated(History(), (0, 1.0), (1, 1.06), BUDGET.replace('"3 %"', '"8 %"'))[0] == "regression"


def test_the_age_of_the_history_is_said_and_refused_beyond_the_limit():
    history = chained(creeping(2))
    basis, codes = gated(history, (2, 1.01**2), (3, 1.01**2))
    assert (basis, codes["history_age"]) == ("proven_safe", "the newest release in the history is 30.0 days old")
    limited = BUDGET + "max_gap_days = 29\n"
    assert gated(history, (2, 1.01**2), (3, 1.01**2), limited)[0] == "invalid_evidence"


def test_a_claim_by_difference_has_no_budget_and_that_is_said():
    policy = 'replicates = 200\n[blocking]\nmfu_ratio = "1 point"\n[drift]\nbudget = "5 %"\n'
    basis, codes = gated(History(), (0, 0.4), (1, 0.4), policy)
    assert basis == "proven_safe"
    assert "mfu_ratio" in codes["drift_not_limited"]


def test_what_the_history_carries_is_part_of_the_plan_and_an_input_of_the_verdict():
    def of(history):
        arms = (2, steady(1.0201)), (3, steady(1.03))
        document = gate_document(*arms, policy=BUDGET, given=HistoryInput(name="history.db", history=history))
        documents.check({**document, "predicate": {**document["predicate"]}}, "verdict.v1", "verdict")
        record = next(one for one in document["predicate"]["inputs"] if one["role"] == "history")
        return document["predicate"]["plan"]["digest"], record["digest"], document["predicate"]["basis"]

    history = chained(creeping(2))
    unrelated = with_verdict(history, gate_document((7, steady(1.0)), (8, steady(2.0))), 4)
    assert of(history) == of(unrelated)
    assert of(history)[:2] != of(chained([1.0, 1.02, 1.0201]))[:2]
    assert "history" in INPUT_ROLES


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("", "drift states no budget"),
        ("budget = 5\n", "bare number"),
        ('budget = "0 %"\n', "drift.budget"),
        ('budget = "120 %"\n', "less than 100"),
        ('budget = "5 %"\nanchor = "yesterday"\n', "anchor"),
        ('budget = "5 %"\nmax_gap_days = 0\n', "max_gap_days"),
        ('budget = "5 %"\nwindow = 3\n', "window"),
    ],
)
def test_a_budget_that_could_be_read_in_two_ways_is_refused(written, complaint):
    with pytest.raises(SpecError, match=complaint):
        parse_policy(f"[drift]\n{written}", "policy.toml")


def test_spellings_of_one_budget_are_one():
    assert len({parse_policy(f"[drift]\nbudget = {text}\n", "p").digest for text in ('"5 %"', "0.05", '"5.0 %"')}) == 1


# Ten successive changes of +1 %, margin 3 %, 10 replays per arm, standard deviation 1 % per replay: as simulated in the literature on
# rolling baselines, about 10 of 10 pass against the last release and about 1.7 against an anchor.


def mean_released(sequences, **kwargs):
    return sum(released_of_ten(seed, **kwargs) for seed in range(sequences)) / sequences


def test_most_of_ten_small_steps_pass_against_the_last_release_and_few_against_an_anchor():
    assert mean_released(10, is_anchored=False) >= 9
    assert mean_released(10, is_anchored=True) <= 2.5


@pytest.mark.slow
def test_of_ten_small_steps_at_most_two_point_one_pass_against_an_anchor():
    assert mean_released(300, is_anchored=True) <= 2.1


@pytest.mark.slow
def test_a_budget_over_the_history_stops_them_even_where_each_is_gated_against_the_last_release():
    assert mean_released(300, is_anchored=False, policy=CLAIM + '[drift]\nbudget = "2 %"\n') <= 2.1
    assert 3.5 <= mean_released(300, is_anchored=False, policy=BUDGET) <= 5.0


def renamed(history, names):
    """The history with each verdict's cell under another name."""
    rows = [replace(row, trace=names[[one.digest for one in history.verdicts].index(row.verdict)]) for row in history.claims]
    return History(verdicts=history.verdicts, claims=tuple(rows))


def test_cells_called_after_files_are_chained_whatever_the_files_are_called():
    history = renamed(chained(creeping(3)), ["run_v0", "run_v1", "run_v2"])
    cell = ("run_v3", CELL.hardware, CELL.model)
    name = history.latest_name(cell, mapping(3))
    assert name == ("run_v2", CELL.hardware, CELL.model)
    drift = drift_of(history.called(name).releases(name, KEY), mapping(3))
    assert drift.carried == pytest.approx(3 * math.log(1.01), rel=1e-6)
    elsewhere = ("run_v3", "other", CELL.model)
    assert history.latest_name(elsewhere, mapping(3)) == elsewhere
    assert history.latest_name(cell, mapping(9)) == cell
