"""One pair of measured runs without step times: laws of the estimate, and coverage where requests depend on each other."""

import math

import numpy as np
import pytest
from scipy import stats

from gates.statistics.blocks import draw_blocks
from gates.statistics.pairs import batch_means_pair, bootstrap_pair, bootstrap_unpaired
from gates.statistics.tails import Sample, resampled_percentiles
from replay.assembly.percentile import percentile
from replay.seeds import stream
from tests.statistics.queue_server import Server


def drifting(n, generator, correlation=0.9):
    """Return AR(1) values with variance 1."""
    shocks = generator.standard_normal(n) * math.sqrt(1 - correlation**2)
    shocks[0] = generator.standard_normal()
    values = np.empty(n)
    values[0] = shocks[0]
    for index in range(1, n):
        values[index] = correlation * values[index - 1] + shocks[index]
    return values


def autoregressive_pair(n, seed):
    """Return arms of one trace with independent AR(1) noise."""
    generator = np.random.default_rng([seed, 1])
    trace = np.exp(0.5 * generator.standard_normal(n))
    return trace * np.exp(0.1 * drifting(n, generator)), trace * np.exp(0.1 * drifting(n, generator))


def busy_pair(n, seed):
    """Return arms of one trace through a queue whose busy periods carry noise on."""
    server = Server(n, [seed, 2])
    return server.latencies(server.noise()), server.latencies(server.noise())


def estimate(method, arms, seed=0, alpha=0.05, percent=95.0):
    if method == "batch_means":
        return batch_means_pair(*arms, percent, alpha=alpha)
    one = bootstrap_pair if method == "block_bootstrap" else bootstrap_unpaired
    return one(*arms, percent, alpha=alpha, replicates=499, generator=stream(seed, "bootstrap"))


METHODS = ("block_bootstrap", "batch_means", "unpaired_bootstrap")


@pytest.mark.parametrize("method", METHODS)
def test_the_estimate_is_the_log_ratio_of_the_products_percentiles(method):
    arms = autoregressive_pair(3000, 1)
    found = estimate(method, arms)
    assert found.method == method
    assert found.ratio == pytest.approx(percentile(arms[1], 95.0) / percentile(arms[0], 95.0))
    assert found.lower < found.estimate < found.upper


@pytest.mark.parametrize("method", METHODS)
def test_a_candidate_slower_by_a_factor_moves_the_estimate_and_its_bounds_by_its_log(method):
    baseline, candidate = autoregressive_pair(3000, 2)
    plain, slower = estimate(method, (baseline, candidate)), estimate(method, (baseline, 1.07 * candidate))
    moved = math.log(1.07)
    for name in ("estimate", "lower", "upper"):
        assert getattr(slower, name) == pytest.approx(getattr(plain, name) + moved, abs=1e-12)
    assert slower.p_no_increase < plain.p_no_increase


@pytest.mark.parametrize("method", ["block_bootstrap", "batch_means"])
def test_arms_in_turn_give_the_opposite_estimate(method):
    arms = autoregressive_pair(3000, 3)
    found, turned = estimate(method, arms), estimate(method, arms[::-1])
    assert (turned.estimate, turned.lower, turned.upper) == pytest.approx((-found.estimate, -found.upper, -found.lower), abs=1e-12)
    assert (turned.p_no_increase, turned.p_no_decrease) == pytest.approx((found.p_no_decrease, found.p_no_increase))


@pytest.mark.parametrize("method", ["block_bootstrap", "batch_means"])
def test_equal_arms_leave_no_doubt(method):
    baseline, _ = autoregressive_pair(3000, 4)
    found = estimate(method, (baseline, baseline))
    assert (found.estimate, found.lower, found.upper, found.minimum_detectable_effect, found.p_no_increase) == (0, 0, 0, 0, 1)


def mean_error(method, pairs):
    """Return the mean standard error of p99 over pairs."""
    return float(np.mean([estimate(method, arms, percent=99.0).standard_error for arms in pairs]))


def test_arms_resampled_alone_see_less_than_a_pair_and_batch_means_confirm_the_pair():
    pairs = [busy_pair(20_000, seed) for seed in range(8)]
    paired = mean_error("block_bootstrap", pairs)
    assert mean_error("unpaired_bootstrap", pairs) > 1.5 * paired
    assert mean_error("batch_means", pairs) == pytest.approx(paired, rel=0.25)


def missed(method, pair, trials, n, percent=95.0):
    """Return how often nominal 95 % intervals of unchanged arms miss no change."""
    found = (estimate(method, pair(n, seed), seed, alpha=0.025, percent=percent) for seed in range(trials))
    return sum(not one.lower <= 0.0 <= one.upper for one in found)


def at_most(count, trials, rate):
    """Return whether a count is compatible with a true rate of at most `rate` (one-sided exact test at 0.1 %)."""
    return stats.binom.sf(count - 1, trials, rate) > 0.001


@pytest.mark.parametrize("method", ["block_bootstrap", "batch_means"])
@pytest.mark.parametrize("pair", [autoregressive_pair, busy_pair])
def test_intervals_cover_under_dependence(method, pair):
    trials = 40
    count = missed(method, pair, trials, 4000)
    assert at_most(count, trials, 0.07)
    assert count < trials


@pytest.mark.slow
@pytest.mark.parametrize("method", ["block_bootstrap", "batch_means"])
@pytest.mark.parametrize("pair", [autoregressive_pair, busy_pair])
def test_intervals_cover_at_least_93_percent_under_dependence(method, pair):
    trials = 400
    assert at_most(missed(method, pair, trials, 20_000, percent=99.0), trials, 0.07)


def test_resampling_single_requests_would_not_cover():
    count, trials, n = 0, 50, 4000
    for seed in range(trials):
        draw = draw_blocks(n, length=1, replicates=199, generator=stream(seed, "alone"))
        samples = [Sample(values=arm, positions=np.arange(n), percents=(95.0,)) for arm in busy_pair(n, seed)]
        baseline, candidate = (np.log(found[:, 0]) for found in resampled_percentiles(draw, samples))
        low, high = np.quantile(candidate - baseline, [0.025, 0.975])
        count += not low <= 0 <= high
    assert not at_most(count, trials, 0.07)
