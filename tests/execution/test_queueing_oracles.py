"""Waiting times against queueing theory: one seat, one-token outputs and a time per prompt token make the engine an M/G/1 queue.

Two kinds of comparison. Recursions (Lindley 1952) are exact, bit by bit. Closed forms are about expectations, so a long run is cut
into batches, whose means are nearly independent (batch means; Law and Kelton, section 9.5.3), and the closed form must lie within
Student's interval around their mean. The interval is that of FALSE_ALARM: so rarely would a correct engine fail a comparison under
another seed. Seeds are fixed, and each interval is also held to be narrow, for a wide one would accept anything.
"""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from replay.execution.engine import replay
from tests.step_tables import constant_table, linear_table, make_limits, make_trace

FALSE_ALARM = 1e-4
"""Two-sided, of one comparison; there are about thirty."""
BATCHES = 40
BATCH = 7_500
"""Requests of a batch: at a load of 0.9 an M/M/1 queue forgets in about 2 / (1 - 0.9)^2 = 200 services."""
COUNT = BATCHES * BATCH
LOADS = [0.3, 0.6, 0.9]
SERVICE_S = 0.25
TOKEN_S = 2.0**-10


def poisson_arrivals(rate_per_s, count=COUNT, seed=11):
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate_per_s, count))


def assert_mean(values, expected, *, wide=0.25):
    """The mean of a stationary series is the expected one; its interval is at most `wide` of that on either side."""
    batches = np.asarray(values, dtype=float).reshape(BATCHES, -1).mean(axis=1)
    error = batches.std(ddof=1) / np.sqrt(BATCHES) * stats.t.ppf(1 - FALSE_ALARM / 2, BATCHES - 1)
    assert abs(batches.mean() - expected) <= error
    assert error <= wide * expected


def served(arrival_s, prompts, table):
    """Arrival, start and end of service of each request."""
    requests = replay(make_trace(arrival_s, prompts, np.ones(len(arrival_s))), table).requests
    return tuple(requests[name].to_numpy() for name in ("arrival_s", "first_scheduled_s", "finish_s"))


def waits(arrival_s, table, prompts=None):
    arrived_s, start_s, _ = served(arrival_s, np.full(len(arrival_s), 8) if prompts is None else prompts, table)
    return start_s - arrived_s


def single_server(**rules):
    """One constant step for each request."""
    return constant_table(SERVICE_S, limits=make_limits(**{"max_running": 1, "max_batched_tokens": 16} | rules))


def prompt_server(**rules):
    """One step for each request, as long as its prompt."""
    return linear_table(per_token_s=TOKEN_S, limits=make_limits(max_running=1, max_batched_tokens=8192, **rules))


# Service laws: prompt tokens, and their first two moments. The geometric law is the exponential one on a grid of 1/200 of its mean:
# the mean wait is 0.25 % below that of an M/M/1 queue.
GEOMETRIC = 1 / 200
PROMPTS = {
    "M/D/1": (lambda draw: np.full(COUNT, 256), 256, 256**2),
    "M/M/1": (lambda draw: draw.geometric(GEOMETRIC, COUNT), 1 / GEOMETRIC, (2 - GEOMETRIC) / GEOMETRIC**2),
    "M/G/1 uniform": (lambda draw: draw.integers(1, 512, COUNT), 256, 256**2 + (511**2 - 1) / 12),
    "M/G/1 two sizes": (lambda draw: draw.choice([100, 1000], COUNT, p=[0.9, 0.1]), 190, 0.9 * 100**2 + 0.1 * 1000**2),
}


@pytest.mark.parametrize("load_ratio", LOADS)
@pytest.mark.parametrize("law", PROMPTS)
def test_mean_wait_is_that_of_pollaczek_and_khinchine(law, load_ratio):
    # W = rate E[S^2] / (2 (1 - rho)): rho / (2 (1 - rho)) services for M/D/1, rho / (1 - rho) for M/M/1.
    draw_prompts, mean, square = PROMPTS[law]
    rate_per_s = load_ratio / (mean * TOKEN_S)
    wait_s = waits(poisson_arrivals(rate_per_s), prompt_server(), draw_prompts(np.random.default_rng(2)))
    assert_mean(wait_s, rate_per_s * square * TOKEN_S**2 / (2 * (1 - load_ratio)))


@pytest.mark.parametrize("load_ratio", [0.3, 0.6, 0.7])
def test_tails_of_an_m_m_1_queue_are_exponential(load_ratio):
    # Time in the system is exponential with mean S / (1 - rho), so its percentiles are known: 3.0 and 4.6 means.
    mean_s = TOKEN_S / GEOMETRIC
    prompts = np.random.default_rng(4).geometric(GEOMETRIC, COUNT)
    arrived_s, _, end_s = served(poisson_arrivals(load_ratio / mean_s, seed=3), prompts, prompt_server())
    for percent in (95, 99):
        beyond_s = -np.log(1 - percent / 100) * mean_s / (1 - load_ratio)
        assert_mean(end_s - arrived_s > beyond_s, 1 - percent / 100, wide=0.5)


@pytest.mark.parametrize("load_ratio", LOADS)
def test_share_of_requests_that_wait_is_the_load(load_ratio):
    # Poisson arrivals see time averages: an arrival finds the server busy with probability rho.
    assert_mean(waits(poisson_arrivals(load_ratio / SERVICE_S, seed=5), single_server()) > 0, load_ratio, wide=0.02)


