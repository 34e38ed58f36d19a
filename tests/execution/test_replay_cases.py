"""What the random replays promise to the laws that use them."""

import math
import sys

from hypothesis import given, settings

from tests.execution.replay_cases import GAP_S, replay_cases


@settings(max_examples=100, deadline=None)
@given(replay_cases())
def test_every_arrival_is_a_whole_multiple_of_the_gap_so_that_powers_of_two_scale_it_without_rounding(case):
    trace, _ = case
    for arrival_s in trace.requests["arrival_s"].to_pylist():
        steps = arrival_s / GAP_S
        assert steps == int(steps)
        assert steps < 2**53
        assert arrival_s == 0.0 or math.ldexp(arrival_s, -100) > sys.float_info.min
