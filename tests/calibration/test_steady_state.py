"""A server in its steady state: worked cases, and laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.calibration.steady_state import Load, serve
from replay.calibration.whole import Prediction


def price(steps):
    """A step takes 1 ms, 10 us a prompt token and 100 us a decoding sequence."""
    return Prediction(seconds=1e-3 + 1e-5 * steps.prefill_tokens + 1e-4 * steps.decode_sequences, source="datasheet")


def served(prompt, output, concurrency, *, budget=8192, cache=10**9, mixes=True):
    load = Load(
        prompt_tokens=np.array([float(prompt)]), output_tokens=np.array([float(output)]), concurrency=np.array([float(concurrency)])
    )
    return serve(load, price, budget_tokens=budget, cache_tokens=cache, mixes=mixes)


def test_prompts_that_fit_a_step_are_read_one_at_a_time_beside_decoding():
    # 10 x 1000 / 100 = 100 prompt tokens are due a step: every tenth step reads one prompt of 1000
    found = served(1000, 101, 10)
    assert found.tpot_s == pytest.approx([0.1 * 12e-3 + 0.9 * 2e-3])
    # ten prompts at the start: eight end in the first step of 8182 tokens and two in the second, beside five that decode
    assert found.ttft_s == pytest.approx([0.1 * 1.2 * (1e-3 + 81.82e-3 + 5e-4) + 0.9 * (2e-3 + 12e-3)])


def test_a_server_that_does_not_mix_interrupts_decoding_for_prompts():
    found = served(1000, 101, 10, mixes=False)
    assert found.tpot_s == pytest.approx([2e-3 + 0.1 * 11e-3])
    assert found.ttft_s == pytest.approx([0.1 * 1.2 * (1e-3 + 81.92e-3) + 0.9 * (2e-3 + 11e-3)])


def test_prompts_beyond_the_budget_are_read_in_chunks():
    # room beside 10 decoding sequences: 490 tokens; a prompt of 1000 takes three steps
    found = served(1000, 101, 10, budget=500)
    assert found.tpot_s == pytest.approx([100 / 490 * (1e-3 + 4.9e-3 + 1e-3) + (1 - 100 / 490) * 2e-3])
    # at the start they end in steps 3, 5, 7, 9, 11, 13, 15, 17, 19 and 21
    assert found.ttft_s == pytest.approx([0.1 * 12 * (1e-3 + 4.9e-3 + 5e-4) + 0.9 * (2e-3 + 3 * 6.9e-3)])


def test_where_the_budget_cannot_feed_all_seats_fewer_decode():
    # all steps are full: D + D x 1000 / 10 = 1010, so 10 decode and 1000 prompt tokens are read in each
    assert served(1000, 11, 100, budget=1010).tpot_s == pytest.approx([1e-3 + 1e-2 + 1e-3])


def test_a_small_cache_holds_fewer_sequences_and_says_so():
    held = served(1000, 101, 10, cache=5 * 1051)
    assert held.cache_decides.tolist() == [True]
    assert held.tpot_s == pytest.approx(served(1000, 101, 5).tpot_s)
    assert served(1000, 101, 5, cache=5 * 1051).cache_decides.tolist() == [False]


def test_a_queue_decides_once_prompts_fill_half_of_the_time():
    assert served(1000, 1001, 10).prompts_decide.tolist() == [False]  # 0.01 x 12 ms of 2.1 ms
    assert served(1000, 21, 10).prompts_decide.tolist() == [True]  # 0.5 x 12 ms of 7 ms


@given(st.integers(1, 9000), st.integers(2, 4000), st.integers(1, 400), st.sampled_from([512, 8192]), st.booleans())
def test_a_token_never_takes_less_than_a_decode_step_and_a_first_token_never_less_than_its_prompt(prompt, output, clients, budget, mixes):
    found = served(prompt, output, clients, budget=budget, mixes=mixes)
    assert found.tpot_s[0] >= 1e-3 + 1e-4
    assert found.ttft_s[0] >= 1e-3 + 1e-5 * prompt - 1e-12


@given(st.integers(1, 9000), st.integers(2, 4000), st.integers(1, 399), st.booleans())
def test_one_more_client_never_makes_a_token_cheaper(prompt, output, clients, mixes):
    fewer, more = (served(prompt, output, count, mixes=mixes).tpot_s[0] for count in (clients, clients + 1))
    assert more >= fewer * (1 - 1e-3)  # chunks are whole tokens