def test_prompts_of_two_sizes_under_shortest_first_are_two_priority_classes():
    # Cobham (1954), without preemption: W1 = R / (1 - rho1), W2 = R / ((1 - rho1) (1 - rho)), R = rate E[S^2] / 2.
    draw_prompts, mean, square = PROMPTS["M/G/1 two sizes"]
    prompts = draw_prompts(np.random.default_rng(6))
    rate_per_s = 0.8 / (mean * TOKEN_S)
    wait_s = waits(poisson_arrivals(rate_per_s, seed=7), prompt_server(queue="sjf"), prompts)
    residual_s, short_ratio = rate_per_s * square * TOKEN_S**2 / 2, 0.8 * 0.9 * 100 / mean
    for size, expected_s in ((100, residual_s / (1 - short_ratio)), (1000, residual_s / (1 - short_ratio) / (1 - 0.8))):
        of_size = wait_s[prompts == size]
        assert_mean(of_size[: len(of_size) // BATCHES * BATCHES], expected_s)


def test_waits_follow_lindleys_recursion_exactly():
    arrival_s = poisson_arrivals(0.9 / SERVICE_S, 20_000, seed=3)
    start_s, free_s = np.empty_like(arrival_s), 0.0
    for index, arrived_s in enumerate(arrival_s):
        start_s[index] = max(arrived_s, free_s)
        free_s = start_s[index] + SERVICE_S
    np.testing.assert_array_equal(waits(arrival_s, single_server()), start_s - arrival_s)


def test_waits_for_prompts_of_any_length_follow_lindleys_recursion_exactly():
    prompts = np.random.default_rng(8).integers(1, 2000, 20_000)
    arrival_s = poisson_arrivals(0.9 / (1000 * TOKEN_S), 20_000, seed=9)
    free_s = 0.0
    for request_s, start_s, end_s, tokens in zip(*served(arrival_s, prompts, prompt_server()), prompts.tolist(), strict=True):
        assert start_s == max(request_s, free_s)
        assert end_s == (free_s := start_s + tokens * TOKEN_S)  # a token lasts a power of two


@pytest.mark.parametrize(("gap_s", "waited_s"), [(0.5, 0.0), (0.25, 0.0), (0.125, 0.125)])
def test_evenly_spaced_arrivals_wait_only_beyond_full_load_and_each_longer_than_the_last(gap_s, waited_s):
    # D/D/1: every request waits (service - gap) longer than the one before it, or not at all.
    count = 1000
    np.testing.assert_array_equal(waits(gap_s * np.arange(count), single_server()), waited_s * np.arange(count))


@pytest.mark.parametrize("services_per_step", [0.3, 1.0, 3.0])
def test_unlimited_seats_and_budget_make_a_bulk_queue_that_empties_at_every_step(services_per_step):
    # Arrivals of one step, Poisson with mean m = rate x S, go together into the next. In a step each waits S / 2 on average; where a
    # step sees none (e^-m), the next request finds the server idle. So the mean wait is S / 2 x m / (m + e^-m).
    mean = services_per_step
    wait_s = waits(poisson_arrivals(mean / SERVICE_S, seed=7), constant_table(SERVICE_S, limits=make_limits(1000, 16_000)))
    assert wait_s.max() <= SERVICE_S
    assert_mean(wait_s, SERVICE_S / 2 * mean / (mean + np.exp(-mean)), wide=0.03)


SEATS = 8


def full_batches():
    """A static batch of eight that waits for company as long as it takes."""
    return single_server(scheduler="static", max_running=SEATS, max_batched_tokens=64, max_context_tokens=64, max_delay_s=3600.0)


@pytest.mark.parametrize("load_ratio", LOADS)
def test_full_static_batches_wait_for_company_and_then_as_a_queue_of_batches(load_ratio):
    arrival_s = poisson_arrivals(load_ratio * SEATS / SERVICE_S, seed=13)
    arrived_s, start_s, _ = served(arrival_s, np.full(COUNT, 8), full_batches())
    complete_s, batch_start_s = arrived_s.reshape(-1, SEATS)[:, -1], start_s.reshape(-1, SEATS)
    assert (batch_start_s == batch_start_s[:, :1]).all()
    # Lindley's recursion again, of batches, from when they are complete.
    assert batch_start_s[0, 0] == complete_s[0]
    for (before_s, start), complete in zip(pairwise(batch_start_s[:, 0].tolist()), complete_s[1:].tolist(), strict=True):
        assert start == max(complete, before_s + SERVICE_S)
    # Company takes (seats - 1) / 2 gaps on average. The rest is an E/D/1 queue: below Kingman's bound (1962), above nothing.
    gap_s = SERVICE_S / (load_ratio * SEATS)
    assert_mean(np.repeat(complete_s, SEATS) - arrived_s, (SEATS - 1) / 2 * gap_s, wide=0.01)
    queue_s = (batch_start_s[:, 0] - complete_s).mean()
    assert 0.0 < queue_s <= SEATS * gap_s**2 / (2 * SEATS * gap_s * (1 - load_ratio))


def test_evenly_spaced_arrivals_fill_static_batches_to_the_moment():
    # D/D/1 in batches: the first of each batch waits seven gaps, the last none, for ever, as a step is over before the next is full.
    gap_s = SERVICE_S / 4
    wait_s = waits(gap_s * np.arange(800), full_batches()).reshape(-1, SEATS)
    np.testing.assert_array_equal(wait_s, np.tile(gap_s * np.arange(SEATS)[::-1], (100, 1)))


def test_decoding_throughput_is_batch_over_step_time():
    # 16 sequences that start together: one step for the prompts, then one token each per step of 10 ms + 1 ms a sequence.
    table = linear_table(step_s=0.010, per_sequence_s=0.001, limits=make_limits(max_running=16, max_batched_tokens=64))
    requests = replay(make_trace([0.0] * 16, [4] * 16, [101] * 16), table).requests
    np.testing.assert_allclose(requests["first_token_s"].to_numpy(), 0.026)
    np.testing.assert_allclose(requests["finish_s"].to_numpy(), 101 * 0.026)
