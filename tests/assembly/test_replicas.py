"""What a fleet's steps add up to: windows, busy time and utilisation over all replicas."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

from replay.assembly.assemble import assemble, summary
from replay.execution.engine import replay
from tests.execution.replay_cases import completed
from tests.execution.test_fleet import fleet_cases
from tests.step_tables import linear_table, make_limits, make_trace


def run_of(trace, table):
    done = replay(trace, table)
    return done, assemble(trace=trace, table=table, replayed=done, model="m", hardware="h", mapping_digest="", seed=0)


@settings(max_examples=60, deadline=None)
@given(fleet_cases())
def test_windows_hold_every_token_and_all_busy_time_of_a_fleet(case):
    done, run = run_of(*case)
    whole = run.windows.filter(pc.equal(run.windows["layer_type"], "all"))
    served = completed(done.requests)
    computed = served["prompt_tokens"].sum() - served["prefix_hit_tokens"].sum() + served["output_tokens"].sum()
    assert sum(whole["tokens"].to_pylist()) == computed
    assert sum(whole["time_s"].to_pylist()) == pytest.approx(run.busy_s, rel=1e-12)
    assert 0.0 <= summary(run)["busy_ratio"] <= 1.0 + 1e-12


def test_a_first_token_counts_in_the_window_of_its_own_step():
    """Replica 0 computes 40 tokens from 0 to 2.5 s, meanwhile replica 1 one from 1 s to 1.55 s; windows are 1 s long."""
    limits = make_limits(replicas_count=2)
    trace = make_trace([0.0, 1.0, 1.6, 25.0], [40, 1, 1, 1], [1, 1, 1, 1])
    table = linear_table(step_s=0.5, per_token_s=0.05, limits=limits)
    done, run = run_of(trace, table)
    assert run.window_s == 1.0
    whole = run.windows.filter(pc.equal(run.windows["layer_type"], "all"))["tokens"].to_numpy()
    steps = done.steps.to_pylist()
    assert (np.diff([step["end_s"] for step in steps]) < 0).any()
    wanted = np.zeros(len(whole))
    for step in steps:
        wanted[int(step["start_s"])] += step["prefill_tokens"] + step["output_tokens"]
    np.testing.assert_array_equal(whole, wanted)


def test_two_replicas_that_halve_the_batches_sustain_what_one_does_at_half_the_utilisation():
    """As two ranks of a tensor-parallel group would: the figures are those of the whole fleet."""
    trace = make_trace([0.0] * 8, [4] * 8, [20] * 8)
    found = []
    for replicas in (1, 2):
        table = linear_table(step_s=0.5, limits=make_limits(replicas_count=replicas))
        place = table.kernels.schema.get_field_index("flops_per_token")
        kernels = table.kernels.set_column(place, table.kernels.schema.field(place), pa.array([7.0] * table.kernels.num_rows))
        found.append(summary(run_of(trace, replace(table, kernels=kernels))[1]))
    one, two = found
    assert two["busy_s"] == pytest.approx(2 * one["busy_s"])
    for name in ("throughput_tokens_per_s", "wall_clock_throughput_tokens_per_s", "sustained_flops_per_s"):
        assert one[name] > 0
        assert two[name] == pytest.approx(one[name])
    assert two["mfu_ratio"] == pytest.approx(one["mfu_ratio"] / 2)
