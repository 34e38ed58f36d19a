"""Laws that every replay obeys, whatever the trace and the table; the numbers are those of the invariants in `replay.execution`."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.assembly.assemble import assemble
from replay.execution.engine import replay
from replay.ingress.trace import TRACE_SCHEMA
from tests.execution.replay_cases import columns, completed, replay_cases
from tests.step_tables import linear_table, make_limits, make_pool, make_trace

LAW = settings(max_examples=60, deadline=None)


def scaled(table, factor):
    """The table with every time multiplied by a factor."""

    def stretch(part):
        names = [name for name in part.column_names if name.endswith("_s") or "_s_per_" in name]
        for name in names:
            part = part.set_column(part.column_names.index(name), name, pa.array(part[name].to_numpy() * factor))
        return part

    limits = replace(table.limits, max_delay_s=table.limits.max_delay_s * factor)
    parts = {name: stretch(getattr(table, name)) for name in ("token_terms", "sequence_terms", "decode_terms", "prefill_terms")}
    host = {name: getattr(table, name) * factor for name in ("host_launch_s", "host_graph_launch_s")}
    pool = replace(table.pool, block_swap_s=table.pool.block_swap_s * factor)
    return replace(table, **parts, **host, limits=limits, pool=pool)


def retimed(trace, arrival_s):
    place = trace.requests.column_names.index("arrival_s")
    requests = trace.requests.set_column(place, TRACE_SCHEMA.field("arrival_s"), pa.array(arrival_s))
    return replace(trace, requests=requests)


def assembled(trace, table):
    return assemble(trace=trace, table=table, replayed=replay(trace, table), model="m", hardware="h", mapping_digest="sha256:0", seed=1)


@LAW
@given(replay_cases())
def test_every_request_is_reported_once_served_or_never_fitting(case):
    """Invariant 1."""
    trace, table = case
    requests = replay(trace, table).requests
    for name in ("request_id", "arrival_s", "prompt_tokens", "output_tokens"):
        assert requests[name].to_pylist() == trace.requests[name].to_pylist()
    for row in requests.to_pylist():
        absent = [row[name] is None for name in ("first_scheduled_s", "first_token_s", "finish_s")]
        assert absent == [row["status"] == "never_fits"] * 3
        assert (row["worst_itl_s"] is None) == (row["status"] == "never_fits" or row["output_tokens"] == 1)


@LAW
@given(replay_cases())
def test_times_of_a_request_are_in_order(case):
    """Invariant 4."""
    served = completed(replay(*case).requests)
    assert (served["arrival_s"] <= served["first_scheduled_s"]).all()
    assert (served["first_scheduled_s"] < served["first_token_s"]).all()
    assert (served["first_token_s"] <= served["finish_s"]).all()


@LAW
@given(replay_cases(queue="fcfs", unfit="block"))
def test_requests_are_first_scheduled_in_the_order_they_arrive(case):
    assert (np.diff(completed(replay(*case).requests)["first_scheduled_s"]) >= 0).all()


@LAW
@given(replay_cases(max_delay_s=0.0))
def test_steps_do_not_overlap_and_the_engine_is_idle_only_when_it_has_nothing_to_run(case):
    """Invariant 5 and Invariant 6."""
    result = replay(*case)
    steps, served = columns(result.steps), completed(result.requests)
    assert (steps["end_s"] > steps["start_s"]).all()
    starts = steps["start_s"]
    ends = np.concatenate([[0.0], steps["end_s"]])[: len(starts)]
    assert (np.diff(starts) >= 0).all()
    assert (np.diff(ends) >= 0).all()
    for start_s, previous_end_s in zip(starts, ends, strict=True):
        assert start_s >= previous_end_s or case[1].limits.inflight_steps > 1
        if start_s > previous_end_s:
            arrived = served["arrival_s"] <= previous_end_s
            assert (served["finish_s"][arrived] <= previous_end_s).all()
            assert start_s == served["arrival_s"][~arrived].min()


@LAW
@given(replay_cases())
def test_a_step_stays_within_budget_seats_and_pool(case):
    """Invariant 3."""
    trace, table = case
    steps = columns(replay(trace, table).steps)
    assert (steps["tokens"] >= 1).all()
    assert (steps["tokens"] <= table.limits.max_batched_tokens).all()
    assert (steps["sequences"] <= steps["running"]).all()
    assert (steps["running"] <= table.limits.max_running).all()
    assert (steps["kv_blocks"] >= steps["running"]).all()
    assert (steps["kv_blocks"] <= table.pool.blocks_count).all()
    assert (steps["tokens"] == steps["decode_sequences"] + steps["prefill_tokens"]).all()


@LAW
@given(replay_cases())
def test_running_and_waiting_are_the_requests_that_arrived_and_did_not_finish(case):
    """Invariant 1."""
    result = replay(*case)
    steps, served = columns(result.steps), completed(result.requests)
    for now_s, present in zip(steps["scheduled_s"], steps["running"] + steps["waiting"], strict=True):
        assert present == (served["arrival_s"] <= now_s).sum() - (served["finish_s"] <= now_s).sum()


@LAW
@given(replay_cases())
def test_a_step_is_composed_when_it_starts_or_when_a_step_in_flight_ends(case):
    """Invariant 5."""
    trace, table = case
    steps = columns(replay(trace, table).steps)
    many = 2 if table.limits.async_scheduling else table.limits.inflight_steps
    before_s = np.concatenate([np.zeros(many), steps["end_s"]])[: len(steps["end_s"])]  # end of the step that had to end first
    assert (np.diff(steps["scheduled_s"]) >= 0).all()
    assert (steps["scheduled_s"] >= before_s).all()
    if table.limits.inflight_steps > 1:
        assert (steps["scheduled_s"] <= steps["start_s"]).all()
        others = np.concatenate([steps["end_s"], trace.requests["arrival_s"].to_numpy()])
        delay_s = table.limits.max_delay_s if table.limits.scheduler == "static" else 0.0
        assert np.isin(steps["scheduled_s"], np.concatenate([others, trace.requests["arrival_s"].to_numpy() + delay_s])).all()
    elif table.limits.async_scheduling:
        starts_late = steps["scheduled_s"] < steps["start_s"]
        assert (steps["start_s"][1:] == steps["end_s"][:-1])[starts_late[1:]].all()
    else:
        assert (steps["scheduled_s"] == steps["start_s"]).all()


@LAW
@given(replay_cases(preemption="recompute"))
def test_prompts_and_decodes_share_steps_only_where_prompts_are_cut(case):
    trace, table = case
    steps = columns(replay(trace, table).steps)
    if table.limits.scheduler != "chunked":
        prefills = steps["prefill_tokens"] > 0
        assert (steps["decode_sequences"][prefills] == 0).all()
        free = table.pool.blocks_count - steps["kv_blocks"][prefills]
        assert (free >= table.watermark_blocks).all()
        if table.limits.scheduler == "static":
            assert (steps["sequences"] == steps["running"])[prefills].all()


@LAW
@given(replay_cases(kv_policy="reserve"))
def test_whoever_has_reserved_its_room_is_never_preempted(case):
    result = replay(*case)
    assert sum(result.steps["preemptions"].to_pylist()) == sum(result.requests["preemptions"].to_pylist()) == 0


@LAW
@given(replay_cases(inflight_steps=1), st.integers(1, 40), st.integers(1, 12))
def test_a_lone_request_takes_as_long_with_several_steps_in_flight_as_with_one(case, prompt_tokens, output_tokens):
    _, table = case
    trace = make_trace([0.0], [prompt_tokens], [output_tokens])
    rules = [{"async_scheduling": False}, {"async_scheduling": True}, {"async_scheduling": False, "inflight_steps": 3}]
    one, *others = (replay(trace, replace(table, limits=replace(table.limits, **rule))) for rule in rules)
    for other in others:
        assert one.requests == other.requests
        assert one.steps.drop_columns("scheduled_s") == other.steps.drop_columns("scheduled_s")


@LAW
@given(replay_cases(ample=True, scheduler="chunked"))
def test_nobody_waits_while_a_step_has_budget_and_a_seat_left(case):
    """Invariant 6."""
    trace, table = case
    steps = columns(replay(trace, table).steps)
    full = (steps["tokens"] == table.limits.max_batched_tokens) | (steps["running"] == table.limits.max_running)
    assert full[steps["waiting"] > 0].all()


@LAW
@given(replay_cases())
def test_tokens_are_conserved(case):
    """Invariant 2."""
    result = replay(*case)
    steps, served = columns(result.steps), completed(result.requests)
    new_tokens = steps["tokens"] - steps["recomputed_tokens"] + steps["prefix_hit_tokens"]
    assert new_tokens.sum() == (served["prompt_tokens"] + served["output_tokens"] - 1).sum()
    assert steps["prefix_hit_tokens"].sum() == served["prefix_hit_tokens"].sum()
    assert (served["prefix_hit_tokens"] < served["prompt_tokens"]).all()
    assert steps["output_tokens"].sum() == served["output_tokens"].sum()
    assert steps["preemptions"].sum() == served["preemptions"].sum()
    assert (steps["recomputed_tokens"] <= steps["prefill_tokens"]).all()


@LAW
@given(replay_cases())
def test_gaps_between_tokens_are_all_there_and_the_longest_is_some_requests_worst(case):
    result = replay(*case)
    gaps, served = columns(result.token_gaps), completed(result.requests)
    assert gaps["tokens"].sum() == (served["output_tokens"] - 1).sum()
    assert (gaps["tokens"] >= 1).all()
    assert gaps["gap_s"].max(initial=0.0) == np.nan_to_num(served["worst_itl_s"]).max(initial=0.0)
    first_to_last_s = (served["finish_s"] - served["first_token_s"]).sum()
    np.testing.assert_allclose((gaps["gap_s"] * gaps["tokens"]).sum(), first_to_last_s, rtol=1e-9, atol=1e-12)


@LAW
@given(replay_cases(), st.integers(1, 40))
def test_all_blocks_are_returned(case, prompt_tokens):
    """Invariant 3."""
    trace, table = case
    first = replay(trace, table)
    late_s = 1.0 + (first.steps["end_s"][-1].as_py() if first.steps.num_rows else 0.0)
    fields = {name: trace.requests[name].to_pylist() for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    late = max(late_s, fields["arrival_s"][-1] + 1.0)
    longer = make_trace([*fields["arrival_s"], late], [*fields["prompt_tokens"], prompt_tokens], [*fields["output_tokens"], 1])
    result = replay(longer, table)
    lone = [step["kv_blocks"] for step in result.steps.to_pylist() if step["start_s"] >= late]
    blocks = -(-prompt_tokens // table.pool.block_tokens)
    assert lone == sorted(lone)
    assert lone[-1:] in ([blocks], [])
    assert bool(lone) == (result.requests["status"][-1].as_py() == "completed")


@LAW
@given(replay_cases(), st.randoms(use_true_random=False))
def test_shuffling_rows_with_distinct_arrivals_changes_nothing(case, random):
    """Invariant 7."""
    trace, table = case
    count = trace.requests.num_rows
    in_order = retimed(trace, trace.requests["arrival_s"].to_numpy() + np.arange(count) * 1e-3)
    places = list(range(count))
    random.shuffle(places)
    shuffled = replace(in_order, requests=in_order.requests.take(places))
    expected, result = replay(in_order, table), replay(shuffled, table)
    assert result.requests == expected.requests.take(places)
    assert result.steps == expected.steps


@LAW
@given(replay_cases(), st.sampled_from([0.25, 2.0, 1024.0]))
def test_scaling_all_times_scales_all_times(case, factor):
    trace, table = case
    slow = replay(retimed(trace, trace.requests["arrival_s"].to_numpy() * factor), scaled(table, factor))
    for before, after in zip((replay(trace, table).requests, replay(trace, table).steps), (slow.requests, slow.steps), strict=True):
        for name in before.column_names:
            old = before[name].to_pylist()
            want = [None if value is None else value * factor for value in old] if name.endswith("_s") else old
            assert after[name].to_pylist() == want, name  # a power of two: no rounding


@LAW
@given(replay_cases())
def test_layer_times_add_up_to_busy_time_and_windows_to_layers(case):
    run = assembled(*case)
    busy_s = run.busy_s
    steps = columns(run.steps)
    worked_s = np.maximum(steps["device_s"], steps["host_s"]).sum()
    np.testing.assert_allclose(run.layers["time_s"].to_numpy().sum(), worked_s, rtol=1e-9, atol=1e-12)
    assert busy_s <= worked_s * (1 + 1e-9)
    if case[1].limits.inflight_steps == 1:
        np.testing.assert_allclose(busy_s, worked_s, rtol=1e-9, atol=1e-12)
    for layer in run.layers.to_pylist():
        windows = columns(run.windows.filter(pa.compute.equal(run.windows["layer_type"], layer["layer_type"])))
        for name in ("time_s", "memory_stall_s", "flops"):
            np.testing.assert_allclose(windows[name].sum(), layer[name], rtol=1e-9, atol=1e-12)
        assert -1e-12 <= layer["memory_stall_s"] <= layer["time_s"] * (1 + 1e-12)
    whole = columns(run.windows.filter(pa.compute.equal(run.windows["layer_type"], "all")))
    np.testing.assert_allclose(whole["time_s"].sum(), busy_s, rtol=1e-9, atol=1e-12)
    assert (whole["memory_stall_s"] <= whole["time_s"] * (1 + 1e-9) + 1e-12).all()
    served = completed(run.requests)
    assert whole["tokens"].sum() == (served["prompt_tokens"] + served["output_tokens"] - served["prefix_hit_tokens"]).sum()


@LAW
@given(replay_cases(ample=True, preemption="recompute"))
def test_a_prefix_cache_changes_nothing_where_no_two_prompts_begin_alike(case):
    trace, table = case
    unique = pa.array([[index] for index in range(trace.requests.num_rows)], pa.list_(pa.int64()))
    place = trace.requests.column_names.index("prefix_blocks")
    apart = replace(trace, requests=trace.requests.set_column(place, TRACE_SCHEMA.field("prefix_blocks"), unique))
    off, on = (replay(apart, replace(table, limits=replace(table.limits, prefix_cache=on))) for on in (False, True))
    assert off == on


@LAW
@given(replay_cases(ample=True))
def test_in_an_ample_cache_a_request_finds_what_any_request_before_it_has_computed(case):
    trace, _ = case
    block, known = 3, set()
    table = linear_table(step_s=0.01, limits=make_limits(prefix_cache=True), pool=make_pool(block_tokens=block))
    for row, hit in zip(trace.requests.to_pylist(), replay(trace, table).requests["prefix_hit_tokens"].to_pylist(), strict=True):
        ends = range(block, row["prompt_tokens"] + 1, block)
        depths = [-(-end // trace.provenance.prefix_block_tokens) for end in ends]
        names = [tuple(row["prefix_blocks"][:depth]) if depth <= len(row["prefix_blocks"]) else None for depth in depths]
        found = [name is not None and (place, name) in known for place, name in enumerate(names)]
        usable = [*found, False].index(False)
        assert hit == min(usable, (row["prompt_tokens"] - 1) // block) * block
        known |= set(enumerate(names))


@LAW
@given(replay_cases(ample=True), st.integers(1, 5), st.integers(1, 64))
def test_needed_flops_belong_to_the_trace_and_not_to_the_schedule(case, max_running, max_batched_tokens):
    trace, _ = case
    limits = make_limits(max_running, max_batched_tokens)
    run = assembled(trace, linear_table(step_s=0.01, limits=limits))
    prompt, output = (trace.requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens"))
    cached = prompt + output - 1
    expected = {"mlp": cached.sum(), "lm_head": output.sum(), "attention": (cached * (cached + 1) // 2).sum(), "host": 0}
    assert dict(zip(run.layers["layer_type"].to_pylist(), run.layers["flops"].to_pylist(), strict=True)) == expected


def test_recomputation_adds_time_but_no_flops():
    trace = make_trace([0.0, 0.0], [7, 5], [4, 5])
    limits = make_limits(max_running=2, max_batched_tokens=16)
    roomy = assembled(trace, linear_table(step_s=1.0, limits=limits))
    tight = assembled(trace, linear_table(step_s=1.0, limits=limits, pool=make_pool(blocks_count=4, block_tokens=4)))
    assert tight.busy_s > roomy.busy_s
    flops = [dict(zip(run.layers["layer_type"].to_pylist(), run.layers["flops"].to_pylist(), strict=True)) for run in (roomy, tight)]
    for layer in ("mlp", "lm_head"):
        assert flops[0][layer] == flops[1][layer]
    # Of the seven recomputed tokens' 28 pairs, 1/7 counts as new; the only new token really has 7.
    assert flops[1]["attention"] == flops[0]["attention"] - 7 + 28 / 7
