"""Several steps in a pipeline at once: worked by hand, and laws of a flow shop."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from replay.assembly.assemble import assemble, summary
from replay.assembly.busy import busy_seconds
from replay.catalog.hardware import read_hardware
from replay.errors import InvariantError, SpecError
from replay.execution.engine import replay
from replay.execution.twin import replay_twin
from replay.pipeline import compile_mapping
from tests.execution.replay_cases import columns, replay_cases
from tests.models import LLAMA_8B, mapping
from tests.step_tables import constant_table, linear_table, make_limits, make_pool, make_trace, staged

LAW = settings(max_examples=60, deadline=None)


def pipelined(table, *calls, inflight):
    """The table with so many calls of its only kernel of constant time in each stage."""
    return staged(table, {"body": calls}, inflight_steps=inflight)


def with_inflight(table, inflight):
    return replace(table, limits=replace(table.limits, inflight_steps=inflight))


def steps(result, *names):
    return [tuple(row[name] for name in names) for row in result.steps.to_pylist()]


def times(result, name):
    return result.requests[name].to_pylist()


@pytest.mark.parametrize("run", [replay, replay_twin])
def test_two_micro_batches_alternate_in_two_stages_of_one_second(run):
    """Prompts of 4, 2 and 2 tokens, two of them out at once; budgets of 4 tokens; each step takes two seconds, one in each stage."""
    limits = make_limits(max_running=3, max_batched_tokens=4)
    table = pipelined(constant_table(2.0, limits=limits), 1, 1, inflight=2)
    result = run(make_trace([0.0, 0.0, 0.5], [4, 2, 2], [2, 2, 1]), table)
    names = ("scheduled_s", "start_s", "end_s", "prefill_tokens", "decode_sequences", "output_tokens")
    assert steps(result, *names) == [
        (0, 0, 2, 4, 0, 1),  # an idle server composes two steps at once
        (0, 1, 3, 2, 0, 1),  # the second one enters when the first one has left the first stage
        (2, 2, 4, 2, 1, 2),  # the second request's token is in flight; the third came at 0.5 s and is seen when a step ends
        (3, 3, 5, 0, 1, 1),
    ]
    assert times(result, "first_scheduled_s") == [0, 0, 2]
    assert times(result, "first_token_s") == [2, 3, 4]
    assert times(result, "finish_s") == [4, 5, 4]
    assert times(result, "worst_itl_s") == [2, 2, None]


@pytest.mark.parametrize("run", [replay, replay_twin])
def test_a_slow_stage_holds_up_the_steps_behind_it(run):
    """Stages of 1, 2 and 1 s. Chunks of one prompt follow one another; the step that decodes waits for the last chunk's token."""
    limits = make_limits(max_running=1, max_batched_tokens=2)
    table = pipelined(constant_table(4.0, limits=limits), 1, 2, 1, inflight=3)
    result = run(make_trace([0.0], [6], [2]), table)
    assert steps(result, "scheduled_s", "start_s", "end_s", "prefill_tokens", "decode_sequences") == [
        (0, 0, 4, 2, 0),
        (0, 1, 6, 2, 0),  # waits for the second stage from 2 s to 3 s
        (0, 2, 8, 2, 0),
        (8, 8, 12, 0, 1),
    ]
    assert busy_seconds(result.steps).tolist() == [4, 2, 2, 4]


@pytest.mark.parametrize("run", [replay, replay_twin])
def test_a_preempted_sequence_returns_after_the_token_that_it_has_in_flight(run):
    """Four blocks of four tokens. The second request loses its place at 4 s, with a token in flight until 5 s, which still comes out."""
    limits = make_limits(max_running=2, max_batched_tokens=7)
    table = pipelined(constant_table(2.0, limits=limits, pool=make_pool(blocks_count=4, block_tokens=4)), 1, 1, inflight=2)
    result = run(make_trace([0.0, 0.0], [7, 6], [4, 4]), table)
    names = ("scheduled_s", "end_s", "prefill_tokens", "decode_sequences", "preemptions", "recomputed_tokens", "kv_blocks")
    assert steps(result, *names) == [
        (0, 2, 7, 0, 0, 0, 2),
        (0, 3, 6, 0, 0, 0, 4),
        (2, 4, 0, 1, 0, 0, 4),
        (3, 5, 0, 1, 0, 0, 4),
        (4, 6, 0, 1, 1, 0, 3),  # the first one's ninth token; at 5 s the second one needs two blocks, and one is free
        (6, 8, 0, 1, 0, 0, 3),
        (8, 10, 7, 0, 0, 7, 2),
        (8, 11, 1, 0, 0, 0, 2),
        (11, 13, 0, 1, 0, 0, 3),
    ]
    assert times(result, "preemptions") == [0, 1]
    assert times(result, "worst_itl_s") == [2, 6]  # the second one's tokens come out at 3, 5, 11 and 13 s


@pytest.mark.parametrize(("calls", "slowest"), [((1, 1), 0.5), ((1, 1, 1, 1), 0.25), ((1, 2, 1), 0.5)])
def test_as_many_steps_as_stages_keep_equal_sequences_at_the_pace_of_the_slowest_stage(calls, slowest):
    stages, tokens = len(calls), 400
    table = pipelined(constant_table(1.0, limits=make_limits(max_running=stages, max_batched_tokens=1)), *calls, inflight=stages)
    result = replay(make_trace([0.0] * stages, [1] * stages, [tokens] * stages), table)
    every_s = np.diff(result.steps["end_s"].to_numpy())
    assert stages * tokens / result.steps["end_s"][-1].as_py() == pytest.approx(1 / slowest, rel=0.01)
    assert every_s.mean() == pytest.approx(slowest, rel=0.01)
    alone = replay(make_trace([0.0] * stages, [1] * stages, [tokens] * stages), with_inflight(table, 1))
    assert alone.steps["end_s"][-1].as_py() == stages * tokens  # one step at a time passes all stages: one second each


