"""Prefix caching, worked out on paper. Blocks hold four tokens, every step takes one second."""

from dataclasses import replace

import pytest

from replay.errors import TraceError
from replay.execution.engine import replay
from replay.execution.twin import replay_twin
from tests.step_tables import constant_table, make_limits, make_pool, make_trace

NAMES = ("prefill_tokens", "prefill_pairs", "prefix_hit_tokens", "kv_blocks", "recomputed_tokens")


def cached_table(blocks_count, **more):
    limits = make_limits(max_batched_tokens=32, prefix_cache=True, **more)
    return constant_table(1.0, limits=limits, pool=make_pool(blocks_count=blocks_count, block_tokens=4))


def steps(result, *names):
    return [tuple(row[name] for name in names) for row in result.steps.to_pylist()]


def hits(result):
    return result.requests["prefix_hit_tokens"].to_pylist()


def test_six_requests_share_keep_and_lose_blocks_of_a_pool_of_six():
    prefixes = [[1, 2, 3], [1, 2, 4], [1, 2], None, [1, 9, 9], [1, 2, 4]]
    trace = make_trace([0, 1, 2, 3, 4, 5], [10, 10, 8, 9, 12, 10], [2, 1, 1, 1, 1, 1], prefix_blocks=prefixes, prefix_block_tokens=4)
    result = replay(trace, cached_table(6))
    assert hits(result) == [0, 8, 4, 0, 4, 4]
    assert steps(result, *NAMES, "decode_sequences") == [
        (10, 55, 0, 3, 0, 0),
        (2, 9 + 10, 8, 4, 0, 1),  # the second shares two full blocks with the first, which decodes
        (4, 5 + 6 + 7 + 8, 4, 2, 0, 0),  # the third's last token is computed, and with it the whole second block, a second time
        (9, 45, 0, 3, 0, 0),  # takes the block that was never used and the first two's last ones, which were not full
        (8, sum(range(5, 13)), 4, 3, 0, 0),  # finds the first block; takes both second ones, free longest, and their content is gone
        (6, sum(range(5, 11)), 4, 3, 0, 0),
    ]


def test_requests_of_one_step_share_what_the_first_of_them_computes():
    trace = make_trace([0, 0], [9, 9], [1, 1], prefix_blocks=[[5, 6, 7], [5, 6, 8]], prefix_block_tokens=4)
    assert steps(replay(trace, cached_table(6)), *NAMES) == [(9 + 1, 45 + 9, 8, 4, 0)]


def test_a_cache_block_ends_in_the_trace_block_that_names_it():
    # Six tokens are the same, but the second block ends in the part that differs.
    trace = make_trace([0, 1], [12, 12], [1, 1], prefix_blocks=[[1, 2], [1, 3]], prefix_block_tokens=6)
    assert hits(replay(trace, cached_table(9))) == [0, 4]


def test_equal_hashes_after_different_beginnings_are_different_beginnings():
    trace = make_trace([0, 1], [12, 12], [1, 1], prefix_blocks=[[1, 7, 8], [2, 7, 8]], prefix_block_tokens=4)
    assert hits(replay(trace, cached_table(9))) == [0, 0]


def test_a_preempted_sequence_finds_its_own_blocks_again_and_that_is_no_hit():
    trace = make_trace([0.0, 0.0], [7, 5], [4, 5])
    result = replay(trace, cached_table(4, max_running=2))
    assert result.requests["finish_s"].to_pylist() == [4, 7]
    assert hits(result) == [0, 0]
    # The first request took the second's last block. Its first one is free, and two are wanted: it still waits for the first.
    assert steps(result, *NAMES)[2:5] == [(0, 0, 0, 3, 0), (0, 0, 0, 3, 0), (3, 5 + 6 + 7, 0, 2, 2)]


def test_generated_tokens_are_found_by_their_own_request_alone():
    # The first request's eight tokens are cached with four of its output; the second one's prompt may be the same and is not known to be.
    trace = make_trace([0, 9], [4, 9], [5, 1], prefix_blocks=[[1], [1]], prefix_block_tokens=4)
    assert hits(replay(trace, cached_table(9))) == [0, 4]


def test_without_the_prefix_cache_the_same_trace_hits_nothing():
    trace = make_trace([0, 1], [9, 9], [1, 1], prefix_blocks=[[1, 2, 3]] * 2, prefix_block_tokens=4)
    table = cached_table(9)
    assert hits(replay(trace, table)) == [0, 8]
    assert hits(replay(trace, replace(table, limits=replace(table.limits, prefix_cache=False)))) == [0, 0]


@pytest.mark.parametrize("run", [replay, replay_twin])
def test_prefix_blocks_of_unstated_length_are_refused_only_where_they_count(run):
    trace = make_trace([0, 1], [9, 9], [1, 1], prefix_blocks=[[1, 2, 3]] * 2)
    table = cached_table(9)
    with pytest.raises(TraceError, match="prefix blocks of unstated length"):
        run(trace, table)
    run(trace, replace(table, limits=replace(table.limits, prefix_cache=False)))
