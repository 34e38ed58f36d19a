"""Stitched traffic: blocks of a recorded trace joined to one continuous trace of as many requests."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.resimulation.stitch import can_stitch, drawn_rows, joined_arrivals, stitched
from gates.statistics.blocks import BlockDraw, draw_blocks
from replay.ingress.trace import build_trace
from tests.step_tables import length_only_trace, make_trace


def whole(n, start=0):
    """One block that is the whole trace, from some request on."""
    return BlockDraw(n=n, starts=np.array([[start]]), lengths=np.array([n]))


def numbered(arrival_s):
    """A trace whose requests are told apart by their lengths, with prefixes and priorities."""
    n = len(arrival_s)
    numbers = np.arange(n)
    prefixes = [[int(number)] if number % 2 else None for number in numbers]
    return make_trace(arrival_s, numbers + 1, 2 * numbers + 1, prefix_blocks=prefixes, prefix_block_tokens=1, priority=numbers.tolist())


@st.composite
def drawn(draw):
    """(trace, blocks of it)."""
    gaps = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    trace = numbered(np.cumsum(gaps) - float(gaps[0]))
    length = draw(st.integers(1, len(gaps)))
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    return trace, draw_blocks(len(gaps), length=length, replicates=2, generator=generator)


@settings(max_examples=40, deadline=None)
@given(drawn())
def test_rows_are_the_drawn_ones_in_their_order(case):
    trace, blocks = case
    wanted = []
    for start, length in zip(blocks.starts[1], blocks.lengths, strict=True):
        wanted += [(start + step) % blocks.n for step in range(length)]
    assert drawn_rows(blocks, 1).tolist() == wanted
    found, recorded = stitched(trace, blocks, 1).requests, trace.requests.take(wanted)
    for name in ("prompt_tokens", "output_tokens", "prefix_blocks", "session_id", "model", "priority"):
        assert found[name].to_pylist() == recorded[name].to_pylist()
    assert found["request_id"].to_pylist() == [str(place) for place in range(blocks.n)]


@settings(max_examples=40, deadline=None)
@given(drawn())
def test_each_request_comes_as_long_after_the_one_before_it_as_it_did(case):
    trace, blocks = case
    rows = drawn_rows(blocks, 0)
    found_s, recorded_s = (one.requests["arrival_s"].to_numpy() for one in (stitched(trace, blocks, 0), trace))
    mean_gap_s = recorded_s[-1] / max(1, len(rows) - 1)
    gaps_s = np.array([mean_gap_s, *np.diff(recorded_s)])
    assert found_s[0] == 0.0
    assert np.diff(found_s) == pytest.approx(gaps_s[rows][1:], abs=1e-9)


def test_one_block_from_the_first_request_is_the_trace_itself():
    trace = numbered([0.0, 0.5, 0.5, 4.0, 7.25])
    found = stitched(trace, whole(5), 0)
    assert found.requests.drop_columns("request_id").equals(trace.requests.drop_columns("request_id"))
    assert (found.name, found.provenance, found.span_s) == (trace.name, trace.provenance, trace.span_s)


def test_a_block_that_passes_the_end_goes_on_at_the_start_after_the_mean_gap():
    found = stitched(numbered([0.0, 1.0, 3.0, 9.0]), whole(4, start=2), 0).requests
    assert found["prompt_tokens"].to_pylist() == [3, 4, 1, 2]
    assert found["arrival_s"].to_pylist() == [0.0, 6.0, 9.0, 10.0]


def test_the_request_rate_is_kept_on_average():
    gaps_s = np.random.default_rng(3).lognormal(0.0, 1.0, 400)
    arrival_s = np.cumsum(gaps_s) - gaps_s[0]
    blocks = draw_blocks(400, length=16, replicates=1000, generator=np.random.default_rng(4))
    spans_s = [joined_arrivals(arrival_s, drawn_rows(blocks, replicate))[-1] for replicate in range(1000)]
    assert np.mean(spans_s) == pytest.approx(arrival_s[-1], rel=0.01)
    assert np.std(spans_s) > 0.01 * arrival_s[-1]


def test_arrivals_may_start_at_any_time():
    rows = np.array([2, 3, 0, 1])
    late_s = np.array([5.0, 6.0, 8.0, 14.0])
    assert joined_arrivals(late_s, rows).tolist() == [0.0, 6.0, 9.0, 10.0]


def test_a_trace_of_lengths_alone_stays_one():
    found = stitched(length_only_trace(), whole(2, start=1), 0)
    assert not found.has_arrivals
    assert found.requests["arrival_s"].null_count == 2


def test_sessions_cannot_be_cut_for_their_turns_wait_for_each_other():
    trace = make_trace([0.0, 1.0], [1, 1], [1, 1])
    from replay.provenance import Load

    def sent(**load):
        return replace(trace, provenance=replace(trace.provenance, load=Load(**load)))

    assert can_stitch(trace)
    assert can_stitch(sent(concurrency=2))
    assert not can_stitch(sent(sessions=True))
    assert not can_stitch(build_trace(name="none", requests=trace.requests.slice(0, 0), provenance=trace.provenance))
