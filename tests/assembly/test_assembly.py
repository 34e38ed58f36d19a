"""Metrics, layers, windows and summary against figures worked by hand."""

import numpy as np
import pyarrow as pa
import pytest

from replay.assembly.assemble import assemble, summary
from replay.assembly.layers import LayerSums
from replay.assembly.metrics import request_metrics
from replay.assembly.run import LAYERS_SCHEMA, METRICS_SCHEMA, WINDOWS_SCHEMA
from replay.assembly.windows import window_length_s
from replay.errors import InvariantError
from replay.execution.engine import replay
from tests.step_tables import captured_table, constant_table, linear_table, make_limits, make_pool, make_trace, powered


def assembled(trace, table, **more):
    return assemble(
        trace=trace, table=table, replayed=replay(trace, table, **more), model="m", hardware="h", mapping_digest="sha256:0", seed=1, **more
    )


def rows(table, key):
    return {row[key]: row for row in table.to_pylist()}


def test_metrics_count_from_the_scheduled_arrival():
    trace = make_trace([0.0, 0.5, 3.25], [4, 4, 4], [3, 1, 50])
    table = constant_table(1.0, limits=make_limits(max_running=1, max_context_tokens=20))
    metrics = request_metrics(replay(trace, table))
    assert metrics.schema.equals(METRICS_SCHEMA)
    first, second, never = metrics.to_pylist()
    assert [first[name] for name in ("queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s")] == [0.0, 1.0, 1.0, 1.0, 3.0]
    assert [second[name] for name in ("queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s")] == [2.5, 3.5, None, None, 3.5]
    assert [never[name] for name in ("queue_s", "ttft_s", "tpot_s", "itl_s", "e2e_s")] == [None] * 5
    assert never["status"] == "never_fits"


def test_time_per_token_is_the_mean_gap_and_itl_the_worst():
    # Blocks of four tokens: the second request loses its place at 2 s and returns at 4 s (see the schedules worked by hand).
    trace = make_trace([0.0, 0.0], [7, 5], [4, 5])
    table = constant_table(1.0, limits=make_limits(max_running=2, max_batched_tokens=16), pool=make_pool(blocks_count=4, block_tokens=4))
    second = request_metrics(replay(trace, table)).to_pylist()[1]
    assert (second["tpot_s"], second["itl_s"], second["preemptions_per_request"]) == ((7 - 1) / 4, 3.0, 1)


def test_layers_hold_time_stall_and_flops_of_their_kernels_and_the_host_the_rest():
    # Two steps of one sequence: 6 prompt tokens, then 1. The body needs max(0.5 + 0.25 x tokens, 1.5) s; launching takes 1.75 s.
    table = linear_table(
        step_s=0.5, per_token_s=0.25, memory_step_s=1.5, per_sequence_s=0.125, per_pair_s=0.0625, host_launch_s=1.75, launches_count=1
    )
    run = assembled(make_trace([0.0], [6], [2]), table)
    assert run.layers.schema.equals(LAYERS_SCHEMA)
    layers = rows(run.layers, "layer_type")
    assert list(layers) == ["mlp", "lm_head", "attention", "host"]
    mlp, attention, host = layers["mlp"], layers["attention"], layers["host"]
    assert (mlp["time_s"], mlp["compute_s"], mlp["memory_s"]) == (2.0 + 1.5, 2.0 + 0.75, 3.0)
    assert (mlp["memory_stall_s"], mlp["memory_stall_ratio"]) == (0.75, 0.75 / 3.5)
    assert (mlp["flops"], mlp["bytes"]) == (7.0, 200.0)
    assert (layers["lm_head"]["time_s"], layers["lm_head"]["flops"]) == (0.25, 2.0)
    assert (attention["time_s"], attention["flops"], attention["bytes"]) == (21 * 0.0625, 21 + 7, 21 + 7)
    assert (host["time_s"], host["launch_s"], host["memory_stall_ratio"]) == (1.75 - (1.5 + 0.125), 1.75 - (1.5 + 0.125), 0.0)
    assert run.busy_s == sum(layer["time_s"] for layer in layers.values())


