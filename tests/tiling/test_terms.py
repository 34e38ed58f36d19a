"""Laws of terms and of the rule that joins them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.tiling.terms import Terms

SECONDS = st.floats(0.0, 1e-3)
EXPONENTS = st.sampled_from([1.0, 1.7, 3.0, 8.0, np.inf])


def terms(compute_s, memory_s, launch_s, sync_s):
    return Terms(
        **{
            name: np.array([value])
            for name, value in zip(
                ("compute_s", "memory_s", "launch_s", "sync_s", "bytes"), (compute_s, memory_s, launch_s, sync_s, 10.0), strict=True
            )
        }
    )


@settings(max_examples=200, deadline=None)
@given(SECONDS, SECONDS, SECONDS, SECONDS, st.floats(1e-9, 1e-3), EXPONENTS)
def test_memory_time_that_comes_after_adds_up_and_infinite_bandwidth_saves_it(compute_s, memory_s, launch_s, sync_s, extra_s, exponent):
    before = terms(compute_s, memory_s, launch_s, sync_s)
    after = before.with_memory_after(np.array([extra_s]), 5.0, exponent)
    np.testing.assert_allclose(after.time_s(exponent), before.time_s(exponent) + extra_s, rtol=1e-9)
    assert after.memory_s >= before.memory_s
    for name in ("compute_s", "launch_s", "sync_s"):
        assert getattr(after, name) == getattr(before, name)
    assert after.bytes == 15.0


@settings(max_examples=100, deadline=None)
@given(SECONDS, SECONDS, SECONDS, SECONDS, EXPONENTS)
def test_no_memory_time_after_changes_nothing(compute_s, memory_s, launch_s, sync_s, exponent):
    before = terms(compute_s, memory_s, launch_s, sync_s)
    assert before.with_memory_after(np.array([0.0]), 0.0, exponent).memory_s == before.memory_s


def test_bytes_that_come_with_memory_time_are_counted():
    assert terms(1.0, 2.0, 0.0, 0.0).with_memory(1.0, 7.0).bytes == pytest.approx(17.0)
