"""The block length against `arch`, and how it treats busy periods and short series."""

import math

import numpy as np
import pytest
from arch.bootstrap import optimal_block_length
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.statistics.block_rule import automatic_length, block_rule
from gates.statistics.blocks import draw_blocks


def autoregressive(n, correlation, seed=0):
    shocks = np.random.default_rng(seed).standard_normal(n)
    series = np.empty(n)
    series[0] = shocks[0]
    for index in range(1, n):
        series[index] = correlation * series[index - 1] + shocks[index]
    return series


@settings(max_examples=30, deadline=None)
@given(n=st.integers(12, 3000), correlation=st.floats(-0.9, 0.99), seed=st.integers(0, 1000))
def test_the_automatic_length_is_that_of_arch(n, correlation, seed):
    series = autoregressive(n, correlation, seed)
    expected = float(optimal_block_length(series)["circular"].iloc[0])
    assert automatic_length(series) == pytest.approx(max(1.0, expected), rel=1e-6)


def test_a_block_is_never_shorter_than_the_square_root_nor_than_a_busy_period():
    noise = np.random.default_rng(1).standard_normal(20_000)
    assert block_rule(noise) == math.ceil(math.sqrt(20_000))
    assert block_rule(noise, busy_period=500.5) == 501


def test_long_dependence_makes_blocks_longer_than_the_square_root():
    assert block_rule(autoregressive(20_000, 0.97)) > 1.5 * math.sqrt(20_000)


@given(n=st.integers(25, 5000), busy_period=st.floats(0, 1e6))
def test_at_least_25_blocks_are_left(n, busy_period):
    length = block_rule(np.arange(n, dtype=float), busy_period=busy_period)
    draw = draw_blocks(n, length=length, replicates=1, generator=np.random.default_rng(0))
    assert len(draw.lengths) >= 25


def test_a_series_without_variance_asks_for_no_length_of_its_own():
    assert automatic_length(np.full(1000, 3.0)) == 1.0
    assert block_rule(np.zeros(10)) == 1
