"""Schedules small enough to work out on paper. Every step takes one second unless a test says otherwise."""

from dataclasses import replace

import pytest

from replay.errors import InvariantError, SpecError, TraceError
from replay.execution.engine import replay
from replay.execution.twin import replay_twin
from tests.step_tables import captured_table, constant_table, length_only_trace, linear_table, make_limits, make_pool, make_trace


def times(result, name):
    return result.requests[name].to_pylist()


def steps(result, *names):
    return [tuple(row[name] for name in names) for row in result.steps.to_pylist()]


def test_five_requests_share_a_budget_of_eight_tokens_and_two_seats():
    trace = make_trace([0.0, 0.0, 0.5, 2.5, 9.0], [5, 6, 3, 10, 2], [3, 2, 1, 2, 1])
    result = replay(trace, constant_table(1.0, limits=make_limits(max_running=2, max_batched_tokens=8)))
    assert times(result, "first_scheduled_s") == [0, 0, 3, 3, 9]
    assert times(result, "first_token_s") == [1, 2, 4, 5, 10]
    assert times(result, "finish_s") == [3, 3, 4, 6, 10]
    assert times(result, "worst_itl_s") == [1, 1, None, 1, None]
    assert steps(result, "start_s", "prefill_tokens", "decode_sequences", "decode_context_tokens", "running", "waiting") == [
        (0, 8, 0, 0, 2, 0),  # all of the first prompt and three tokens of the second
        (1, 3, 1, 6, 2, 1),  # the rest of the second; its one new token makes the first one's context six
        (2, 0, 2, 14, 2, 1),
        (3, 8, 0, 0, 2, 0),
        (4, 5, 0, 0, 1, 0),
        (5, 0, 1, 11, 1, 0),
        (9, 2, 0, 0, 1, 0),
    ]
    assert steps(result, "prefill_pairs")[:2] == [(15 + 6,), (4 + 5 + 6,)]
    assert steps(result, "output_tokens") == [(1,), (2,), (2,), (1,), (1,), (1,), (1,)]


def test_with_two_steps_in_flight_an_arrival_waits_for_a_whole_step_more():
    trace = make_trace([0.0, 0.0, 0.5, 2.5, 9.0], [5, 6, 3, 10, 2], [3, 2, 1, 2, 1])
    limits = make_limits(max_running=3, max_batched_tokens=8)
    result = replay(trace, constant_table(1.0, limits=replace(limits, async_scheduling=True)))
    assert times(result, "first_scheduled_s") == [0, 0, 1, 3, 9]
    assert times(result, "first_token_s") == [1, 2, 3, 5, 10]
    assert times(result, "finish_s") == [3, 3, 3, 6, 10]
    names = ("scheduled_s", "start_s", "prefill_tokens", "decode_sequences", "decode_context_tokens", "running", "output_tokens")
    assert steps(result, *names) == [
        (0, 0, 8, 0, 0, 2, 1),  # an idle server composes two steps at once
        (0, 1, 3, 1, 6, 2, 2),
        (1, 2, 3, 2, 14, 3, 3),  # the third request came at 0.5 s, is seen at 1 s and served from 2 s on
        (3, 3, 8, 0, 0, 1, 0),  # at 2 s all last tokens were in flight: nothing to compose until the fourth is seen
        (3, 4, 2, 0, 0, 1, 1),
        (4, 5, 0, 1, 11, 1, 1),
        (9, 9, 2, 0, 0, 1, 1),
    ]
    assert times(replay(trace, constant_table(1.0, limits=limits)), "first_token_s") == [1, 2, 2, 5, 10]


def test_the_token_in_flight_of_a_preempted_sequence_still_comes_out():
    limits = make_limits(max_running=2, max_batched_tokens=16, async_scheduling=True)
    table = constant_table(1.0, limits=limits, pool=make_pool(blocks_count=4, block_tokens=4))
    result = replay(make_trace([0.0, 0.0], [7, 5], [4, 5]), table)
    assert times(result, "finish_s") == [4, 7]
    assert times(result, "worst_itl_s") == [1, 3]  # the second emits at 1, 2, 5, 6 and 7 s; it lost its blocks at 1 s
    assert steps(result, "scheduled_s", "start_s", "kv_blocks", "waiting", "preemptions", "prefill_tokens", "recomputed_tokens") == [
        (0, 0, 4, 0, 0, 12, 0),
        (0, 1, 4, 0, 0, 0, 0),
        (1, 2, 3, 1, 1, 0, 0),
        (2, 3, 3, 1, 0, 0, 0),  # the first one's last token; at 3 s two blocks are wanted and one is free
        (4, 4, 2, 0, 0, 7, 6),
        (4, 5, 2, 0, 0, 0, 0),
        (5, 6, 3, 0, 0, 0, 0),
    ]
    finished_in_the_queue = replay(make_trace([0.0, 0.0], [7, 5], [4, 2]), table)
    assert times(finished_in_the_queue, "finish_s") == [4, 2]
    assert times(finished_in_the_queue, "preemptions") == [0, 1]


