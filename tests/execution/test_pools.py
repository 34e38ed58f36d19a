"""Prefill and decode pools: worked by hand, equal to the plain twin, and what each pool must not depend on."""

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replay.assembly.assemble import assemble, summary
from replay.errors import SpecError
from replay.execution import fleet
from replay.execution.engine import replay
from replay.execution.stream import replay_pieces
from replay.execution.twin import replay_twin
from replay.provenance import Load
from replay.tiling.step_table import ROUTING_NAMES
from tests.execution.replay_cases import completed, crowded_cases, replay_cases
from tests.execution.test_fleet import sent_by, with_limits
from tests.execution.test_loop_equals_twin import crowded_case, distribution, quiet_case, urgent_case
from tests.laws.test_replay_invariants import audited
from tests.step_tables import constant_table, linear_table, make_limits, make_pool, make_trace

LAW = settings(max_examples=40, deadline=None)
ROUNDING_S = 1e-9


def in_pools(table, decoding=1, prefilling=1, block_send_s=0.0, send_latency_s=0.0, **limits):
    pool = replace(table.pool, block_send_s=block_send_s, send_latency_s=send_latency_s)
    return with_limits(replace(table, pool=pool), replicas_count=decoding, prefill_replicas_count=prefilling, **limits)


def crowded_pools(make=crowded_case, **rules):
    trace, table = make(**rules)
    return trace, in_pools(table, block_send_s=2.0**-7, send_latency_s=2.0**-8)


@st.composite
def pool_cases(draw):
    """(trace, table) of two pools; in about half of the cases the decoding one is short of cache."""
    powered = draw(st.booleans())
    trace, table = draw(replay_cases(compiles=True, powered=powered) | crowded_cases(compiles=True, powered=powered))
    scheduler = "prefill_first" if table.limits.scheduler == "static" else table.limits.scheduler
    counts = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    times = [draw(st.sampled_from([0.0, 2.0**-10, 0.013, 1.0])) for _ in range(2)]
    return trace, in_pools(table, *counts, *times, scheduler=scheduler, routing=draw(st.sampled_from(ROUTING_NAMES)))


@settings(max_examples=100, deadline=None)
@given(pool_cases(), st.sampled_from([1, 2, 4096]))
@example(crowded_pools(), 4096)
@example(crowded_pools(preemption="swap", unfit="skip"), 1)
@example(crowded_pools(prefix_cache=True, async_scheduling=True), 4096)
@example(crowded_pools(budget=5, inflight_steps=3), 2)
@example(crowded_pools(urgent_case, preemption="swap"), 4096)
@example(crowded_pools(quiet_case), 4096)
@example(crowded_pools(quiet_case, queue="hrrn"), 4096)
def test_loop_and_twin_give_equal_tables_bit_by_bit(case, held):
    """Invariant 9."""
    trace, table = case
    was, fleet.SEQUENCES_HELD = fleet.SEQUENCES_HELD, held
    try:
        compiled = replay(trace, table)
    finally:
        fleet.SEQUENCES_HELD = was
    plain = replay_twin(trace, table)
    assert compiled.requests.to_pylist() == plain.requests.to_pylist()
    assert compiled.steps.to_pylist() == plain.steps.to_pylist()
    assert distribution(compiled) == distribution(plain)


@LAW
@given(pool_cases(), st.integers(1, 3), st.sampled_from([0.0, 0.5]))
def test_what_the_prefill_pool_does_depends_on_nothing_behind_it(case, decoding, block_send_s):
    """Invariant 12: it serves every request as one of a single output token, whatever the outputs, the links and the other pool."""
    trace, table = case
    one = replay(trace, table)
    other = replay(trace, in_pools(table, decoding, table.limits.prefill_replicas_count, block_send_s))
    for name in ("first_scheduled_s", "first_token_s", "prefix_hit_tokens", "sent_s"):
        assert one.requests[name] == other.requests[name]
    first = table.limits.replicas_count, decoding
    steps = [
        result.steps.filter(pc.greater_equal(result.steps["replica"], least)).drop_columns(["replica"])
        for result, least in zip((one, other), first, strict=True)
    ]
    assert steps[0] == steps[1]


