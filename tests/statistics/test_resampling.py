"""The block bootstrap against a slow, obvious reference, and its exact properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.statistics.blocks import block_counts, block_length, block_sums, draw_blocks
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
    for replicate in range(draw.replicates):
        units = written_out(draw, replicate)
        assert len(units) == n
        assert set(units) <= set(range(n))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 400), seed=st.integers(0, 2**32), holes=st.floats(0.0, 0.95), ties=st.booleans())
def test_tail_walk_equals_sorting_every_resample(n, seed, holes, ties):
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 5, n).astype(float) if ties else generator.standard_normal(n)
    members = generator.random(n) >= holes
    draw = drawn(n, replicates=12, seed=seed)
    percents = (25.0, 50.0, 90.0, 95.0, 99.0, 99.9)
    (found,) = resampled_percentiles(draw, [Sample(values=values[members], positions=np.flatnonzero(members), percents=percents)])
    for replicate in range(draw.replicates):
        kept = [values[unit] for unit in written_out(draw, replicate) if members[unit]]
        wanted = [slow_percentile(kept, percent) for percent in percents] if kept else [math.nan] * len(percents)
        np.testing.assert_array_equal(found[replicate], wanted)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(30, 500),
    blocks=st.integers(3, 30),
    seed=st.integers(0, 2**32),
    burst=st.floats(0.0, 0.5),
    percents=st.lists(st.sampled_from([1.0, 50.0, 90.0, 95.0, 99.0, 99.9]), min_size=1, max_size=4),
)
def test_bands_found_by_the_first_resamples_give_what_sorting_gives_in_all_others(n, blocks, seed, burst, percents):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(n) + np.where(np.arange(n) < burst * n, 50.0, 0.0)  # a burst that many resamples miss
    members = generator.random(n) >= 0.3
    draw = drawn(n, blocks=blocks, replicates=600, seed=seed)
    sample = Sample(values=values[members], positions=np.flatnonzero(members), percents=tuple(percents))
    for found in resampled_percentiles(draw, [sample, sample]):
        for replicate in range(0, 600, 7):
            units = np.array(written_out(draw, replicate))
            kept = values[units[members[units]]].tolist()
            np.testing.assert_array_equal(found[replicate], [slow_percentile(kept, percent) if kept else math.nan for percent in percents])


def test_threads_change_no_result():
    generator = np.random.default_rng(8)
    draw = drawn(3000, blocks=100, replicates=2000)
    samples = [Sample(values=generator.standard_normal(3000), positions=np.arange(3000), percents=(95.0, 99.0)) for _ in range(6)]
    together = resampled_percentiles(draw, samples)
    for sample, found in zip(samples, together, strict=True):
        np.testing.assert_array_equal(resampled_percentiles(draw, [sample])[0], found)


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