def test_the_newest_sequence_is_preempted_and_computes_everything_again():
    # Blocks of four tokens, four of them: the first request's ninth token takes the third block from the second request.
    trace = make_trace([0.0, 0.0], [7, 5], [4, 5])
    table = constant_table(1.0, limits=make_limits(max_running=2, max_batched_tokens=16), pool=make_pool(blocks_count=4, block_tokens=4))
    result = replay(trace, table)
    assert times(result, "first_token_s") == [1, 1]
    assert times(result, "finish_s") == [4, 7]
    assert times(result, "worst_itl_s") == [1, 3]
    assert times(result, "preemptions") == [0, 1]
    assert steps(result, "kv_blocks", "running", "waiting", "preemptions", "prefill_tokens", "recomputed_tokens") == [
        (4, 2, 0, 0, 12, 0),
        (4, 2, 0, 0, 0, 0),
        (3, 1, 1, 1, 0, 0),
        (3, 1, 1, 0, 0, 0),  # the second needs two blocks for seven tokens and one is free
        (2, 1, 0, 0, 7, 6),  # five prompt tokens and two generated ones, six of them computed before
        (2, 1, 0, 0, 0, 0),
        (3, 1, 0, 0, 0, 0),
    ]


def test_a_sequence_that_is_itself_the_newest_preempts_itself():
    trace = make_trace([0.0, 0.0], [7, 8], [2, 2])
    table = constant_table(1.0, limits=make_limits(max_running=2, max_batched_tokens=16), pool=make_pool(blocks_count=4, block_tokens=4))
    result = replay(trace, table)
    assert times(result, "preemptions") == [0, 1]
    assert times(result, "finish_s") == [2, 3]
    assert steps(result, "sequences", "recomputed_tokens") == [(2, 0), (1, 0), (1, 8)]


def test_a_preempted_sequence_stands_in_front_of_those_that_waited_longer():
    trace = make_trace([0.0, 0.0, 0.0], [7, 5, 1], [4, 5, 1])
    table = constant_table(1.0, limits=make_limits(max_running=2, max_batched_tokens=16), pool=make_pool(blocks_count=4, block_tokens=4))
    result = replay(trace, table)
    assert times(result, "first_scheduled_s") == [0, 0, 4]
    assert steps(result, "prefill_tokens")[4] == (8,)  # seven to compute again, then the one that was never served


def test_the_head_of_the_queue_holds_up_smaller_requests_behind_it():
    trace = make_trace([0.0, 0.5, 0.5], [8, 12, 1], [3, 1, 1])
    table = constant_table(1.0, limits=make_limits(max_running=3, max_batched_tokens=16), pool=make_pool(blocks_count=5, block_tokens=4))
    result = replay(trace, table)
    assert times(result, "first_scheduled_s") == [0, 3, 3]


def test_running_sequences_beyond_the_budget_keep_their_seats_and_wait():
    trace = make_trace([0.0, 0.0, 0.0], [1, 1, 1], [2, 2, 2])
    result = replay(trace, constant_table(1.0, limits=make_limits(max_running=3, max_batched_tokens=2)))
    assert times(result, "first_token_s") == [1, 1, 3]
    assert steps(result, "sequences", "running", "waiting")[:3] == [(2, 2, 1), (2, 2, 1), (1, 1, 0)]


def test_the_last_output_token_needs_no_room_in_the_cache():
    table = constant_table(1.0, pool=make_pool(blocks_count=2, block_tokens=4))
    result = replay(make_trace([0.0, 0.0], [5, 5], [4, 5]), table)
    assert times(result, "status") == ["completed", "never_fits"]  # eight tokens in the cache, and nine
    assert max(result.steps["kv_blocks"].to_pylist()) == 2


