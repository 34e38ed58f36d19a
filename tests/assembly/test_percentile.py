"""One percentile definition: the order statistic ceil(n p)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.assembly.percentile import percentile, rank

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