def test_padding_of_a_captured_graph_costs_time_but_counts_no_flops():
    limits = make_limits(max_batched_tokens=8)
    trace = make_trace([0.0], [1], [4])
    padded = assembled(trace, linear_table(per_token_s=1.0, limits=limits, capture=captured_table(limits, [8])))
    exact = assembled(trace, linear_table(per_token_s=1.0, limits=limits))
    assert (padded.busy_s, exact.busy_s) == (32.0, 4.0)
    assert rows(padded.layers, "layer_type")["mlp"]["flops"] == rows(exact.layers, "layer_type")["mlp"]["flops"] == 4.0


def test_a_kernel_factor_scales_the_layers_as_it_scaled_the_replay():
    trace, table = make_trace([0.0], [6], [2]), linear_table(step_s=0.5, memory_step_s=1.5)
    slow = rows(assembled(trace, table, kernel_factors={"body": 2.0}).layers, "layer_type")["mlp"]
    assert (slow["time_s"], slow["memory_stall_s"], slow["flops"]) == (6.0, 4.0, 7.0)


@pytest.mark.parametrize(("other", "factors"), [(constant_table(1.0 + 1e-6), None), (constant_table(1.0), {"body": 1.01})])
def test_another_table_or_factor_than_the_replays_own_is_a_bug(other, factors):
    result = replay(make_trace([0.0], [6], [2]), constant_table(1.0))
    sums = LayerSums(other, window_s=1.0, kernel_factors=factors)
    sums.add(result, 3)
    with pytest.raises(InvariantError, match="the replay took 2"):
        sums.shares(3)


def test_a_step_belongs_to_the_window_where_it_starts_and_idle_windows_are_present():
    # Windows of 1 s over a span of 25 s. Steps of 0.75 s: two from time 0 on, one at the end; a second request arrives at 25 s.
    run = assembled(make_trace([0.0, 25.0], [3, 5], [2, 1]), constant_table(0.75))
    assert run.window_s == 1.0
    assert run.windows.schema.equals(WINDOWS_SCHEMA)
    assert run.windows["window"].to_pylist() == [window for window in range(26) for _ in range(5)]
    assert run.windows["layer_type"].to_pylist() == ["mlp", "lm_head", "attention", "host", "all"] * 26
    whole = run.windows.filter(pa.compute.equal(run.windows["layer_type"], "all")).to_pylist()
    assert [(row["time_s"], row["tokens"]) for row in whole] == [(1.5, 3 + 2), *[(0.0, 0)] * 24, (0.75, 5 + 1)]
    assert (whole[0]["flops"], whole[-1]["flops"]) == (4 + 2 + 6 + 4, 5 + 1 + 15)


def test_windows_reach_to_the_last_step_of_an_overload():
    run = assembled(make_trace([0.0, 1.0], [3, 3], [1, 9]), constant_table(2.0))
    assert run.window_s == 0.1
    whole = run.windows.filter(pa.compute.equal(run.windows["layer_type"], "all"))
    assert whole.num_rows == 181  # the last step starts at 18 s
    assert whole["time_s"].to_numpy().sum() == run.busy_s == 20.0


def test_first_tokens_are_found_where_a_replica_that_started_first_ends_last():
    # Windows of 0.1 s. Twenty tokens from 0 s to 20 s on one replica, one token from 0.5 s to 1.5 s on the other.
    run = assembled(make_trace([0.0, 0.5], [20, 1], [1, 1]), linear_table(per_token_s=1.0, limits=make_limits(replicas_count=2)))
    whole = run.windows.filter(pa.compute.equal(run.windows["layer_type"], "all"))["tokens"].to_pylist()
    assert (whole[0], whole[5], sum(whole)) == (21, 2, 23)


@pytest.mark.parametrize(("span_s", "window_s"), [(0.0, 0.1), (1e-300, 0.1), (5.0, 0.2), (1000.0, 40.0), (1500.0, 60.0), (86400.0, 60.0)])
def test_window_length_depends_on_the_span_of_the_trace_alone(span_s, window_s):
    assert window_length_s(make_trace([0.0, span_s], [1, 1], [1, 1])) == window_s


