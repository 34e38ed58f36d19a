"""What replicates say beside their bounds: flips, two modes, whether the model's error forbids a decision, and whether more would help."""

import math

import numpy as np
import pytest

from gates.judge import judge_measured
from gates.measure.measured import Measured
from gates.plan import METHOD, RESIMULATION_METHOD
from gates.resimulation.doubt import settled, with_resimulated
from gates.resimulation.errors import KernelError
from gates.resimulation.replicates import Resimulated
from tests.runs import cell_for, make_run, policy_of

TTFT = 'resimulations = 20\n[blocking]\nttft_s = { p95 = "3 %" }\n'
FLOPS = 'resimulations = 20\n[blocking]\nsustained_flops_per_s = "3 %"\n'
POINTS = TTFT + '[advisory]\nmfu_ratio = "1 point"\n'
BOTH = 'resimulations = 40\n[blocking]\nttft_s = { p95 = "3 %", p99 = "3 %" }\n'
RUN = make_run(np.arange(1.0, 300.0))


def cell(text=TTFT):
    return cell_for(RUN, policy_of(text))


def resimulated(*candidates, errors=(), specific=None, baseline=1.0):
    """Replicates of candidates [claims][replicates] against a baseline of 1."""
    figures = np.array(candidates, dtype=float).T
    own = np.zeros((len(figures), 0)) if specific is None else np.column_stack(specific)
    return Resimulated(baseline=np.full_like(figures, baseline), candidate=figures, errors=errors, specific=own)


def measured(candidate=1.0, baseline=1.0, **more):
    return Measured(n=10_000, baseline=baseline, candidate=candidate, replicates=(np.ones(50), np.ones(50)), **more)


def found(candidate, replicates, text=TTFT, *, index=0, baseline=1.0, **more):
    """The figures of one claim whose exact effect is `candidate`."""
    columns = [np.ones(len(replicates))] * index + [replicates]
    return with_resimulated(cell(text), index, measured(candidate, baseline), resimulated(*columns, baseline=baseline, **more))


def error(kernel, specific_sd):
    return KernelError(kernel=kernel, shared_sd=0.2, specific_sd=specific_sd, changed=specific_sd > 0, estimated=True)