@LAW
@given(replay_cases(async_scheduling=False, inflight_steps=1), st.integers(2, 4))
def test_one_step_in_flight_is_what_it_is_without_stages(case, stages):
    trace, table = case
    one = staged(table, {"tokens_0": [1] * stages}, inflight_steps=1)
    assert replay(trace, one) == replay(trace, table)


@LAW
@given(replay_cases(async_scheduling=False))
def test_steps_go_through_each_stage_one_after_another(case):
    """Invariant 5, from the steps alone: none ends earlier than all stages take, nor sooner after another one than the last stage takes."""
    trace, table = case
    assume(table.limits.inflight_steps > 1)
    done = columns(replay(trace, table).steps)
    lasts_s = np.maximum(done["device_s"], done["host_s"])
    shares = stage_shares(table)
    near = 1 + 1e-9
    assert ((done["end_s"] - done["start_s"]) * near + 1e-12 >= lasts_s).all()
    assert (np.diff(done["start_s"]) * near + 1e-12 >= lasts_s[:-1] * shares[0]).all()
    assert (np.diff(done["end_s"]) * near + 1e-12 >= lasts_s[1:] * shares[-1]).all()
    for place, now_s in enumerate(done["scheduled_s"]):
        assert (done["end_s"][:place] > now_s).sum() < table.limits.inflight_steps


def stage_shares(table):
    from replay.execution.cost_arrays import flatten

    return flatten(table).stage_shares


def test_a_stage_takes_its_part_of_the_token_wise_kernels_of_a_full_prefill_step():
    limits = make_limits(max_batched_tokens=10)
    table = pipelined(linear_table(step_s=1.0, per_token_s=0.1, per_sequence_s=5.0, limits=limits), 3, 1, inflight=2)
    assert stage_shares(table).tolist() == [0.75, 0.25]
    assert stage_shares(with_inflight(table, 1)).tolist() == [1.0]
    nothing = pipelined(linear_table(per_sequence_s=5.0, limits=limits), 3, 1, inflight=2)
    assert stage_shares(nothing).tolist() == [0.5, 0.5]


def test_a_pipeline_without_its_stages_or_with_two_rules_is_a_bug():
    table = pipelined(constant_table(1.0), 1, 1, inflight=2)
    trace = make_trace([0.0], [1], [1])
    with pytest.raises(InvariantError, match="not those of its 2-stage pipeline"):
        replay(trace, replace(table, stages=table.stages.slice(0, 1)))
    with pytest.raises(InvariantError, match="two rules"):
        replay(trace, replace(table, limits=replace(table.limits, async_scheduling=True)))


def figures(trace, table):
    run = assemble(trace=trace, table=table, replayed=replay(trace, table), model="m", hardware="h", mapping_digest="sha256:0", seed=1)
    return run, summary(run)


@pytest.mark.parametrize("replicas", [1, 2])
def test_overlapping_steps_are_busy_once_and_mfu_is_of_all_stages(replicas):
    """Two equal stages of 1 s that are full from 1 s on, and at work on memory for half as long as on the rest."""
    limits = make_limits(max_running=2, max_batched_tokens=1, replicas_count=replicas)
    whole = linear_table(step_s=1.0, memory_step_s=2.0, limits=limits, reference_flops_per_s=8.0)
    table = pipelined(whole, 1, 1, inflight=2)
    count, tokens = 2 * replicas, 50
    trace = make_trace([0.0] * count, [1] * count, [tokens] * count)
    (run, full), (_, alone) = (figures(trace, each) for each in (table, with_inflight(table, 1)))
    span_s = 2 * tokens + 1.0
    assert (full["busy_s"], full["span_s"], full["busy_ratio"]) == (replicas * span_s, span_s, 1.0)
    assert alone["busy_s"] == replicas * 2.0 * 2 * tokens
    assert full["mfu_ratio"] == pytest.approx(alone["mfu_ratio"] * alone["busy_s"] / full["busy_s"])
    assert full["mfu_ratio"] == full["flops"] / (replicas * span_s * 8.0) == full["wall_clock_mfu_ratio"]
    assert full["memory_stall_ratio"]["all"] == pytest.approx(0.5)
    windows = columns(run.windows.filter([name == "all" for name in run.windows["layer_type"].to_pylist()]))
    assert windows["time_s"].sum() == pytest.approx(replicas * span_s)


def effective(*lines):
    compiled = compile_mapping(LLAMA_8B, read_hardware("h100-sxm"), mapping("[batching]", "max_batched_tokens = 64", *lines))
    found = [decision for decision in compiled.decisions if decision.knob == "batching.inflight_microbatches"]
    return compiled.table.limits.inflight_steps, [(decision.requested, decision.effective) for decision in found]


def test_the_steps_in_flight_are_one_for_each_stage_unless_said_otherwise():
    four = ("[parallelism]", "pipeline = 4")
    assert effective(*four) == (4, [])
    assert effective("inflight_microbatches = 2", *four) == (2, [])
    assert effective("inflight_microbatches = 1", *four) == (1, [])
    assert effective() == (1, [])
    assert effective("inflight_microbatches = 3") == (1, [("3", "1")])
    assert effective("inflight_microbatches = 1") == (1, [])


def test_asynchronous_scheduling_in_a_pipeline_is_refused():
    with pytest.raises(SpecError, match=r"async_scheduling: true with parallelism.pipeline = 2; want false"):
        effective("async_scheduling = true", "[parallelism]", "pipeline = 2")
