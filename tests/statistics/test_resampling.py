"""The block bootstrap against a slow, obvious reference, and its exact properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.statistics.blocks import block_counts, block_length, block_sums, draw_blocks, multiplicities
from gates.statistics.tails import Sample, resampled_percentiles
from replay.assembly.percentile import percentile
from replay.seeds import stream


def drawn(n, blocks=25, replicates=40, seed=1):
    return draw_blocks(n, length=block_length(n, blocks), replicates=replicates, generator=stream(seed, "bootstrap"))


def written_out(draw, replicate):
    """Return the units of one resample, one by one."""
    units = []
    for start, length in zip(draw.starts[replicate], draw.lengths, strict=True):
        units += [(int(start) + step) % draw.n for step in range(int(length))]
    return units


def slow_percentile(values, percent):
    """Return the order statistic of rank ceil(n percent / 100) by sorting."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


@pytest.mark.parametrize(("n", "length"), [(1, 1), (24, 1), (25, 1), (26, 2), (1000, 40), (19_366, 775)])
def test_a_block_is_the_25th_part_of_the_trace_rounded_up(n, length):
    assert block_length(n, 25) == length


@pytest.mark.parametrize("n", [1, 2, 24, 25, 26, 101, 1000])
def test_every_resample_has_as_many_units_as_the_trace(n):
    draw = drawn(n)
    weights = multiplicities(draw, 0, draw.replicates)
    assert (weights.sum(axis=1) == n).all()
    for replicate in range(draw.replicates):
        assert np.bincount(written_out(draw, replicate), minlength=n).tolist() == weights[replicate].tolist()


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 400), seed=st.integers(0, 2**32), holes=st.floats(0.0, 0.95), ties=st.booleans())
def test_tail_walk_equals_sorting_every_resample(n, seed, holes, ties):
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 5, n).astype(float) if ties else generator.standard_normal(n)
    members = generator.random(n) >= holes
    draw = drawn(n, replicates=12, seed=seed)
    percents = (50.0, 95.0, 99.0, 99.9)
    (found,) = resampled_percentiles(draw, [Sample(values=values[members], positions=np.flatnonzero(members), percents=percents)])
    for replicate in range(draw.replicates):
        kept = [values[unit] for unit in written_out(draw, replicate) if members[unit]]
        wanted = [slow_percentile(kept, percent) for percent in percents] if kept else [math.nan] * len(percents)
        np.testing.assert_array_equal(found[replicate], wanted)


def test_block_sums_and_counts_equal_adding_up_every_resample():
    generator = np.random.default_rng(3)
    values, members = generator.standard_normal(313), generator.random(313) > 0.4
    draw = drawn(313)
    units = [written_out(draw, replicate) for replicate in range(draw.replicates)]
    np.testing.assert_allclose(block_sums(draw, values), [values[chosen].sum() for chosen in units], rtol=0, atol=1e-12)
    assert block_counts(draw, members).tolist() == [int(members[chosen].sum()) for chosen in units]


def test_values_in_a_burst_are_found_even_where_most_resamples_miss_the_burst():
    values = np.where(np.arange(2000) < 30, 1000.0, 1.0)
    draw = drawn(2000, replicates=200)
    (found,) = resampled_percentiles(draw, [Sample(values=values, positions=np.arange(2000), percents=(99.0,))])
    assert set(np.unique(found)) == {1.0, 1000.0}


@pytest.mark.parametrize("percent", [0.1, 50.0, 95.0, 99.0, 99.9, 99.99])
def test_ranks_of_many_sizes_follow_the_products_definition_of_a_percentile(percent):
    values = np.arange(20_001, dtype=float)
    for size in (1, 2, 19, 20, 99, 100, 101, 2001, 10_050, 20_001):
        draw = draw_blocks(size, length=1, replicates=1, generator=stream(0, "bootstrap"))
        (found,) = resampled_percentiles(draw, [Sample(values=values[:size], positions=np.arange(size), percents=(percent,))])
        assert found[0, 0] == percentile(values[written_out(draw, 0)], percent)


def test_the_same_seed_gives_the_same_blocks_and_another_seed_others():
    assert (drawn(500, seed=4).starts == drawn(500, seed=4).starts).all()
    assert (drawn(500, seed=4).starts != drawn(500, seed=5).starts).any()