def test_what_can_never_fit_is_reported_with_null_times_and_holds_nobody_up():
    limits = make_limits(max_context_tokens=20)
    result = replay(make_trace([0.0, 1.0, 2.0], [18, 17, 3], [3, 3, 1]), constant_table(0.25, limits=limits))
    assert times(result, "status") == ["never_fits", "completed", "completed"]
    for name in ("first_scheduled_s", "first_token_s", "finish_s", "worst_itl_s"):
        assert times(result, name)[0] is None
    assert times(result, "finish_s") == [None, 1.75, 2.25]
    assert times(result, "preemptions") == [0, 0, 0]


@pytest.mark.parametrize("run", [replay, replay_twin])
def test_a_pool_without_blocks_serves_nothing(run):
    result = run(make_trace([0.0, 1.0], [3, 3], [1, 1]), constant_table(1.0, pool=make_pool(blocks_count=0)))
    assert times(result, "status") == ["never_fits", "never_fits"]
    assert result.steps.num_rows == 0


def test_a_window_bounds_the_keys_that_tokens_see_but_not_the_cache():
    limits = make_limits(max_batched_tokens=4, window_tokens=3)
    result = replay(make_trace([0.0], [6], [3]), constant_table(1.0, limits=limits, pool=make_pool(block_tokens=2)))
    assert steps(result, "prefill_pairs", "decode_context_tokens", "kv_blocks") == [
        (1 + 2 + 3 + 3, 0, 2),
        (3 + 3, 0, 3),  # tokens five and six see three keys each
        (0, 3, 4),
        (0, 3, 4),
    ]


def test_a_step_lasts_as_long_as_the_longer_of_device_and_host():
    limits = make_limits(max_batched_tokens=8)
    host = {"host_launch_s": 0.5, "launches_count": 6, "prefill_launches_count": 3, "host_graph_launch_s": 0.25}
    captured = captured_table(limits, [4], decode_only=True)
    table = linear_table(per_token_s=0.5, limits=limits, capture=captured, **host)
    result = replay(make_trace([0.0], [8], [2]), table)
    assert steps(result, "start_s", "end_s", "device_s", "host_s", "captured_tokens") == [
        (0, 4.5, 4, 4.5, 0),  # the host launches six kernels, and three more for the prompt
        (4.5, 6.5, 2, 0.25, 4),  # one token, computed as the four of the captured graph
    ]


def test_equal_arrivals_keep_the_order_of_the_trace():
    table = constant_table(1.0, limits=make_limits(max_running=1))
    assert times(replay(make_trace([0.0] * 4, [1] * 4, [1] * 4), table), "finish_s") == [1, 2, 3, 4]


@pytest.mark.parametrize("run", [replay, replay_twin])
def test_a_trace_without_arrivals_says_how_to_import_it(run):
    with pytest.raises(TraceError, match=r"lengths: .*no arrival times.*Fix: import with --rate\."):
        run(length_only_trace(), constant_table(1.0))


@pytest.mark.parametrize("run", [replay, replay_twin])
def test_an_empty_trace_is_refused(run):
    with pytest.raises(TraceError, match="no requests"):
        run(make_trace([], [], []), constant_table(1.0))


@pytest.mark.parametrize("run", [replay, replay_twin])
def test_a_factor_for_an_unknown_kernel_is_refused_with_the_nearest_name(run):
    with pytest.raises(SpecError, match="did you mean 'body'"):
        run(make_trace([0.0], [1], [1]), constant_table(1.0), kernel_factors={"bodi": 2.0})


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_a_factor_that_is_no_finite_number_is_refused(factor):
    with pytest.raises(SpecError, match="finite number >= 0"):
        replay(make_trace([0.0], [1], [1]), constant_table(1.0), kernel_factors={"body": factor})


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"limits": make_limits(max_batched_tokens=0)}, "limit below 1"),
        ({"pool": make_pool(block_tokens=0)}, "limit below 1"),
        ({"capture": captured_table(make_limits(max_batched_tokens=63))}, "capture of a step table has 128 rows"),
        ({"capture": captured_table(make_limits(), [80])}, "captures a graph"),
    ],
)
def test_a_table_that_breaks_its_contract_is_a_bug_and_not_an_endless_loop(broken, message):
    with pytest.raises(InvariantError, match=message):
        replay(make_trace([0.0], [1], [1]), constant_table(1.0, **broken))
