"""The influence of single values on a log percentile, against what is known of order statistics and against scipy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gates.statistics.influence import batch_error, block_means, log_ratio_influence, tail_influence
from replay.assembly.percentile import percentile


def test_the_influence_gives_the_known_error_of_a_percentile_of_independent_values():
    generator, n = np.random.default_rng(2), 20_000
    found = [math.sqrt(np.mean(tail_influence(generator.exponential(size=n), 99.0) ** 2) / n) for _ in range(50)]
    assert np.mean(found) == pytest.approx(math.sqrt(0.99 / 0.01 / n) / math.log(100), rel=0.03)  # sqrt(p (1 - p) / n) / (f q)


def test_the_influence_of_a_block_is_what_leaving_it_out_changes():
    values = np.random.default_rng(3).exponential(size=50_000)
    values[:5000] *= 1.1  # a slow tenth
    without = math.log(percentile(values[5000:], 99.0)) - math.log(percentile(values, 99.0))
    assert tail_influence(values, 99.0).mean() == pytest.approx(0.0, abs=1e-12)
    assert without == pytest.approx(-tail_influence(values, 99.0)[:5000].sum() / 45_000, rel=0.25)


@given(st.floats(0.01, 100))
def test_the_influence_on_a_log_does_not_depend_on_the_unit(unit):
    values = np.random.default_rng(4).lognormal(size=1000)
    np.testing.assert_allclose(tail_influence(unit * values, 95.0), tail_influence(values, 95.0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(log_ratio_influence(values, unit * values, 95.0), 0.0, atol=1e-9)


def test_percentiles_without_a_tail_or_at_zero_are_refused():
    with pytest.raises(ValueError, match="3 values lie beyond p99; 4 are needed"):
        tail_influence(np.arange(1.0, 301.0), 99.0)
    with pytest.raises(ValueError, match="a ratio needs it above 0"):
        tail_influence(np.zeros(1000), 99.0)


@given(n=st.integers(25, 300))
def test_blocks_partition_the_series(n):
    series = np.random.default_rng(n).standard_normal(n)
    parts = np.split(series, np.linspace(0, n, 26).astype(int)[1:-1])
    np.testing.assert_allclose(block_means(series, 25), [part.mean() for part in parts], atol=1e-12)


def test_batch_means_of_independent_values_give_scipys_standard_error():
    series = np.random.default_rng(5).standard_normal(25_000)
    assert batch_error(series, 25_000) == pytest.approx(stats.sem(series), rel=1e-9)
    assert batch_error(series, 25) == pytest.approx(stats.sem(series.reshape(25, -1).mean(axis=1)), rel=1e-9)