def test_the_summary_is_worked_out_over_busy_time_and_over_the_span():
    # Served one at a time from 0, 1 and 10 s in steps of one second: busy for 6 s of 12 s.
    trace = make_trace([0.0, 1.0, 10.0, 11.0], [4, 4, 4, 99], [2, 2, 2, 2])
    table = constant_table(1.0, limits=make_limits(max_running=1, max_context_tokens=100), reference_flops_per_s=10.0)
    figures = summary(assembled(trace, table))
    flops = 3 * (5 + 2 + 15)
    assert figures["requests_count"] == 4
    assert figures["completed_count"] == 3
    assert figures["rejected"] == {"context_limit": 1}
    assert figures["steps_count"] == 6
    assert (figures["busy_s"], figures["span_s"], figures["busy_ratio"]) == (6.0, 12.0, 0.5)
    assert figures["tokens"] == 18
    assert (figures["throughput_tokens_per_s"], figures["wall_clock_throughput_tokens_per_s"]) == (3.0, 1.5)
    assert (figures["flops"], figures["sustained_flops_per_s"]) == (flops, flops / 6)
    assert (figures["mfu_ratio"], figures["wall_clock_mfu_ratio"]) == (flops / 60, flops / 120)
    assert figures["memory_stall_ratio"] == {"mlp": 0.0, "lm_head": 0.0, "attention": 0.0, "host": 0.0, "all": 0.0}
    assert figures["percentiles"]["queue_s"] == {"p50": 0.0, "p95": 1.0, "p99": 1.0}
    assert figures["percentiles"]["tpot_s"] == {"p50": 1.0, "p95": 1.0, "p99": 1.0}


def test_percentiles_of_gaps_are_over_tokens_and_not_over_requests():
    # Blocks of four tokens: the first request's gaps are three of one second, the second's three of one and one of three.
    trace = make_trace([0.0, 0.0], [7, 5], [4, 5])
    table = constant_table(1.0, limits=make_limits(max_running=2, max_batched_tokens=16), pool=make_pool(blocks_count=4, block_tokens=4))
    run = assembled(trace, table)
    assert sorted((row["gap_s"], row["tokens"]) for row in run.token_gaps.to_pylist()) == [(1, 1), (1, 1), (1, 1), (1, 1), (1, 2), (3, 1)]
    assert summary(run)["percentiles"]["token_gap_s"] == {"p50": 1.0, "p95": 3.0, "p99": 3.0}


def test_a_run_in_which_nothing_fits_has_empty_tables_and_no_percentiles():
    run = assembled(make_trace([0.0, 30.0], [3, 3], [1, 1]), constant_table(1.0, pool=make_pool(blocks_count=0)))
    assert run.rejected == (("kv_capacity", 2),)
    assert run.busy_s == 0.0
    assert set(run.layers["time_s"].to_pylist()) == {0.0}
    assert run.windows.num_rows == 26 * 5
    figures = summary(run)
    assert figures["percentiles"]["ttft_s"] == {"p50": None, "p95": None, "p99": None}
    assert (figures["busy_ratio"], figures["mfu_ratio"], figures["completed_count"]) == (0.0, 0.0, 0)


def test_reasons_for_rejection_name_the_limit_that_binds_first():
    table = constant_table(1.0, limits=make_limits(max_context_tokens=20), pool=make_pool(blocks_count=2, block_tokens=4))
    run = assembled(make_trace([0.0] * 3, [30, 10, 4], [1, 1, 4]), table)
    assert run.rejected == (("context_limit", 1), ("kv_capacity", 1))
    assert np.isfinite(run.requests["e2e_s"][2].as_py())


