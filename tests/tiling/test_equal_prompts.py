"""A step's prompts priced as equal ones: tokens and (query, key) pairs are kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.tiling.attention import equal_prompts
from replay.tiling.families.expert_tiles import expected_active, expected_row_tiles

TOKENS = st.integers(1, 8192)


def pairs(tokens, prefix, window):
    return sum(min(prefix + position, window) for position in range(1, tokens + 1))


def of(tokens, keys, window=np.inf):
    return tuple(float(part[0]) for part in equal_prompts(np.array([float(tokens)]), np.array([float(keys)]), window))


@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, prefix=st.integers(0, 100_000))
def test_a_chunk_behind_a_prefix_is_found_again(tokens, prefix):
    sequences, prompt, found = of(tokens, pairs(tokens, prefix, np.inf) / tokens)
    assert (sequences, prompt) == pytest.approx((1.0, tokens))
    assert found == pytest.approx(prefix, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 500), count=st.integers(1, 30))
def test_several_equal_prompts_are_found_again(length, count):
    sequences, prompt, prefix = of(length * count, pairs(length, 0, np.inf) / length)
    assert (sequences, prompt, prefix) == pytest.approx((count, length, 0.0))


@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, keys=st.floats(1.0, 1e5))
def test_tokens_and_pairs_are_kept_whatever_they_are(tokens, keys):
    sequences, prompt, prefix = of(tokens, keys)
    assert sequences * prompt == pytest.approx(tokens)
    assert sequences * (prompt * prefix + prompt * (prompt + 1) / 2) == pytest.approx(tokens * keys)


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 300), prefix=st.integers(0, 300), window=st.integers(1, 200))
def test_with_a_window_a_chunk_keeps_its_pairs(tokens, prefix, window):
    keys = pairs(tokens, prefix, window) / tokens
    sequences, prompt, found = of(tokens, keys, float(window))
    assert (sequences, prompt) == pytest.approx((1.0, tokens))
    assert found <= window
    assert pairs(tokens, round(found), window) == pytest.approx(pairs(tokens, prefix, window), abs=tokens)


@pytest.mark.parametrize(("mean", "tile"), [(0.5, 16), (3.0, 16), (16.0, 16), (40.0, 16), (100.0, 64), (500.0, 128)])
def test_row_tiles_of_an_expert_are_those_of_random_routing(mean, tile):
    draws = np.random.default_rng(7).poisson(mean, 200_000)
    assert expected_active(np.array([mean]))[0] == pytest.approx((draws > 0).mean(), abs=0.004)
    assert expected_row_tiles(np.array([mean]), np.array([float(tile)]))[0] == pytest.approx(np.ceil(draws / tile).mean(), rel=0.02)
