"""One percentile definition: the order statistic ceil(n p)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.assembly.percentile import LargeSample, percentile, rank, ranks, samples_needed, weighted_percentile

FINITE = st.floats(-1e9, 1e9)


@pytest.mark.parametrize(
    ("n", "percent", "place"),
    [(1, 50, 1), (1, 0, 1), (2, 50, 1), (3, 50, 2), (100, 99, 99), (101, 99, 100), (20, 95, 19), (1000, 99.9, 999), (1001, 99.9, 1000)],
)
def test_rank_is_the_ceiling_of_n_p(n, percent, place):
    assert rank(n, percent) == place


@pytest.mark.parametrize("percent", [5, 50, 95, 99, 99.9, 99.99])
def test_rank_is_exact_where_n_p_is_whole(percent):
    for thousands in range(1, 300):
        n = thousands * 10_000
        assert rank(n, percent) == round(n * percent / 100)


@given(st.lists(FINITE, min_size=1, max_size=60), st.integers(1, 100))
def test_percentile_is_the_inverse_of_the_empirical_distribution(values, percent):
    found = percentile(values, percent)
    assert found == np.percentile(values, percent, method="inverted_cdf")
    assert found in values
    assert sum(value <= found for value in values) >= math.ceil(len(values) * percent / 100)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 100.5), ([1.0], float("nan"))])
def test_no_values_or_no_percent_is_an_error(values, percent):
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, percent)


PERCENTS = st.one_of(st.integers(1, 99), st.integers(1, 99_999).map(lambda thousandths: thousandths / 1000))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=20), PERCENTS)
def test_ranks_of_many_sizes_are_the_ranks_of_each(counts, percent):
    assert ranks(np.array(counts), percent).tolist() == [rank(count, percent) for count in counts]


@given(st.integers(1, 10**6), PERCENTS)
def test_the_samples_needed_are_the_fewest_with_as_many_beyond_the_percentile(beyond, percent):
    n = samples_needed(beyond, percent)
    assert n - rank(n, percent) >= beyond
    assert n == 1 or n - 1 - rank(n - 1, percent) < beyond


@pytest.mark.parametrize(("percent", "n"), [(90, 100), (95, 200), (99, 1000), (99.9, 10_000), (50, 20), (70, 34), (80, 50)])
def test_ten_samples_beyond_a_percentile_need_no_request_more_than_the_decimals_say(percent, n):
    assert samples_needed(10, percent) == n


@pytest.mark.parametrize(("beyond", "percent"), [(0, 50), (1, 100), (1, 0), (1, float("nan"))])
def test_nothing_beyond_a_percentile_is_an_error(beyond, percent):
    with pytest.raises(ValueError, match="no sample has"):
        samples_needed(beyond, percent)


@given(st.lists(st.tuples(FINITE, st.integers(1, 50)), min_size=1, max_size=30), st.sampled_from([0, 1, 50, 95, 99, 99.9, 100]))
def test_a_weighted_percentile_is_that_of_the_sample_written_out(pairs, percent):
    values, counts = np.array([value for value, _ in pairs]), np.array([count for _, count in pairs])
    assert weighted_percentile(values, counts, percent) == percentile(np.repeat(values, counts), percent)


def test_no_weighted_values_are_an_error():
    with pytest.raises(ValueError, match="no percentile"):
        weighted_percentile(np.array([]), np.array([], dtype=np.int64), 50)


WEIGHTED = st.lists(
    st.tuples(st.floats(0.0, 1e300) | st.floats(1.0, 1.01) | st.sampled_from([0.0, 5e-324, 1.0]), st.integers(1, 9)), max_size=40
)


@settings(max_examples=40)
@given(WEIGHTED, st.integers(1, 7), st.lists(st.integers(1, 100), min_size=1, max_size=4))
def test_percentiles_of_a_sample_larger_than_memory_are_those_of_the_whole(pairs, size, percents):
    values, counts = np.array([value for value, _ in pairs]), np.array([count for _, count in pairs], dtype=np.int64)
    parts = [(values[first : first + size], counts[first : first + size]) for first in range(0, len(pairs), size)]
    sample = LargeSample()
    for part in parts:
        sample.add(*part)
    wanted = [weighted_percentile(values, counts, percent) if pairs else None for percent in percents]
    assert sample.percentiles(percents, iter(parts)) == wanted


def test_a_sample_without_counts_has_each_value_once():
    values = np.array([3.0, 1.0, 2.0, 2.5])
    sample = LargeSample()
    sample.add(values)
    assert sample.percentiles([50, 75], [(values, np.ones(4, dtype=np.int64))]) == [2.0, 2.5]
    with pytest.raises(ValueError, match="negative"):
        sample.add(np.array([-1.0]))