def test_windows_hold_the_energy_between_their_edges_and_what_it_comes_to_by_token():
    # Windows of 1 s. Each request is one step of 1.5 s that draws 100 W and 30 J of FLOPs and 101 J of bytes on top.
    trace = make_trace([0.0, 25.0], [1, 1], [1, 1])
    heat = {"thermal_resistance_k_per_w": 0.1, "thermal_s": 1.5}
    run = assembled(trace, powered(constant_table(1.5), flop_energy_j=10.0, memory_energy_j_per_byte=1.0, ranks_count=1, **heat))
    windows = run.windows.filter(pa.compute.equal(run.windows["layer_type"], "all")).to_pylist()
    assert [window["energy_j"] for window in windows] == pytest.approx([100 + 131 * 2 / 3, 100 + 131 / 3, *[100.0] * 23, 150 + 131])
    assert [windows[place]["power_w"] for place in (0, 2, 25)] == pytest.approx([100 + 131 * 2 / 3, 100.0, 281 / 1.5])
    assert windows[0]["joules_per_token"] == windows[0]["joules_per_output_token"] / 2 == pytest.approx((100 + 131 * 2 / 3) / 2)
    peak_c = 40 + 0.1 * 131 / 1.5 * (1 - np.exp(-1.0))
    assert windows[0]["temperature_c"] == pytest.approx(peak_c)
    assert windows[25]["temperature_c"] == pytest.approx(peak_c, rel=1e-6)
    assert [windows[0]["clock_hz"], windows[1]["clock_hz"], windows[1]["temperature_c"], windows[1]["joules_per_token"]] == [1e9] + [
        None
    ] * 3
    figures = summary(run)
    assert figures["energy_j"] == pytest.approx(26.5 * 100 + 2 * 131)
    assert figures["joules_per_token"] == pytest.approx(figures["energy_j"] / 4)
    assert figures["joules_per_output_token"] == pytest.approx(figures["energy_j"] / 2)


def test_the_energy_of_replicas_adds_up_where_their_steps_overlap_and_while_kernels_are_compiled_none_is_active():
    # Windows of 1 s, two replicas that idle at 100 W each. Steps run 1.5 s, each after 0.5 s of compiling, from 0 and from 0.25 s on.
    limits = make_limits(replicas_count=2, compile_bins=(64,), compile_variant_s=0.5)
    table = powered(constant_table(1.5, limits=limits), flop_energy_j=10.0, memory_energy_j_per_byte=1.0)
    run = assembled(make_trace([0.0, 0.25, 25.0], [1, 1, 1], [1, 1, 1]), table)
    windows = run.windows.filter(pa.compute.equal(run.windows["layer_type"], "all")).to_pylist()
    per_s = 131 / 1.5
    energy_j = [200 + 0.75 * per_s, 200 + 2.0 * per_s, 200 + 0.25 * per_s, *[200.0] * 22, 300 + 131]
    assert [window["energy_j"] for window in windows] == pytest.approx(energy_j)
    assert windows[0]["power_w"] == pytest.approx(energy_j[0] / 2)
    assert windows[25]["power_w"] == pytest.approx((300 + 131) / 3.0)
    assert summary(run)["energy_j"] == pytest.approx(26.5 * 200 + 3 * 131)


def test_first_tokens_count_where_the_step_of_their_own_replica_starts():
    # Windows of 1 s. The long prompt's step, on the other replica, starts first and ends last.
    table = linear_table(per_token_s=1.0, limits=make_limits(replicas_count=2))
    run = assembled(make_trace([0.0, 1.0, 25.0, 25.0], [5, 1, 1, 1], [1, 1, 1, 1]), table)
    windows = run.windows.filter(pa.compute.equal(run.windows["layer_type"], "all")).to_pylist()
    assert [window["tokens"] for window in windows] == [6, 2, *[0] * 23, 4]


def test_layers_hold_what_kernels_took_at_their_clock():
    table = linear_table(step_s=0.5, per_token_s=0.25, memory_step_s=1.5, per_sequence_s=0.125, per_pair_s=0.0625)
    full, half = (
        rows(assembled(make_trace([0.0], [6], [2]), one).layers, "layer_type") for one in (table, powered(table, clocks_hz=[0.5e9]))
    )
    assert (full["mlp"]["time_s"], half["mlp"]["time_s"]) == (2.0 + 1.5, 4.0 + 1.5)
    assert (half["mlp"]["compute_s"], half["mlp"]["memory_s"]) == (2 * full["mlp"]["compute_s"], full["mlp"]["memory_s"])
    assert half["mlp"]["memory_stall_s"] == 0.0
    for layer in ("lm_head", "attention"):
        assert half[layer]["time_s"] == 2 * full[layer]["time_s"]
        assert (half[layer]["flops"], half[layer]["bytes"]) == (full[layer]["flops"], full[layer]["bytes"])
