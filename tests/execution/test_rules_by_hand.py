"""Schedulers, queue orders and cache policies, worked out on paper. Every step takes one second; blocks hold four tokens."""

import pytest

from replay.errors import InvariantError
from replay.execution.engine import replay
from tests.step_tables import constant_table, make_limits, make_pool, make_trace, powered

FIVE = ([0.0, 0.0, 0.5, 2.5, 9.0], [5, 6, 3, 10, 2], [3, 2, 1, 2, 1])


def served(trace, blocks_count=1000, block_swap_s=0.0, **rules):
    limits = make_limits(**{"max_batched_tokens": 12, "max_context_tokens": 12} | rules)
    return replay(trace, constant_table(1.0, limits=limits, pool=make_pool(blocks_count, 4, block_swap_s)))


def times(result, name):
    return result.requests[name].to_pylist()


def steps(result, *names):
    return [tuple(row[name] for name in names) for row in result.steps.to_pylist()]


def test_prefill_first_lets_prompts_go_before_all_decodes():
    result = served(make_trace(*FIVE), scheduler="prefill_first", max_running=3)
    assert times(result, "first_token_s") == [1, 1, 2, 4, 10]
    assert times(result, "finish_s") == [5, 3, 2, 5, 10]
    assert times(result, "worst_itl_s") == [2, 2, None, 1, None]
    assert steps(result, "start_s", "prefill_tokens", "decode_sequences", "decode_context_tokens", "running", "waiting") == [
        (0, 11, 0, 0, 2, 0),
        (1, 3, 0, 0, 3, 0),  # the third's prompt; the first two wait for their second tokens
        (2, 0, 2, 6 + 7, 2, 0),
        (3, 10, 0, 0, 2, 0),
        (4, 0, 2, 7 + 11, 2, 0),
        (9, 2, 0, 0, 1, 0),
    ]


def test_prefill_first_never_cuts_a_prompt():
    result = served(make_trace([0.0, 0.0, 0.0], [5, 8, 1], [1, 1, 1]), scheduler="prefill_first")
    assert steps(result, "prefill_tokens", "waiting") == [(5, 2), (8 + 1, 0)]  # the second does not fit and holds up the third


def test_a_static_batch_runs_until_all_of_it_is_done():
    result = served(make_trace(*FIVE), scheduler="static", max_running=2)
    assert times(result, "first_scheduled_s") == [0, 0, 3, 4, 9]
    assert times(result, "finish_s") == [3, 2, 4, 6, 10]
    assert steps(result, "start_s", "prefill_tokens", "decode_sequences", "running", "waiting") == [
        (0, 11, 0, 2, 0),
        (1, 0, 2, 2, 1),
        (2, 0, 1, 1, 1),  # one seat is free, and the third waits for the end of the batch
        (3, 3, 0, 1, 1),  # the fourth's ten tokens do not fit beside three
        (4, 10, 0, 1, 0),
        (5, 0, 1, 1, 0),
        (9, 2, 0, 1, 0),
    ]


def test_a_dynamic_batch_waits_for_company_and_no_longer_than_it_may():
    # Work without decode, as of an encoder: three of four tokens fill a batch.
    trace = make_trace([0.0, 0.5, 1.0, 4.0, 4.25], [4] * 5, [1] * 5)
    result = served(trace, scheduler="static", max_running=3, max_delay_s=2.0)
    assert times(result, "first_scheduled_s") == [1, 1, 1, 6, 6]
    assert steps(result, "start_s", "sequences", "waiting") == [(1, 3, 0), (6, 2, 0)]
    assert times(served(trace, scheduler="static", max_running=3), "first_scheduled_s") == [0, 1, 1, 4, 5]
    by_tokens = served(trace, scheduler="static", max_running=9, max_batched_tokens=8, max_context_tokens=8, max_delay_s=2.0)
    assert times(by_tokens, "first_scheduled_s") == [0.5, 0.5, 3.0, 4.25, 4.25]  # eight tokens fill a batch too


def test_the_shortest_prompt_goes_first_and_equal_ones_in_order_of_arrival():
    trace = make_trace([0.0, 0.5, 0.5, 0.5, 0.5], [8, 6, 2, 4, 4], [1] * 5)
    assert times(served(trace, queue="sjf", max_running=1), "first_scheduled_s") == [0, 4, 1, 2, 3]


