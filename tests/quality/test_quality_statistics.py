"""Tests of paired results against oracles: score intervals by constrained likelihood, exact tests by scipy, clusters by formula."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from gates.statistics.clustered import clustered_difference
from gates.statistics.compare import judged
from gates.statistics.paired_binary import paired_shares, sign_test

ALPHA = 0.05
Z = stats.norm.ppf(1 - ALPHA)


def likelihood_score(won, lost, n, shift):
    """Tango's statistic with the constrained estimate found numerically."""

    def loss(share_lost):
        shares = share_lost + shift, share_lost, 1 - 2 * share_lost - shift
        return -sum(count * math.log(share) for count, share in zip((won, lost, n - won - lost), shares, strict=True) if count)

    low, high = max(0.0, -shift) + 1e-12, (1 - shift) / 2 - 1e-12
    share_lost = optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-13}).x
    return (won - lost - n * shift) / math.sqrt(n * (2 * share_lost + shift * (1 - shift)))


@pytest.mark.parametrize(("lost", "won", "n"), [(10, 3, 100), (3, 10, 100), (30, 30, 1000), (5, 1, 50), (80, 5, 200)])
def test_score_bounds_are_where_the_statistic_of_the_constrained_likelihood_meets_the_normal_quantile(lost, won, n):
    found = paired_shares(lost, won, n, alpha=ALPHA)
    assert likelihood_score(won, lost, n, found.lower) == pytest.approx(Z, abs=1e-5)
    assert likelihood_score(won, lost, n, found.upper) == pytest.approx(-Z, abs=1e-5)
    assert found.p_no_decrease == pytest.approx(stats.binomtest(lost, lost + won, 0.5, alternative="greater").pvalue)
    assert found.p_no_increase == pytest.approx(stats.binomtest(won, lost + won, 0.5, alternative="greater").pvalue)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 500))
def test_score_bounds_hold_the_estimate_and_mirror_when_the_arms_change_places(lost, won, same):
    n = lost + won + same
    if n == 0:
        return
    found, mirrored = paired_shares(lost, won, n, alpha=ALPHA), paired_shares(won, lost, n, alpha=ALPHA)
    assert -1.0 <= found.lower <= found.estimate <= found.upper <= 1.0
    assert (mirrored.lower, mirrored.upper) == pytest.approx((-found.upper, -found.lower), abs=1e-9)


def test_no_item_that_differs_still_leaves_a_width_about_that_of_the_rule_of_three():
    found = paired_shares(0, 0, 1000, alpha=ALPHA)
    assert (found.upper, -found.lower) == pytest.approx((Z**2 / (1000 + Z**2),) * 2, rel=1e-6)
    assert 2.5 / 1000 < found.upper < 3.0 / 1000
    assert judged(found, lower_is_better=False, margin=0.01).inside_margin
    assert not judged(paired_shares(0, 0, 200, alpha=ALPHA), lower_is_better=False, margin=0.01).inside_margin


@pytest.mark.parametrize(("won", "lost"), [(30, 10), (0, 10), (10, 0), (7, 7)])
def test_sign_test_has_the_bounds_of_clopper_and_pearson(won, lost):
    found = sign_test(won, lost, alpha=ALPHA)
    expected = stats.binomtest(won, won + lost).proportion_ci(1 - 2 * ALPHA, "exact")
    assert (found.lower + 0.5, found.upper + 0.5) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert found.p_no_decrease == pytest.approx(stats.binomtest(lost, won + lost, 0.5, alternative="greater").pvalue)


def test_a_sign_test_of_ties_alone_is_refused():
    with pytest.raises(ValueError, match="decided"):
        sign_test(0, 0, alpha=ALPHA)


@pytest.mark.parametrize("count", [40, 12_000])
def test_the_error_over_clusters_is_that_of_the_clustered_formula_and_not_of_the_items(count):
    rng = np.random.default_rng(5)
    effects = rng.normal(0, 0.02, count)
    values = (effects[:, None] + rng.normal(0, 0.01, (count, 20))).ravel()
    clusters = np.repeat(np.arange(count), 20)
    found = clustered_difference(values, np.ones(len(values)), clusters, replicates=2000, alpha=ALPHA, generator=rng)
    expected = float(np.std(values.reshape(count, 20).mean(axis=1), ddof=1) / math.sqrt(count))
    assert found.standard_error == pytest.approx(expected, rel=0.06)
    assert found.standard_error > 2.5 * np.std(values, ddof=1) / math.sqrt(len(values))
    assert found.method == ("cluster_bootstrap" if count == 40 else "clustered_t")


def test_weights_are_those_of_a_mean_per_token():
    values, weights = np.array([1.0, 0.0, 0.0]), np.array([2.0, 1.0, 1.0])
    found = clustered_difference(values, weights, np.arange(3), replicates=50, alpha=ALPHA, generator=np.random.default_rng(0))
    assert found.estimate == 0.5


def test_one_cluster_is_refused():
    with pytest.raises(ValueError, match="two or more"):
        clustered_difference(np.ones(3), np.ones(3), np.zeros(3, dtype=np.int64), replicates=50, alpha=ALPHA, generator=None)


def test_token_level_tests_reject_a_true_null_and_document_level_ones_do_not():
    """statistics.md 2.9: 200 documents of 100 tokens, effect sd 0.02: token as iid 22 %, clustered 5 %."""
    rng = np.random.default_rng(11)
    by_token = by_document = 0
    for _ in range(200):
        values = rng.normal(0, 0.02, 200)[:, None] + rng.normal(0, 0.1, (200, 100))
        by_token += abs(values.mean()) > 1.96 * values.std() / math.sqrt(values.size)
        found = clustered_difference(
            values.ravel(), np.ones(20_000), np.repeat(np.arange(200), 100), replicates=200, alpha=0.025, generator=rng
        )
        by_document += found.lower > 0 or found.upper < 0
    assert by_token > 20
    assert by_document <= 20
