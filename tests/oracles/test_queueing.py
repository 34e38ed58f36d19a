"""Waiting times against queueing theory: one seat, one-token outputs and constant steps make the engine an M/D/1 queue."""

import numpy as np
import pytest

from replay.execution.engine import replay
from tests.step_tables import constant_table, linear_table, make_limits, make_trace

SERVICE_S = 0.25
BATCHES = 25


def poisson_arrivals(rate_per_s, count, seed):
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate_per_s, count))


def waits(arrival_s, table):
    count = len(arrival_s)
    requests = replay(make_trace(arrival_s, [8] * count, [1] * count), table).requests
    return requests["first_scheduled_s"].to_numpy() - requests["arrival_s"].to_numpy()


def single_server():
    return constant_table(SERVICE_S, limits=make_limits(max_running=1, max_batched_tokens=16))


@pytest.mark.parametrize("load_ratio", [0.3, 0.6, 0.8])
def test_mean_wait_is_that_of_an_m_d_1_queue(load_ratio):
    # Pollaczek-Khinchine with constant service s: rho / (2 (1 - rho)) s. Batch means, because waits are correlated.
    wait_s = waits(poisson_arrivals(load_ratio / SERVICE_S, 100_000, seed=11), single_server())
    batches = wait_s.reshape(BATCHES, -1).mean(axis=1)
    error = batches.std(ddof=1) / np.sqrt(BATCHES)
    expected = load_ratio / (2 * (1 - load_ratio)) * SERVICE_S
    assert abs(batches.mean() - expected) < 4 * error
    assert error < 0.06 * expected  # so that the comparison means something


@pytest.mark.parametrize("load_ratio", [0.3, 0.6, 0.8])
def test_share_of_requests_that_wait_is_the_load(load_ratio):
    # Poisson arrivals see time averages: an arrival finds the server busy with probability rho.
    waiting = (waits(poisson_arrivals(load_ratio / SERVICE_S, 100_000, seed=5), single_server()) > 0).reshape(BATCHES, -1).mean(axis=1)
    assert abs(waiting.mean() - load_ratio) < 4 * waiting.std(ddof=1) / np.sqrt(BATCHES)


def test_waits_follow_lindleys_recursion_exactly():
    arrival_s = poisson_arrivals(0.9 / SERVICE_S, 20_000, seed=3)
    start_s, free_s = np.empty_like(arrival_s), 0.0
    for index, arrived_s in enumerate(arrival_s):
        start_s[index] = max(arrived_s, free_s)
        free_s = start_s[index] + SERVICE_S
    np.testing.assert_array_equal(waits(arrival_s, single_server()), start_s - arrival_s)


def test_unlimited_seats_and_budget_make_a_bulk_queue_that_empties_at_every_step():
    arrival_s = poisson_arrivals(20.0, 5_000, seed=7)
    wait_s = waits(arrival_s, constant_table(SERVICE_S, limits=make_limits(max_running=1000, max_batched_tokens=16_000)))
    assert wait_s.max() <= SERVICE_S
    # Under a saturated periodic server arrivals are uniform within the step before: half a step on average.
    assert abs(wait_s.mean() - SERVICE_S / 2) < 4 * SERVICE_S / np.sqrt(12 * 5_000 / 5)


def test_decoding_throughput_is_batch_over_step_time():
    # 16 sequences that start together: one step for the prompts, then one token each per step of 10 ms + 1 ms a sequence.
    table = linear_table(step_s=0.010, per_sequence_s=0.001, limits=make_limits(max_running=16, max_batched_tokens=64))
    requests = replay(make_trace([0.0] * 16, [4] * 16, [101] * 16), table).requests
    np.testing.assert_allclose(requests["first_token_s"].to_numpy(), 0.026)
    np.testing.assert_allclose(requests["finish_s"].to_numpy(), 101 * 0.026)