def test_the_longest_cached_prefix_goes_first_and_a_cold_prompt_last():
    prefixes = [[1, 2, 3], [7, 8, 9], [1, 2, 4], [1, 5, 6], [1, 2, 3]]
    trace = make_trace([0.0, 0.5, 0.5, 0.5, 0.5], [11] * 5, [1] * 5, prefix_blocks=prefixes, prefix_block_tokens=4)
    result = served(trace, queue="longest_prefix", max_running=1, prefix_cache=True)
    assert times(result, "first_scheduled_s") == [0, 4, 1, 3, 2]
    assert times(result, "prefix_hit_tokens") == [0, 0, 8, 4, 8]


def test_waiting_raises_the_response_ratio_until_a_long_prompt_goes_first():
    trace = make_trace([0.0, 0.25, 0.5, 1.5, 2.5], [8, 11, 4, 2, 4], [1] * 5)
    # At 3 s the second has waited 2.75 s for 11 tokens and the fifth 0.5 s for 4.
    assert times(served(trace, queue="hrrn", max_running=1), "first_scheduled_s") == [0, 3, 1, 2, 4]
    assert times(served(trace, queue="sjf", max_running=1), "first_scheduled_s") == [0, 4, 1, 2, 3]


def test_a_queue_longer_than_the_limit_is_not_sorted_by_response_ratio():
    count = 129
    trace = make_trace([0.0] + [0.5] * count, [8] * (count + 1 - 1) + [1], [1] * (count + 1))
    result = served(trace, queue="hrrn", max_running=1)
    assert times(result, "first_scheduled_s")[1] == 1  # 129 wait: first come, first served
    assert times(result, "first_scheduled_s")[-1] == 2  # 128 wait: the shortest has the highest ratio


def test_a_preferred_size_is_sent_at_once_and_other_sizes_wait_as_long_as_they_may():
    trace = make_trace([0.0, 0.5, 1.0, 4.0, 4.25], [4] * 5, [1] * 5)
    rules = {"scheduler": "static", "max_batched_tokens": 36, "max_running": 9, "max_delay_s": 2.0, "preferred_sizes": (2, 4)}
    assert times(served(trace, **rules), "first_scheduled_s") == [0.5, 0.5, 3.0, 4.25, 4.25]
    crowd = make_trace([0.0] * 5, [4] * 5, [1] * 5)
    assert times(served(crowd, **rules), "first_scheduled_s") == [0, 0, 0, 0, 2]  # four of five; the fifth waits for company
    assert times(served(crowd, **rules | {"max_running": 5}), "first_scheduled_s") == [0] * 5  # five are the largest batch


def test_the_smallest_priority_goes_first_and_none_counts_as_zero():
    trace = make_trace([0.0, 0.5, 0.5, 0.5], [8, 4, 4, 4], [1] * 4, priority=[9, 2, None, 1])
    assert times(served(trace, queue="priority", max_running=1), "first_scheduled_s") == [0, 3, 1, 2]


def test_the_least_urgent_is_preempted_and_returns_before_later_ones_of_its_priority():
    trace = make_trace([0.0, 0.0, 2.5, 2.5], [7, 7, 1, 1], [5, 4, 1, 1], priority=[5, 1, 5, 0])
    result = served(trace, blocks_count=4, queue="priority", max_batched_tokens=16)
    assert times(result, "preemptions") == [1, 0, 0, 0]  # at 2 s each wants a third block; first come, first served would take the second
    assert times(result, "first_scheduled_s") == [0, 0, 4, 3]  # the urgent one takes the last block at 3 s; the preempted one needs three
    assert times(result, "finish_s") == [7, 4, 5, 4]
    assert steps(result, "prefill_tokens", "recomputed_tokens")[4] == (9 + 1, 8)


def test_who_is_preempted_by_priority_computes_nothing_even_where_its_turn_was_before():
    trace = make_trace([0.0, 0.0], [5, 7], [3, 4], priority=[5, 1])
    result = served(trace, blocks_count=4, queue="priority")
    assert times(result, "finish_s") == [5, 4]
    assert steps(result, "decode_sequences", "prefill_tokens", "recomputed_tokens", "preemptions") == [
        (0, 12, 0, 0),
        (2, 0, 0, 0),
        (1, 0, 0, 1),  # the first one's seventh token has room, but the second's ninth has not
        (1, 0, 0, 0),
        (0, 7, 6, 0),
    ]