def signs(n, period):
    """[n] +1 and -1 in turns of `period`: of different periods, powers of 2, they are orthogonal."""
    return np.where(np.arange(n) // period % 2 == 0, 1.0, -1.0)


def test_replicates_take_the_place_of_resamples():
    one = found(1.01, np.linspace(1.0, 1.02, 20))
    assert one.method == RESIMULATION_METHOD
    assert one.replicates[1].tolist() == np.linspace(1.0, 1.02, 20).tolist()
    assert (one.n, one.baseline, one.candidate) == (10_000, 1.0, 1.01)


def test_what_forbids_a_decision_on_the_runs_themselves_stays():
    problem = ("too_few_samples", "9 samples")
    kept = with_resimulated(cell(), 0, measured(problem=problem), resimulated(np.ones(20)))
    assert (kept.problem, kept.method) == (problem, METHOD)


def test_resamples_without_a_figure_do_not_count_where_every_replay_has_one():
    undefined = Measured(n=300, baseline=1.0, candidate=1.0, problem=("undefined_resamples", "hold none"))
    assert with_resimulated(cell(), 0, undefined, resimulated(np.ones(20))).problem is None


def test_a_replay_without_a_figure_leaves_the_claim_undecided():
    gaps = np.array([math.nan, *np.ones(19)])
    one = found(1.0, gaps)
    assert (one.problem[0], one.replicates, one.method) == ("undefined_resamples", None, RESIMULATION_METHOD)
    [claim] = judge_measured(cell(), [one])
    assert claim.outcome == "undecided"


def test_an_advisory_claim_that_no_replay_has_keeps_its_resamples():
    nothing = Resimulated(baseline=np.full((20, 1), math.nan), candidate=np.full((20, 1), math.nan), errors=(), specific=np.zeros((20, 0)))
    assert with_resimulated(cell(), 0, measured(), nothing).method == METHOD


@pytest.mark.parametrize(("exact", "share"), [(1.02, 0.15), (1.03, 0.15), (1.031, 0.85)])
def test_flips_are_the_replicates_on_the_other_side_of_the_margin_than_the_runs(exact, share):
    replicates = np.array([1.03, 1.0, *[1.02] * 15, 1.0301, 1.04, 1.5])
    assert found(exact, replicates).flip_ratio == share


def test_of_a_metric_to_be_high_flips_are_counted_the_other_way_round():
    assert found(0.99, np.array([0.96] * 5 + [0.98] * 10 + [1.2] * 5), FLOPS).flip_ratio == 0.25


def test_flips_of_a_difference_are_against_the_margin_in_points():
    replicates = 0.4 - np.array([0.011] * 5 + [0.009] * 15)
    assert found(0.395, replicates, POINTS, index=1, baseline=0.4).flip_ratio == 0.25


def test_two_groups_with_nothing_between_are_told_as_bistable_with_their_share_and_distance():
    noise = 0.001 * signs(20, 1)
    replicates = np.where(np.arange(20) < 14, np.exp(noise), 1.4 * np.exp(noise))
    [warning] = found(1.0, replicates).warnings
    assert warning == "bistable: 30% of the replays are about +40% worse than the others, with nothing between"
    [mirrored] = found(1.0, 1.0 / replicates, FLOPS).warnings
    assert mirrored.startswith("bistable: 30%")


@pytest.mark.parametrize(
    "replicates",
    [
        np.ones(200),
        np.exp(0.01 * np.random.default_rng(1).standard_normal(200)),
        np.exp(0.01 * np.random.default_rng(1).exponential(1.0, 200)),
        np.linspace(0.9, 1.1, 200),
        [*np.linspace(0.999, 1.001, 195), *np.linspace(1.5, 1.51, 5)],  # too few for a mode
        [*np.linspace(1.0, 1.2, 100), *np.linspace(1.25, 1.45, 100)],  # groups wider than they are apart
        np.exp([*np.linspace(0.0, 0.1, 100), *np.linspace(0.12, 0.22, 100)]),  # a gap smaller than the groups spread
    ],
)
def test_one_group_a_tail_and_a_small_gap_are_no_two_modes(replicates):
    assert found(1.0, np.array(replicates)).warnings == ()


def test_warnings_of_the_runs_stay_before_those_of_the_replicates():
    replicates = np.array([1.0, 1.001] * 10 + [1.5, 1.501] * 10)
    one = with_resimulated(cell(), 0, measured(warnings=("first",)), resimulated(replicates))
    assert [warning[:8] for warning in one.warnings] == ["first", "bistable"]


def doubt_of(slopes, traffic, sds, centre=0.0, n=64, text=TTFT, sign=1.0):
    """The doubt of effects centre + sum slope x error + traffic, all orthogonal."""
    errors = tuple(error(f"k{place}", sd) for place, sd in enumerate(sds))
    specific = [signs(n, 2 ** (place + 1)) for place in range(len(sds))]
    effects = centre + sum(slope * column for slope, column in zip(slopes, specific, strict=True)) + traffic * signs(n, 1)
    return found(math.exp(sign * centre), np.exp(sign * effects), text, errors=errors, specific=specific).doubt


def test_by_hand_the_accuracy_that_would_decide_is_what_the_margin_leaves_beside_the_traffic():
    # Half the interval may be ln 1.03 = 0.029559, so its standard deviation 0.029559 / 1.644854 = 0.017970; traffic has
    # 0.005 x sqrt(64 / 62) = 0.005080, which leaves sqrt(0.017970^2 - 0.005080^2) = 0.017237 of 0.05: a factor 0.3447.
    # exp(0.3447 x 0.1) - 1 = 3.5 % instead of exp(0.1) - 1 = 11 %.
    code, sentence = doubt_of([0.05], 0.005, [0.1])
    assert code == "model_error_too_large"
    assert "with the time of k0 to 3.5 % instead of 11 % (one standard deviation) it would be decided" in sentence


def test_by_hand_a_candidate_that_is_worse_on_average_is_decided_by_what_shows_it_is_worse():
    # No change is 0.08 away, the margin's end is behind: 0.08 / 1.644854 = 0.04864; beside traffic of 0.005080 that leaves 0.04837
    # of 0.08: a factor 0.6046, exp(0.6046 x 0.2) - 1 = 13 % instead of exp(0.2) - 1 = 22 %.
    _, sentence = doubt_of([0.08], 0.005, [0.2], centre=0.08)
    assert "k0 to 13 % instead of 22 %" in sentence


def test_several_kernels_share_the_factor_and_the_three_that_matter_most_are_named():
    # Together 0.05 x sqrt(1 + 0.64 + 0.36 + 0.04) = 0.07141: a factor 0.017237 / 0.07141 = 0.2414.
    _, sentence = doubt_of([0.03, 0.05, -0.04, 0.01], 0.005, [0.1, 0.1, 0.2, 0.1])
    wanted = "with the time of k1 to 2.4 % instead of 11 %, k2 to 4.9 % instead of 22 %, k0 to 2.4 % instead of 11 % (one"
    assert wanted in sentence


def test_of_a_metric_to_be_high_the_margin_is_below():
    # ln(1 / 0.97) = 0.030459; / 1.644854 = 0.018518; beside traffic 0.017808 of 0.05: 0.3562, exp(0.03562) - 1 = 3.6 %.
    _, sentence = doubt_of([0.05], 0.005, [0.1], text=FLOPS, sign=-1.0)
    assert "k0 to 3.6 % instead of 11 %" in sentence


@pytest.mark.parametrize(
    "case",
    [
        {"slopes": [0.05], "traffic": 0.03, "sds": [0.1]},  # the traffic alone forbids it
        {"slopes": [0.002], "traffic": 0.001, "sds": [0.1]},  # it is decided: inside the margin
        {"slopes": [0.02], "traffic": 0.005, "sds": [0.1], "centre": 0.2},  # it is decided: worse
        {"slopes": [0.05], "traffic": 0.005, "sds": [0.0]},  # no kernel changed
        {"slopes": [0.05], "traffic": 0.005, "sds": [0.1], "n": 7},  # too few replicates to tell
    ],
)
def test_the_model_is_not_blamed_where_it_does_not_forbid_the_decision(case):
    doubt = doubt_of(**case)
    assert doubt is None or doubt[0] != "model_error_too_large"


def test_the_doubt_is_the_reason_of_an_undecided_claim():
    errors, specific = (error("qkv", 0.1),), [signs(64, 2)]
    effects = np.exp(0.05 * specific[0] + 0.005 * signs(64, 1))
    one = found(1.0, effects, errors=errors, specific=specific)
    [claim] = judge_measured(cell(), [one])
    assert (claim.outcome, claim.reason_code) == ("undecided", "model_error_too_large")
    assert "the time of qkv" in claim.reason


def at(place, value, step=0.001):
    """200 effects a step apart of which the sorted ones at `place` and `place` + 1 lie half a step to either side of a value."""
    return value + step * (np.arange(200) - place - 0.5)


@pytest.mark.parametrize(("place", "enough"), [(182, True), (183, False), (190, False), (195, False), (196, True)])
def test_more_replicates_are_drawn_only_where_a_bound_is_known_too_badly(place, enough):
    # Of 200 replicates the 5 % bound is number 10 +- 2 sqrt(200 x 0.05 x 0.95) = 6.2: those at 3 to 16 from either end.
    assert settled(cell(), [measured(1.0)], resimulated(at(place, 1.03))) is enough


@pytest.mark.parametrize(("place", "enough"), [(2, True), (3, False), (15, False), (16, True)])
def test_a_lower_bound_near_no_change_asks_for_more_where_the_margin_is_not_kept(place, enough):
    assert settled(cell(), [measured(1.1)], resimulated(at(place, 1.0))) is enough


def test_a_lower_bound_near_no_change_is_enough_inside_the_margin():
    assert settled(cell(), [measured(1.01)], resimulated(at(10, 1.0, step=0.0001)))


def test_identical_arms_and_wide_intervals_are_settled():
    assert settled(cell(), [measured(1.0)], resimulated(np.ones(200)))
    assert settled(cell(), [measured(1.0)], resimulated(np.linspace(0.5, 2.0, 200)))
    assert settled(cell(), [measured(1.03)], resimulated(np.full(200, 1.03)))


def test_a_claim_that_is_surely_worse_settles_the_cell_whatever_the_others_are():
    close, worse = at(190, 1.03), np.linspace(1.1, 1.2, 200)
    for order in ((close, worse), (worse, close)):
        assert settled(cell(BOTH), [measured(1.0), measured(1.0)], resimulated(*order))
    assert not settled(cell(BOTH), [measured(1.0), measured(1.0)], resimulated(close, np.ones(200)))


def test_advisory_claims_and_undecidable_ones_ask_for_no_more():
    close = at(190, 0.99)
    assert settled(cell(POINTS), [measured(), measured(0.5, 0.5)], resimulated(np.ones(200), close))
    few = measured(problem=("too_few_samples", "9 samples"))
    assert settled(cell(), [few], resimulated(at(190, 1.03)))


def test_of_a_metric_to_be_high_the_reach_is_mirrored():
    assert not settled(cell(FLOPS), [measured(1.0)], resimulated(2 * 0.97 - at(190, 0.97)))
    assert settled(cell(FLOPS), [measured(1.0)], resimulated(2 * 0.97 - at(182, 0.97)))


@pytest.mark.parametrize(("not_worse", "enough"), [(0, True), (1, False), (3, False)])
def test_a_p_value_near_holms_level_asks_for_more_where_claims_look_worse(not_worse, enough):
    # Seven blocking claims: Holm's level is 0.05 / 7 = 0.0071; of 200 replicates, 0 that are not worse have p = 1/201, one 2/201, ...
    text = "[blocking]\nttft_s = { p50 = '3 %', p90 = '3 %', p95 = '3 %' }\ntpot_s = { p50 = '3 %', p90 = '3 %' }\n"
    text += "e2e_s = { p50 = '3 %', p90 = '3 %' }\n"
    effects = np.concatenate([np.full(not_worse, 0.9), np.linspace(1.2, 1.4, 200 - not_worse)])
    family = cell(text)
    assert sum(claim.spec.blocking for claim in family.claims) == 7
    count = len(family.claims)
    assert settled(family, [measured(1.3)] * count, resimulated(*[effects] * count)) is enough