@LAW
@given(pool_cases())
def test_nothing_is_decoded_before_its_cache_has_come_and_all_is_there_from_then_to_its_end(case):
    """Invariant 1, Invariant 4 and Invariant 12: at every step, a decoding replica holds the requests received and not ended."""
    trace, table = case
    result = replay(trace, table)
    got = completed(result.requests)
    several = got["output_tokens"] > 1
    got = {name: values[several] for name, values in got.items()}
    received_s = got["first_token_s"] + got["kv_transfer_s"]
    blocks = -(-got["prompt_tokens"] // table.pool.block_tokens)
    least_s = blocks * table.pool.block_send_s + table.pool.send_latency_s
    assert (got["kv_transfer_s"] >= least_s - ROUNDING_S).all()
    assert (got["first_token_s"] + got["worst_itl_s"] >= received_s).all()
    for step in result.steps.to_pylist():
        if step["replica"] < table.limits.replicas_count:
            here = got["replica"] == step["replica"]
            come = (received_s[here] <= step["scheduled_s"] + ROUNDING_S).sum()
            sure = (received_s[here] <= step["scheduled_s"] - ROUNDING_S).sum()
            ended = (got["finish_s"][here] <= step["scheduled_s"]).sum()
            assert sure - ended <= step["running"] + step["waiting"] <= come - ended


@LAW
@given(pool_cases())
@example(crowded_pools())
def test_windows_hold_every_token_and_all_busy_time_of_both_pools(case):
    """Invariant 2: each token is computed once in one of the pools, recomputation beside; prompts alone in the prefill pool."""
    trace, table = case
    done = replay(trace, table)
    run = assemble(trace=trace, table=table, replayed=done, model="m", hardware="h", mapping_digest="", seed=0)
    served = completed(done.requests)
    whole = run.windows.filter(pc.equal(run.windows["layer_type"], "all"))
    computed = served["prompt_tokens"].sum() - served["prefix_hit_tokens"].sum() + served["output_tokens"].sum()
    assert sum(whole["tokens"].to_pylist()) == computed
    assert sum(done.steps["output_tokens"].to_pylist()) == served["output_tokens"].sum()
    assert sum(done.token_gaps["tokens"].to_pylist()) == (served["output_tokens"] - 1).sum()
    assert sum(whole["time_s"].to_pylist()) == pytest.approx(run.busy_s, rel=1e-12)
    assert 0.0 <= summary(run)["busy_ratio"] <= 1.0 + 1e-12
    prefilling = pc.greater_equal(done.steps["replica"], table.limits.replicas_count)
    assert not sum(done.steps.filter(prefilling)["decode_sequences"].to_pylist())
    decoding = done.steps.filter(pc.invert(prefilling))
    new_prefill = sum(pc.subtract(decoding["prefill_tokens"], decoding["recomputed_tokens"]).to_pylist())
    assert new_prefill <= sum(done.requests["preemptions"].to_pylist())  # who is preempted computes its next token with the others
    if table.power is not None:
        end_s = max(done.steps["end_s"].to_numpy().max(initial=0.0), (whole.num_rows - 1) * run.window_s)
        idle_j = table.power.ranks_count * table.power.idle_w * (run.replicas_count * end_s - run.busy_s)
        steps_j = sum(done.steps["energy_j"].to_pylist())
        np.testing.assert_allclose(sum(whole["energy_j"].to_pylist()), steps_j + idle_j, rtol=1e-9, atol=1e-9)


@LAW
@given(pool_cases())
@example(crowded_pools())
@example(crowded_pools(prefix_cache=True))
@example(crowded_pools(preemption="swap", async_scheduling=True))
def test_requests_tokens_and_blocks_balance_after_every_step_of_each_replica(case):
    """Invariant 1, Invariant 2 and Invariant 3, in the twin's books; what is received counts as found."""
    trace, table = case
    requests, books = audited(trace, table)
    assert all(own.is_empty and own.pool.free_count == own.pool.count for own in books)
    ended = completed(requests)["output_tokens"]
    done = [len(own.done) for own in books]
    decoding = table.limits.replicas_count
    assert (sum(done[:decoding]), sum(done[decoding:])) == ((ended > 1).sum(), len(ended))


def served(trace, table):
    """The requests' table by column, lists."""
    return replay(trace, table).requests.to_pydict()


def test_three_requests_by_hand():
    """Every step takes 1 s; a block of 4 tokens takes 1/4 s on the link, each transfer 1/2 s more.

    Prefill replica: the prompts of 4 and 8 tokens that are there at 0 end at 1, that of 4 which comes at 0.5 at 2. The first is sent
    from 1 to 1.75, the second from 1.75 to 2.75, the third from 2.75 to 3.5. Decoding replica: from 1.75 the first alone; at
    2.75, with its second token, the second joins it; at 3.75 the first is done with three tokens and the third joins; ...
    """
    table = in_pools(constant_table(1.0, pool=make_pool(block_tokens=4)), block_send_s=0.25, send_latency_s=0.5)
    result = replay(make_trace([0.0, 0.0, 0.5], [4, 8, 4], [3, 3, 2]), table)
    got = result.requests.to_pydict()
    assert got["first_scheduled_s"] == [0.0, 0.0, 1.0]
    assert got["first_token_s"] == [1.0, 1.0, 2.0]
    assert got["kv_transfer_s"] == [0.75, 1.75, 1.5]
    assert got["finish_s"] == [3.75, 4.75, 4.75]
    assert got["worst_itl_s"] == [1.75, 2.75, 2.75]
    assert (got["replica"], got["prefill_replica"]) == ([0, 0, 0], [1, 1, 1])
    steps = result.steps.to_pydict()
    assert steps["start_s"] == [0.0, 1.0, 1.75, 2.75, 3.75]
    assert steps["replica"] == [1, 1, 0, 0, 0]
    assert steps["prefill_tokens"] == [12, 4, 0, 0, 0]
    assert steps["decode_sequences"] == [0, 0, 1, 2, 2]
    assert steps["decode_context_tokens"] == [0, 0, 5, 6 + 9, 10 + 5]
    assert steps["kv_blocks"] == [3, 1, 2, 2 + 3, 3 + 2]  # whoever is admitted takes blocks for its prompt and one more token
    assert distribution(result) == {1.0: 2, 1.75: 1, 2.75: 2}


def test_prompts_that_end_together_share_neither_the_link_of_their_sender_nor_that_of_their_receiver():
    """Four prompts of one block and 1 s end at 1 s; round robin sends them, and their answers, to the replicas in turn."""
    trace, table = make_trace([0.0] * 4, [4] * 4, [2] * 4), constant_table(1.0, pool=make_pool(block_tokens=4))
    assert served(trace, in_pools(table, 1, 4, block_send_s=0.25))["kv_transfer_s"] == [0.25, 0.5, 0.75, 1.0]
    assert served(trace, in_pools(table, 4, 1, block_send_s=0.25))["kv_transfer_s"] == [0.25, 0.5, 0.75, 1.0]
    pairs = served(trace, in_pools(table, 2, 2, block_send_s=0.25))
    assert (pairs["prefill_replica"], pairs["replica"]) == ([2, 3, 2, 3], [0, 1, 0, 1])
    assert pairs["kv_transfer_s"] == [0.25, 0.25, 0.5, 0.5]
    crossed = served(trace, in_pools(table, 3, 2, block_send_s=0.25))  # from 0 and 1 in turn, to 0, 1, 2, 0
    assert crossed["kv_transfer_s"] == [0.25, 0.25, 0.5, 0.5]


def test_answers_go_on_in_the_order_in_which_prompts_end_not_in_that_of_the_trace():
    """Prompts of 32, 8 and 16 tokens take 5, 2 and 3 s, a decoded token 1.125 s; two replicas compute prompts, one seat decodes."""
    table = in_pools(linear_table(step_s=1.0, per_token_s=0.125, limits=make_limits(max_running=1)), 1, 2, routing="least_loaded")
    got = served(make_trace([0.0, 0.0, 0.5], [32, 8, 16], [2, 3, 2]), table)
    assert got["prefill_replica"] == [1, 2, 1]
    assert got["first_token_s"] == [5.0, 2.0, 8.0]
    assert got["finish_s"] == [5.0 + 1.125, 2.0 + 2 * 1.125, 8.0 + 1.125]
    got = served(make_trace([0.0, 0.0, 0.5], [32, 8, 16], [2, 9, 2]), table)  # the second keeps its seat from 2 to 11 s
    assert got["finish_s"] == [11.0 + 1.125, 2.0 + 8 * 1.125, 11.0 + 2 * 1.125]


def test_without_time_on_the_link_no_prompt_holds_up_a_token():
    """A step takes 1/4 s and 1/16 s for each token. Together, the prompt of 60 tokens that comes at 1 s holds up one token for 4 s; in
    pools every token but the first takes a step of one or two sequences."""
    trace = make_trace([0.0, 1.0], [4, 60], [9, 2])
    table = linear_table(step_s=0.25, per_token_s=2.0**-4)
    together, apart = served(trace, table), served(trace, in_pools(table))
    assert together["first_token_s"][0] == apart["first_token_s"][0] == 0.5
    assert together["worst_itl_s"][0] > 4.0
    assert apart["worst_itl_s"] == [0.3125, 0.3125]
    assert apart["finish_s"] == [0.5 + 8 * 0.3125, 1.0 + 0.25 + 60 / 16 + 0.3125]
    assert apart["kv_transfer_s"] == [0.0, 0.0]


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_prompts_that_come_by_chance_wait_for_the_link_as_in_a_queue_of_one_server(load):
    """M/D/1: the mean wait is load s / (2 (1 - load)) (Pollaczek and Khinchine); prompts take next to no time here."""
    count, send_s = 20_000, 0.125
    arrivals = np.cumsum(np.random.default_rng(3).exponential(send_s / load, count))
    trace = make_trace(arrivals, [4] * count, [2] * count)
    got = served(trace, in_pools(constant_table(1e-9, limits=make_limits(max_running=1), pool=make_pool(block_tokens=4)), 1, 1, send_s))
    assert np.mean(got["kv_transfer_s"]) - send_s == pytest.approx(load * send_s / (2 * (1 - load)), rel=0.06)


def test_one_output_token_ends_in_the_prefill_pool():
    got = served(make_trace([0.0], [4], [1]), in_pools(constant_table(1.0), block_send_s=1.0))
    assert (got["replica"], got["prefill_replica"], got["finish_s"], got["kv_transfer_s"]) == ([1], [1], [1.0], [None])


def test_who_is_preempted_while_it_decodes_computes_its_prompt_there():
    """Two prompts of 4 tokens take two blocks of 4 each, which is all there is; when the first needs a third one, the second gives way."""
    table = constant_table(1.0, pool=make_pool(blocks_count=4, block_tokens=4))
    result = replay(make_trace([0.0, 0.0], [4, 4], [6, 6]), in_pools(table))
    steps = result.steps.filter(pc.equal(result.steps["replica"], 0)).to_pydict()
    assert result.requests["preemptions"].to_pylist() == [0, 1]
    assert steps["start_s"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert steps["decode_sequences"] == [2, 2, 2, 2, 1, 0]
    assert steps["prefill_tokens"] == [0, 0, 0, 0, 0, 9]
    assert steps["recomputed_tokens"] == [0, 0, 0, 0, 0, 8]
    swapped = replay(make_trace([0.0, 0.0], [4, 4], [6, 6]), with_limits(in_pools(table), preemption="swap"))
    steps = swapped.steps.filter(pc.equal(swapped.steps["replica"], 0)).to_pydict()
    assert steps["prefill_tokens"] == [0] * 6
    assert sum(steps["swapped_blocks"]) == 2 + 2  # out and back; what came over the link is not swapped in


def test_prefixes_are_found_where_prompts_are_computed_and_sent_whole():
    limits = make_limits(prefix_cache=True)
    table = in_pools(constant_table(1.0, limits=limits, pool=make_pool(block_tokens=4)), block_send_s=0.25)
    got = served(make_trace([0.0, 5.0], [8, 8], [2, 2], prefix_blocks=[[1, 2], [1, 3]], prefix_block_tokens=4), table)
    assert got["prefix_hit_tokens"] == [0, 4]
    assert got["kv_transfer_s"] == [0.5, 0.5]


def test_a_run_of_pools_says_where_each_prompt_was_computed_and_counts_both_pools():
    trace = make_trace([0.0, 0.0, 0.5], [4, 8, 4], [3, 3, 2])
    table = in_pools(constant_table(1.0, pool=make_pool(block_tokens=4)), 1, 2, block_send_s=0.25)
    run = assemble(trace=trace, table=table, replayed=replay(trace, table), model="m", hardware="h", mapping_digest="", seed=0)
    assert run.replicas_count == 3
    assert run.requests["prefill_replica"].to_pylist() == [1, 2, 1]
    assert run.requests["kv_transfer_s"].to_pylist()[0] == 0.25


def test_what_pools_are_not_replayed_for_is_refused():
    trace, table = make_trace([0.0, 1.0], [4, 4], [2, 2]), in_pools(constant_table(1.0))
    for load in (Load(concurrency=1), Load(sessions=True)):
        for run in (replay, replay_twin):
            with pytest.raises(SpecError, match=r"fleet\.prefill_replicas: 1 for requests that clients or sessions send"):
                run(sent_by(trace, load), table)
    with pytest.raises(SpecError, match=r"fleet\.prefill_replicas: 1; want 0, for a trace that is read in pieces"):
        next(replay_pieces([trace.requests], table, None))
