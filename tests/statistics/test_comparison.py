"""Bounds, p-values, detectable effects and the Holm correction, against figures worked by hand and scipy."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gates.statistics.compare import compare, judged
from gates.statistics.estimate import from_t
from gates.statistics.holm import holm
from gates.statistics.power import detectable_effect, needed_count


def compared(candidate_replicates, baseline_replicates=None, **changes):
    candidate_replicates = np.asarray(candidate_replicates, dtype=float)
    baseline_replicates = (
        np.ones_like(candidate_replicates) if baseline_replicates is None else np.asarray(baseline_replicates, dtype=float)
    )
    options = {"lower_is_better": True, "by_ratio": True, "margin": 0.03, "alpha": 0.05, **changes}
    baseline = options.pop("baseline", 1.0)
    return compare(baseline, options.pop("candidate", 1.0), baseline_replicates, candidate_replicates, **options)


def test_bounds_are_the_50th_smallest_and_largest_of_999_replicates():
    effects = np.random.default_rng(0).permutation(np.arange(1, 1000) / 500)
    found = compared(effects)
    assert (found.lower, found.upper) == (50 / 500, 950 / 500)


@pytest.mark.parametrize(
    ("effects", "lower_is_better", "inside", "worse", "better"),
    [
        ([1.01, 1.03], True, True, True, False),  # real, but inside the margin
        ([1.01, 1.04], True, False, True, False),
        ([0.99, 1.04], True, False, False, False),
        ([0.90, 0.99], True, True, False, True),
        ([0.98, 0.99], False, True, True, False),
        ([0.90, 0.99], False, False, True, False),
        ([0.90, 1.01], False, False, False, False),
        ([1.01, 1.20], False, True, False, True),
        ([1.00, 1.00], True, True, False, False),
        ([1.00, 1.00], False, True, False, False),
    ],
)
def test_the_bad_side_bound_decides_the_margin_and_the_good_side_bound_the_worsening(effects, lower_is_better, inside, worse, better):
    found = compared(effects, lower_is_better=lower_is_better)
    assert (found.inside_margin, found.beyond_no_change, found.improved) == (inside, worse, better)


def test_a_replicate_without_change_counts_as_no_worsening():
    assert compared([1.0, 1.0, 1.1, 1.1]).p_no_worse == 3 / 5
    assert compared([1.0, 1.0, 0.9, 0.9], lower_is_better=False).p_no_worse == 3 / 5
    assert compared([1.1] * 999).p_no_worse == 1 / 1000


def test_no_change_in_any_replicate_gives_exactly_one():
    found = compared([3.3, 1e-9, 7e8], [3.3, 1e-9, 7e8], baseline=0.1, candidate=0.1)
    assert (found.estimate, found.lower, found.upper, found.minimum_detectable_effect) == (1.0, 1.0, 1.0, 0.0)


@pytest.mark.parametrize("baseline_replicates", [[0.0, 0.0], [0.0, 2.0]])
def test_a_baseline_of_zero_is_compared_by_difference_and_nothing_is_nan(baseline_replicates):
    found = compared([0.5, 1.0], baseline_replicates, baseline=baseline_replicates[1], candidate=1.0)
    assert found.scale == "difference"
    assert found.margin == 0.03 * baseline_replicates[1]
    assert all(math.isfinite(value) for value in (found.estimate, found.lower, found.upper, found.minimum_detectable_effect))


def test_a_candidate_of_zero_is_still_compared_by_ratio():
    found = compared([0.0, 0.5], candidate=0.0)
    assert (found.scale, found.lower, found.improved) == ("ratio", 0.0, True)
    assert math.isfinite(found.minimum_detectable_effect)


def test_the_detectable_effect_is_2_49_standard_deviations_of_the_log_ratio():
    effects = np.exp(np.random.default_rng(1).normal(0, 0.03, 5000))
    assert compared(effects).minimum_detectable_effect == pytest.approx(2.4865 * np.log(effects).std(ddof=1), rel=1e-4)


def test_an_effect_as_large_as_the_detectable_one_is_found_with_80_percent_power():
    sd = 0.02
    effect = detectable_effect(sd, 0.05)
    assert stats.norm.sf(stats.norm.isf(0.05) * sd, loc=effect, scale=sd) == pytest.approx(0.80)


def test_four_times_the_data_decide_half_the_detectable_effect():
    assert needed_count(1000, 0.06, to_limit=0.03, to_no_change=0.0) == 4000
    assert needed_count(1000, 0.06, to_limit=-0.05, to_no_change=0.03) == 4000
    assert needed_count(1000, 0.02, to_limit=0.03, to_no_change=0.0) is None


def test_holm_matches_figures_worked_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
    assert holm([]) == ()


@given(st.lists(st.floats(0.0, 1.0), max_size=12))
def test_holm_equals_multiplying_the_sorted_p_values_and_taking_running_maxima(p_values):
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    running = np.minimum(1.0, np.maximum.accumulate(factors * np.asarray(p_values)[order])) if p_values else []
    expected = dict(zip(order.tolist(), running, strict=True))
    assert holm(p_values) == pytest.approx([expected[index] for index in range(len(p_values))])


@pytest.mark.parametrize(
    ("estimate", "lower_is_better", "inside", "worse", "better"),
    [
        (0.01, True, True, True, False),
        (0.03, True, False, True, False),
        (-0.02, True, True, False, True),
        (0.0, True, True, False, False),
        (-0.01, False, True, True, False),
        (-0.04, False, False, True, False),
        (0.02, False, True, False, True),
    ],
)
def test_an_estimate_of_measured_runs_is_judged_by_direction(estimate, lower_is_better, inside, worse, better):
    found = from_t("noise_swap", estimate, 0.004, 24, 0.05)
    result = judged(found, lower_is_better=lower_is_better, margin=0.03)
    assert (result.inside_margin, result.beyond_no_change, result.improved) == (inside, worse, better)
    assert (result.p_no_worse <= 0.05) == worse
    assert (result.estimate, result.lower, result.upper) == pytest.approx(tuple(np.exp([estimate, found.lower, found.upper])))


def test_a_veto_lets_nothing_pass_and_hides_no_worsening():
    vetoed = {value: replace(from_t("noise_swap", value, 0.001, 24, 0.05), release_vetoed=True) for value in (-0.05, 0.05)}
    better, worse = (judged(vetoed[value], lower_is_better=True, margin=0.03) for value in (-0.05, 0.05))
    assert (better.inside_margin, better.improved, worse.beyond_no_change) == (False, False, True)
