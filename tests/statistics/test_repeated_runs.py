"""Several runs per arm against scipy's t tests, closed forms and simulated archives."""

import math

import numpy as np
import pytest
from scipy import stats

from gates.statistics.estimate import from_replicates, from_t, with_run_effect
from gates.statistics.power import detectable_effect, needed_requests, needed_runs
from gates.statistics.runs import VariancePrior, fit_prior, pooled, run_effect_sd, welch


def two_arms(runs=5, seed=0, shift=0.0, sd=0.02):
    generator = np.random.default_rng(seed)
    return generator.normal(1.0, sd, runs), generator.normal(1.0 + shift, sd, runs)


@pytest.mark.parametrize("equal_var", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_t_intervals_and_p_values_are_scipys(equal_var, seed):
    baseline, candidate = two_arms(seed=seed, shift=0.01)
    test = stats.ttest_ind(candidate, baseline, equal_var=equal_var, alternative="two-sided")
    found = pooled(baseline, candidate, alpha=0.05) if equal_var else welch(baseline, candidate, alpha=0.05)
    interval = test.confidence_interval(0.90)
    assert (found.lower, found.upper) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.p_no_increase == pytest.approx(
        stats.ttest_ind(candidate, baseline, equal_var=equal_var, alternative="greater").pvalue, rel=1e-8
    )


def test_a_certain_prior_gives_a_z_interval_and_one_run_per_arm_is_enough_with_it():
    prior = VariancePrior(variance=0.02**2, degrees=1e6)
    found = pooled(np.array([1.0]), np.array([1.01]), alpha=0.05, prior=prior)
    assert found.upper - found.estimate == pytest.approx(stats.norm.isf(0.05) * 0.02 * math.sqrt(2), rel=1e-4)
    with pytest.raises(ValueError, match="one run per arm and no archive"):
        pooled(np.array([1.0]), np.array([1.01]), alpha=0.05)


def test_moderation_weights_variances_by_their_degrees_of_freedom():
    baseline, candidate = two_arms()
    own = (np.var(baseline, ddof=1) + np.var(candidate, ddof=1)) / 2
    found = pooled(baseline, candidate, alpha=0.05, prior=VariancePrior(variance=1e-3, degrees=12.0))
    assert found.standard_error == pytest.approx(math.sqrt((12 * 1e-3 + 8 * own) / 20 * 2 / 5), rel=1e-9)
    assert (found.method, found.degrees) == ("moderated_t", 20.0)


def test_the_prior_of_an_archive_is_found_again():
    generator, true, d0, d = np.random.default_rng(1), 4e-4, 12.0, 4
    variances = true * d0 / generator.chisquare(d0, 4000)
    found = fit_prior(list(variances * generator.chisquare(d, 4000) / d), d)
    assert found.variance == pytest.approx(true, rel=0.05)
    assert found.degrees == pytest.approx(d0, rel=0.25)


def test_an_archive_of_equal_variances_is_a_certain_prior():
    found = fit_prior(list(np.full(30, 4e-4)), 4)
    assert found.degrees == 1e6
    with pytest.raises(ValueError, match="1 archived variances"):
        fit_prior([1e-4], 4)
    with pytest.raises(ValueError, match="above 0"):
        fit_prior([1e-4, 0.0], 4)


def test_t_intervals_of_runs_cover_the_truth_as_often_as_they_say():
    generator, trials, missed = np.random.default_rng(3), 800, 0
    for _ in range(trials):
        found = welch(generator.normal(0, 0.02, 5), generator.normal(0, 0.03, 5), alpha=0.025)
        missed += not found.lower <= 0 <= found.upper
    assert stats.binomtest(missed, trials, 0.05).pvalue > 1e-3


def test_a_run_effect_widens_one_pair_by_the_square_root_of_two():
    plain = from_t("noise_swap", 0.01, 0.004, 24, 0.05)
    found = with_run_effect(plain, 0.03)
    assert found.standard_error == pytest.approx(math.hypot(0.004, math.sqrt(2) * 0.03))
    assert found.upper - found.estimate == pytest.approx(math.hypot(plain.upper - 0.01, stats.norm.isf(0.05) * math.sqrt(2) * 0.03))
    assert found.estimate - found.lower == pytest.approx(found.upper - found.estimate)
    assert found.p_no_increase > plain.p_no_increase
    assert with_run_effect(plain, 0.0) == plain


def test_an_archive_shows_a_run_effect_only_beyond_the_noise_within_runs():
    assert run_effect_sd(VariancePrior(variance=1e-4, degrees=80.0), math.sqrt(2e-4)) == 0.0
    assert run_effect_sd(VariancePrior(variance=5e-4, degrees=80.0), math.sqrt(2e-4)) == pytest.approx(0.02)


def test_runs_needed_are_the_fewest_that_satisfy_the_formula():
    sd, margin, alpha = 3.2 * 0.01, 0.03, 0.05
    runs = needed_runs(sd, margin, alpha)
    wanted = [2 * (sd * (stats.t.isf(alpha, 2 * (r - 1)) + stats.norm.isf(0.2)) / math.log1p(margin)) ** 2 for r in (runs - 1, runs)]
    assert runs - 1 < wanted[0]
    assert runs >= wanted[1]
    assert needed_runs(sd, margin, alpha, prior_degrees=1e6) <= runs
    assert needed_runs(100.0, margin, alpha) is None


def test_more_requests_shrink_the_noise_within_a_run_and_not_between_runs():
    n = needed_requests(20_000, 0.03, 0.005, 0.03, 0.05)
    assert detectable_effect(math.hypot(0.03 * math.sqrt(20_000 / n), 0.005), 0.05) == pytest.approx(math.log1p(0.03), rel=1e-3)
    assert needed_requests(20_000, 0.03, 0.02, 0.03, 0.05) is None
    assert needed_requests(20_000, 0.001, 0.0, 0.03, 0.05) == 20_000


def test_few_blocks_widen_percentile_bounds_as_they_widen_a_t_interval():
    replicates = stats.norm.ppf((np.arange(99_999) + 0.5) / 99_999) * 0.02
    found = from_replicates("block_bootstrap", 0.0, replicates, 24, 0.05)
    assert found.upper == pytest.approx(0.02 * math.sqrt(25 / 24) * stats.t.isf(0.05, 24), rel=2e-3)
    assert found.lower == pytest.approx(-found.upper, rel=2e-3)
    shifted = from_replicates("block_bootstrap", 0.02, replicates - found.lower, 24, 0.05)
    assert shifted.p_no_increase == pytest.approx(0.05, rel=0.02)
