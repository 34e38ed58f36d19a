"""Headlines from sums over steps are those of the whole run."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from replay.assembly.assemble import assemble
from replay.assembly.headline import headline_of, headline_of_sums
from replay.assembly.layers import ALL_LAYERS
from replay.errors import InvariantError
from replay.execution.engine import has_sums, replay, replay_sums
from replay.provenance import Load
from tests.execution.replay_cases import crowded_cases, replay_cases
from tests.step_tables import linear_table, make_limits, make_pool, make_trace, staged

FACTORS = st.dictionaries(st.sampled_from(["tokens_0", "sequences_1", "decode_attention_0"]), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
TRACE = make_trace([0.0, 0.1, 0.15], [20, 9, 30], [4, 1, 7])


def both(trace, table, factors=None):
    """Return the headlines of a whole run and of sums."""
    replayed = replay(trace, table, kernel_factors=factors)
    run = assemble(
        trace=trace,
        table=table,
        replayed=replayed,
        model="m",
        hardware="h",
        mapping_digest="sha256:0",
        seed=0,
        kernel_factors=factors or {},
    )
    requests, sums = replay_sums(trace, table, kernel_factors=factors)
    return headline_of(run), headline_of_sums(requests, sums, table)


def agree(whole, summed):
    assert summed.requests.equals(whole.requests)
    assert (summed.replicas_count, summed.reference_flops_per_s) == (whole.replicas_count, whole.reference_flops_per_s)
    assert set(summed.sums) == {(ALL_LAYERS, name) for name in ("time_s", "flops", "tokens")}
    for key, value in summed.sums.items():
        assert value == pytest.approx(whole.sums[key], rel=1e-9, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(replay_cases(compiles=True) | crowded_cases(), FACTORS)
def test_sums_over_steps_give_the_headline_of_the_whole_run(case, factors):
    """With preemption by recomputation and by swaps, prefixes found again, asynchronous scheduling, and requests that never fit."""
    trace, table = case
    assume(has_sums(trace, table))
    agree(*both(trace, table, factors))


@settings(max_examples=15, deadline=None)
@given(replay_cases(powered=True))
def test_sums_hold_where_power_changes_the_clock(case):
    agree(*both(*case))


@settings(max_examples=15, deadline=None)
@given(crowded_cases(async_scheduling=True, prefix_cache=True, preemption="recompute"))
def test_recomputed_tokens_count_once_also_where_prefixes_are_found_again(case):
    whole, summed = both(*case)
    agree(whole, summed)
    trace = case[0].requests
    computed = sum(trace["prompt_tokens"].to_pylist()) + sum(trace["output_tokens"].to_pylist())
    assert summed.sums[ALL_LAYERS, "tokens"] <= computed


def test_a_preempting_replay_sums_each_prompt_token_once():
    limits = make_limits(max_running=3, max_batched_tokens=24)
    table = linear_table(step_s=0.01, per_token_s=1e-3, limits=limits, pool=make_pool(blocks_count=10, block_tokens=4))
    trace = make_trace([0.0, 0.0, 0.0], [8, 8, 8], [12, 12, 12])
    assert sum(replay(trace, table).requests["preemptions"].to_pylist()) > 0
    whole, summed = both(trace, table)
    agree(whole, summed)
    assert summed.sums[ALL_LAYERS, "tokens"] == 3 * (8 + 12)


def test_by_hand_one_request_is_busy_for_its_steps_and_computes_its_tokens():
    table = linear_table(step_s=0.5, limits=make_limits(max_batched_tokens=4))
    _, summed = both(make_trace([0.0, 10.0], [6, 1], [2, 1]), table)
    # Two chunks and a decode, then, after a pause, one step: 4 x 0.5 s; 7 prompt tokens and 3 of output.
    assert summed.sums[ALL_LAYERS, "time_s"] == pytest.approx(2.0)
    assert summed.sums[ALL_LAYERS, "tokens"] == 10


def test_replicas_stages_and_loads_have_no_sums_of_one_server():
    table = linear_table(step_s=0.5)
    several = replace(table, limits=replace(table.limits, replicas_count=2))
    stages = staged(table, {"body": (1, 0), "head": (0, 1), "attention_decode": (1, 0), "attention_prefill": (1, 0)}, inflight_steps=2)
    closed = replace(TRACE, provenance=replace(TRACE.provenance, load=Load(concurrency=2)))
    assert has_sums(TRACE, table)
    for trace, other in ((TRACE, several), (TRACE, stages), (closed, table)):
        assert not has_sums(trace, other)
        with pytest.raises(InvariantError, match="sums over steps are of one replica"):
            replay_sums(trace, other)
