"""The noise swap on a small queue: what it takes out, what it leaves, and when it stands back."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gates.statistics.noise_fit import fit_steps
from gates.statistics.noise_guards import p_more_stalls, p_residuals_differ, reproduce_tail
from gates.statistics.noise_swap import denoised_log_percentiles, noise_swap
from gates.statistics.pairs import bootstrap_pair
from replay.assembly.percentile import percentile
from replay.seeds import stream
from tests.statistics.queue_server import Server

N, PERCENT = 20_000, 99.0


def swapped(server, noises, replay=None, factor=1.0):
    """Return the noise swap of two runs; the candidate's latencies are `factor` times as long."""
    arms = (server.latencies(noises[0]), factor * server.latencies(noises[1]))
    steps = (server.steps(noises[0]), server.steps(noises[1]))
    return arms, noise_swap(arms, steps, PERCENT, replay or server.replay, alpha=0.05, generator=stream(1, "swap"))


@pytest.fixture(scope="module")
def pairs():
    """Return observed log ratios and noise swaps of unchanged pairs."""
    found = []
    for seed in range(12):
        server = Server(N, [seed, 3])
        found.append(swapped(server, (server.noise(), server.noise())))
    return found


def test_noise_explains_most_of_what_unchanged_arms_differ_by(pairs):
    observed = [math.log(percentile(arms[1], PERCENT) / percentile(arms[0], PERCENT)) for arms, _ in pairs]
    assert np.std([result.found.estimate for _, result in pairs]) < 0.4 * np.std(observed)
    for ratio, (_, result) in zip(observed, pairs, strict=True):
        assert result.found.method == "noise_swap"
        assert result.found.estimate == pytest.approx(ratio - result.correction)


def test_its_standard_error_is_the_scatter_of_its_estimates_and_far_below_the_bootstraps(pairs):
    errors = [result.found.standard_error for _, result in pairs]
    scatter = math.sqrt(np.mean([result.found.estimate**2 for _, result in pairs]))
    assert 0.5 < np.mean(errors) / scatter < 2.0
    arms, first = pairs[0]
    plain = bootstrap_pair(*arms, PERCENT, alpha=0.05, generator=stream(1, "swap"))
    assert first.found.standard_error < 0.5 * plain.standard_error


def test_the_amplification_is_what_a_slowdown_of_every_step_does(pairs):
    server = Server(N, [0, 3])
    noise = server.noise()
    ratio = math.log(percentile(server.latencies(noise + 0.01), PERCENT) / percentile(server.latencies(noise - 0.01), PERCENT)) / 0.02
    assert pairs[0][1].amplification == pytest.approx(ratio, rel=0.15)


def test_a_uniform_regression_is_left_whole():
    server = Server(N, 5)
    noises = (server.noise(), server.noise())
    plain, slower = (swapped(server, noises, factor=factor)[1].found for factor in (1.0, 1.05))
    assert slower.estimate == pytest.approx(plain.estimate + math.log(1.05))
    assert slower.standard_error == pytest.approx(plain.standard_error)


def test_a_slowdown_of_some_steps_is_an_effect_and_stays():
    server = Server(N, 6)
    noise, slow = server.noise(), np.where(server.bins == 3, 0.03, 0.0)
    arms, result = swapped(server, (noise, noise + slow))
    assert result.correction == pytest.approx(0.0, abs=1e-9)
    assert result.found.estimate == pytest.approx(math.log(percentile(arms[1], PERCENT) / percentile(arms[0], PERCENT)))
    assert result.found.estimate > 0.02


def test_a_simulator_that_does_not_give_the_baselines_tail_is_not_used():
    server = Server(N, 7)
    noises = (server.noise(), server.noise())
    arms, result = swapped(server, noises, replay=server.wrong_replay(math.log(1.05), 0.10))
    plain = bootstrap_pair(*arms, PERCENT, alpha=0.05, generator=stream(1, "swap"))
    assert result.found == replace(plain, fallback="tail_not_reproduced")
    assert (result.correction, result.amplification, result.reproduction.holds) == (None, None, False)


def test_rare_stalls_of_the_candidate_alone_are_counted_and_veto_a_release():
    server = Server(N, 8)
    noises = (server.noise(), server.noise())
    noises[1][::1000] += 1.0
    _, result = swapped(server, noises)
    assert result.stalls == (0, 20)
    assert (result.found.fallback, result.found.release_vetoed) == ("more_stalls", True)
    assert p_more_stalls((0, 20), (N, N)) == pytest.approx(0.5**20)
    assert p_more_stalls((3, 0), (N, N)) == 1.0


def test_a_slowdown_that_the_features_do_not_tell_apart_is_seen_in_the_residuals():
    server = Server(N, 9)
    noises = (server.noise(), server.noise() + np.where(server.cells == 6, 0.02, 0.0) - np.where(server.cells == 1, 0.02, 0.0))
    steps = tuple(server.steps(noise) for noise in noises)
    assert p_residuals_differ(steps, tuple(fit_steps(one) for one in steps), N) < 0.01
    assert swapped(server, noises)[1].found.fallback == "residuals_differ"


def test_residuals_of_unchanged_arms_seldom_differ(pairs):
    found = [result.p_residuals_differ for _, result in pairs]
    assert min(found) > 1e-3
    assert sum(p <= 0.05 for p in found) <= 4


def test_the_fit_finds_effects_in_spite_of_stalls_and_cuts_these_off():
    server = Server(N, 10)
    true = np.array([0.01, 0.02, -0.03, 0.04])
    log_factors = true[server.bins] + server.noise(0.02)
    log_factors[::500] += 2.0
    fit = fit_steps(server.steps(log_factors))
    assert fit.effects == pytest.approx(true, abs=0.004)
    assert int(fit.stalls.sum()) == N // 500
    assert np.abs(fit.noise).max() < 0.12
    assert np.bincount(server.bins, weights=fit.noise) == pytest.approx(0.0, abs=1e-9)


def test_a_replay_equal_to_the_run_reproduces_its_tail_and_shuffled_noise_does_not():
    server = Server(N, 11)
    noise = server.noise()
    latencies = server.latencies(noise)
    same = reproduce_tail(latencies, latencies, PERCENT)
    assert (same.explained_ratio, same.log_error, same.holds) == (1.0, 0.0, True)
    assert not reproduce_tail(latencies, np.roll(latencies, N // 2), PERCENT).holds


def test_denoised_runs_scatter_less_than_runs_and_keep_their_run_effects():
    server = Server(N, 12)
    effects = np.array([-0.01, 0.0, 0.01, 0.0, 0.0])
    noises = [server.noise() + effect for effect in effects]
    runs = [(server.latencies(noise), server.steps(noise), server.replay) for noise in noises]
    quiet, reproductions = denoised_log_percentiles(runs, PERCENT)
    plain = np.log([percentile(latencies, PERCENT) for latencies, _, _ in runs])
    assert all(one.holds for one in reproductions)
    assert np.std(quiet[[1, 3, 4]]) < 0.5 * np.std(plain[[1, 3, 4]])
    assert 0.04 < quiet[2] - quiet[0] < 0.10  # 2 % of step time, amplified about threefold


def test_too_few_requests_are_left_to_the_bootstrap():
    server = Server(9000, 13)
    assert swapped(server, (server.noise(), server.noise()))[1].found.fallback == "too_few_requests"
