"""Kernels that are compiled when they are needed, against cases worked by hand; `test_loop_equals_twin` draws others."""

import numpy as np
import pytest

from replay.assembly.assemble import assemble
from replay.execution.engine import replay
from tests.execution.replay_cases import columns
from tests.step_tables import captured_table, constant_table, make_limits, make_trace

ARRIVALS, PROMPTS = [0.0, 10.0, 20.0, 30.0, 40.0], [3, 4, 9, 100, 10]


def served(**rules):
    """Steps and requests of five prompts that do not meet: variants up to 4, 8 and 16 tokens, 2 s each; a step takes 0.5 s."""
    limits = make_limits(max_batched_tokens=128, compile_bins=(4, 8, 16), compile_variant_s=2.0, **rules)
    table = constant_table(0.5, limits=limits, capture=captured_table(limits, [4, 16, 128]), host_launch_s=0.25, launches_count=4)
    trace = make_trace(ARRIVALS, PROMPTS, [1] * 5)
    done = replay(trace, table)
    return trace, table, done


def test_only_the_first_step_of_a_bin_waits():
    _, _, done = served()
    assert columns(done.steps)["compile_s"].tolist() == [2.0, 0.0, 2.0, 0.0, 0.0]  # 3 and 4 tokens, 9 and 10; 100 need none
    np.testing.assert_allclose(columns(done.requests)["finish_s"] - ARRIVALS, [2.5, 0.5, 2.5, 0.5, 0.5])


def test_a_server_that_compiles_at_start_lets_the_first_requests_wait_and_one_that_did_before_none():
    assert columns(served(compile_warmup="at_start")[2].requests)["finish_s"][:2].tolist() == [6.5, 10.5]
    assert columns(served(compile_warmup="before_ready")[2].requests)["finish_s"][:2].tolist() == [0.5, 10.5]


def test_steps_beyond_the_last_variant_run_eagerly():
    _, _, done = served(compile_max_variants=1)
    steps = columns(done.steps)
    assert steps["compile_s"].tolist() == [2.0, 0.0, 0.0, 0.0, 0.0]
    assert steps["captured_tokens"].tolist() == [4, 4, 0, 128, 0]
    assert steps["host_s"][2] == 4 * 0.25


def test_the_wait_counts_as_host_time_and_as_busy():
    trace, table, done = served()
    run = assemble(trace=trace, table=table, replayed=done, model="m", hardware="h", mapping_digest="", seed=0)
    host = dict(zip(run.layers["layer_type"].to_pylist(), run.layers["time_s"].to_pylist(), strict=True))["host"]
    assert host == pytest.approx(4.0)
    assert run.busy_s == pytest.approx(4.0 + 5 * 0.5)