def test_a_request_without_room_holds_up_smaller_ones_or_is_passed_over_and_keeps_its_place():
    trace = make_trace([0.0, 0.5, 0.5], [8, 12, 1], [3, 1, 1])
    rules = {"blocks_count": 5, "max_running": 3, "max_batched_tokens": 16, "max_context_tokens": 13}
    assert times(served(trace, **rules), "first_scheduled_s") == [0, 3, 3]
    assert times(served(trace, **rules, unfit="skip"), "first_scheduled_s") == [0, 3, 1]
    whole = served(make_trace([0.0] * 4, [5, 8, 1, 11], [1] * 4), scheduler="prefill_first", unfit="skip")
    assert steps(whole, "prefill_tokens", "waiting") == [(5 + 1, 2), (8, 1), (11, 0)]


def test_a_swapped_sequence_pays_for_its_blocks_both_ways_and_goes_on_where_it_stopped():
    trace = make_trace([0.0, 0.0], [7, 5], [4, 5])
    result = served(trace, blocks_count=4, block_swap_s=0.25, preemption="swap")
    assert times(result, "finish_s") == [4.5, 8]
    assert times(result, "worst_itl_s") == [1.5, 4]
    assert steps(result, "device_s", "swapped_blocks", "prefill_tokens", "decode_sequences", "recomputed_tokens") == [
        (1, 0, 12, 0, 0),
        (1, 0, 0, 2, 0),
        (1.5, 2, 0, 1, 0),  # the first one's ninth token takes a block; two go out
        (1, 0, 0, 1, 0),
        (1.5, 2, 0, 1, 0),  # two come back, and the seventh token is computed
        (1, 0, 0, 1, 0),
        (1, 0, 0, 1, 0),
    ]


def test_swapping_takes_as_long_at_any_clock_and_draws_idle_power():
    trace = make_trace([0.0, 0.0], [7, 5], [4, 5])
    limits, pool = make_limits(max_batched_tokens=12, max_context_tokens=12, preemption="swap"), make_pool(4, 4, 0.25)
    result = replay(trace, powered(constant_table(1.0, limits=limits, pool=pool), clocks_hz=[0.5e9]))
    assert steps(result, "device_s", "swapped_blocks", "energy_j") == [
        (2, 0, 200),  # twice the second of the full clock, at 100 W
        (2, 0, 200),
        (2.5, 2, 250),
        (2, 0, 200),
        (2.5, 2, 250),
        (2, 0, 200),
        (2, 0, 200),
    ]


CROWD = make_trace([0.0, 0.0], [8, 8], [4, 1])


@pytest.mark.parametrize(
    ("policy", "preemptions", "blocks", "recomputed"),
    [
        ("on_demand", [0, 1], [1, 2, 4, 3, 4, 2, 2], 3),  # a chunk of the second fits beside the first, its rest does not
        ("whole_prompt", [0, 0], [1, 2, 3, 3, 3, 1, 2], 0),  # the second waits until its whole prompt fits
        ("reserve", [0, 0], [3, 3, 3, 3, 3, 2, 2], 0),  # the first holds the room of its output from the start
    ],
)
def test_what_must_be_free_at_admission_is_a_chunk_a_prompt_or_everything(policy, preemptions, blocks, recomputed):
    result = served(CROWD, blocks_count=4, kv_policy=policy, max_batched_tokens=4)
    assert times(result, "preemptions") == preemptions
    assert [row for (row,) in steps(result, "kv_blocks")] == blocks
    assert sum(row for (row,) in steps(result, "recomputed_tokens")) == recomputed
    assert times(result, "finish_s") == [5, 7]


def test_admission_leaves_the_watermark_free():
    rules = {"blocks_count": 10, "kv_watermark_ratio": 0.25, "max_batched_tokens": 64, "max_context_tokens": 64}  # two blocks
    assert times(served(make_trace([0, 0], [16, 16], [2, 2]), **rules), "first_scheduled_s") == [0, 0]
    assert times(served(make_trace([0, 0], [16, 17], [2, 2]), **rules), "first_scheduled_s") == [0, 2]
    assert times(served(make_trace([0, 0], [32, 32], [1, 2]), **rules), "status") == ["completed", "never_fits"]


@pytest.mark.parametrize("scheduler", ["prefill_first", "static"])
def test_a_context_that_one_step_cannot_hold_is_a_bug_where_prompts_are_whole(scheduler):
    with pytest.raises(InvariantError, match="computes prompts whole"):
        served(make_trace(*FIVE), scheduler=scheduler, max_context_tokens=13)
