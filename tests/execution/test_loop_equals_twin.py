"""The compiled loop, its plain twin and the vectorised prices say the same."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.execution import loop_arrays, replica
from replay.execution.engine import replay
from replay.execution.replica import StepNoise
from replay.execution.step_costs import step_seconds
from replay.execution.twin import replay_twin
from replay.ingress.trace import TRACE_SCHEMA
from tests.execution.replay_cases import columns, crowded_cases, replay_cases
from tests.step_tables import captured_table, constant_table, make_limits, make_pool, make_trace, powered, random_table


def distribution(result):
    """Output tokens by the gap before them."""
    counts = Counter()
    for row in result.token_gaps.to_pylist():
        counts[row["gap_s"]] += row["tokens"]
    return counts


def crowded_case(seed=0, budget=24, **rules):
    """Five sequences that outgrow their pool again and again."""
    limits = make_limits(max_running=5, max_batched_tokens=budget, window_tokens=9, **rules)
    pool = make_pool(blocks_count=12, block_tokens=3)
    table = random_table(
        seed, limits=limits, pool=pool, capture=captured_table(limits, [size for size in (2, 4, 8) if size <= budget], decode_only=True)
    )
    return make_trace([0.0, 0.0, 0.001, 0.002, 0.5, 0.5], [8, 6, 5, 9, 30, 7], [12, 14, 9, 11, 4, 40]), table


def urgent_case(seed=0, **rules):
    """The crowded sequences in a queue by priority, those that came first the least urgent."""
    trace, table = crowded_case(seed, queue="priority", **rules)
    place = trace.requests.column_names.index("priority")
    requests = trace.requests.set_column(place, TRACE_SCHEMA.field("priority"), pa.array([3, 2, 2, -1, None, 0], pa.int64()))
    return replace(trace, requests=requests), table


def quiet_case(seed=0, **rules):
    """Long stretches of pure decode: past block edges and the window, with arrivals that wait for seats, and one that does not."""
    limits = make_limits(max_running=3, max_batched_tokens=12, window_tokens=40, **rules)
    pool = make_pool(blocks_count=60, block_tokens=4)
    table = random_table(seed, limits=limits, pool=pool, capture=captured_table(limits, [3]))
    return make_trace([0.0, 0.0, 0.0, 0.01, 0.02, 0.9], [9, 4, 12, 3, 8, 2], [70, 45, 60, 50, 30, 25]), table


@settings(max_examples=150, deadline=None)
@given(replay_cases(compiles=True) | crowded_cases(compiles=True))
@example(crowded_case())
@example(quiet_case())
@example(quiet_case(1))
@example(crowded_case(async_scheduling=True))
@example(quiet_case(async_scheduling=True))
@example(urgent_case())
@example(urgent_case(async_scheduling=True, preemption="swap"))
@example(urgent_case(prefix_cache=True, unfit="skip"))
@example(crowded_case(preemption="swap", unfit="skip"))
@example(crowded_case(scheduler="prefill_first", max_context_tokens=24, preemption="swap"))
@example(crowded_case(budget=5, inflight_steps=3))  # a preempted sequence could return before its token is out
@example(crowded_case(budget=3, inflight_steps=4, prefix_cache=True))
@example(quiet_case(inflight_steps=2))
@example(urgent_case(budget=5, inflight_steps=3))
@example(urgent_case(budget=5, inflight_steps=3, preemption="swap", unfit="skip"))
@example(crowded_case(budget=5, inflight_steps=4, preemption="swap", unfit="skip"))
def test_loop_and_twin_give_equal_tables_bit_by_bit(case):
    """Invariant 9."""
    trace, table = case
    compiled, plain = replay(trace, table), replay_twin(trace, table)
    assert compiled.requests.equals(plain.requests)
    assert compiled.steps.equals(plain.steps)
    assert distribution(compiled) == distribution(plain)


@settings(max_examples=100, deadline=None)
@given(
    replay_cases(powered=True, compiles=True) | crowded_cases(powered=True, compiles=True),
    st.lists(st.floats(0.5, 2.0), min_size=8, max_size=8),
)
def test_loop_and_twin_agree_on_clocks_energies_and_temperatures(case, factors):
    """Invariant 9."""
    trace, table = case
    named = dict(zip(table.kernels["kernel"].to_pylist(), factors, strict=True))
    compiled, plain = replay(trace, table, kernel_factors=named), replay_twin(trace, table, kernel_factors=named)
    assert compiled.requests.equals(plain.requests)
    assert compiled.steps.equals(plain.steps)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("asynchronous", [False, True])
def test_long_replays_at_many_clocks_agree_and_can_be_drained_in_the_middle(monkeypatch, seed, asynchronous):
    trace, table = quiet_case(seed, async_scheduling=asynchronous)
    clocks_hz = np.linspace(1e9, 0.2e9, 50)
    board = {"clocks_hz": clocks_hz, "memory_energy_j_per_byte": 60.0, "average_s": 0.5}
    free = columns(replay(trace, powered(table, **board)).steps)
    mean_w = free["energy_j"].sum() / (free["end_s"] - free["start_s"]).sum()
    table = powered(table, **board, cap_w=100.0 + 0.8 * (mean_w - 100.0))
    whole = replay(trace, table)
    assert len(set(whole.steps["clock_hz"].to_pylist())) >= 4
    assert whole.steps.equals(replay_twin(trace, table).steps)
    monkeypatch.setattr(replica, "RECORD_STEPS", 7)
    assert replay(trace, table) == whole


def test_the_crowded_example_preempts_and_rejects():
    trace, table = crowded_case()
    result = replay(trace, table)
    assert sum(result.requests["preemptions"].to_pylist()) > 3
    assert sum(result.steps["recomputed_tokens"].to_pylist()) > 0
    assert result.requests["status"].to_pylist()[-1] == "never_fits"
    assert {0, 2, 4} <= set(result.steps["captured_tokens"].to_pylist())


@settings(max_examples=50, deadline=None)
@given(replay_cases(), st.lists(st.floats(0.5, 2.0), min_size=8, max_size=8))
def test_loop_and_twin_agree_under_kernel_factors(case, factors):
    trace, table = case
    named = dict(zip(table.kernels["kernel"].to_pylist(), factors, strict=True))
    compiled, plain = replay(trace, table, kernel_factors=named), replay_twin(trace, table, kernel_factors=named)
    assert compiled.requests.equals(plain.requests)
    assert compiled.steps.equals(plain.steps)
    assert distribution(compiled) == distribution(plain)


@settings(max_examples=80, deadline=None)
@given(replay_cases(), st.floats(0.1, 10.0))
def test_vectorised_prices_agree_with_the_loop_to_rounding(case, factor):
    trace, table = case
    factors = {"tokens_0": factor, "prefill_attention_1": factor}
    steps = replay(trace, table, kernel_factors=factors).steps
    seconds, recorded = step_seconds(table, steps, kernel_factors=factors), columns(steps)
    np.testing.assert_allclose(seconds.device_s, recorded["device_s"], rtol=1e-12)
    np.testing.assert_array_equal(seconds.host_s, recorded["host_s"])
    np.testing.assert_array_equal(seconds.captured_tokens, recorded["captured_tokens"])
    np.testing.assert_allclose(seconds.duration_s, np.maximum(recorded["device_s"], recorded["host_s"]), rtol=1e-12)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_draining_the_record_in_the_middle_changes_nothing(monkeypatch, asynchronous):
    trace, table = crowded_case(seed=3, async_scheduling=asynchronous)
    whole = replay(trace, table)
    for record_steps in (1, 7, whole.steps.num_rows):
        monkeypatch.setattr(replica, "RECORD_STEPS", record_steps)
        assert replay(trace, table) == whole


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_stack_of_gaps_is_written_down_and_begun_again(monkeypatch, asynchronous):
    monkeypatch.setattr(loop_arrays, "GAPS_KEPT", 2)
    trace, table = quiet_case(seed=4, async_scheduling=asynchronous)
    compiled, plain = replay(trace, table), replay_twin(trace, table)
    assert compiled.requests.equals(plain.requests)
    assert compiled.steps.equals(plain.steps)
    assert distribution(compiled) == distribution(plain)


def test_a_record_that_grows_beyond_its_first_room_keeps_every_step(monkeypatch):
    trace, table = quiet_case(seed=5)
    whole = replay(trace, table)
    monkeypatch.setattr(replica, "RECORD_STEPS", 5)
    monkeypatch.setattr(loop_arrays.StepColumns, "FIRST_STEPS", 5)
    monkeypatch.setattr(loop_arrays.StepColumns, "GROWTH_RATIO", 2)
    assert replay(trace, table) == whole


def test_a_hundred_thousand_equal_arrivals_are_served():
    count = 100_000
    result = replay(make_trace([0.0] * count, [3] * count, [2] * count), constant_table(0.001, limits=make_limits(256, 512)))
    assert result.requests["status"].to_pylist() == ["completed"] * count
    assert result.steps["waiting"][0].as_py() == count - 170 - 1  # 170 whole prompts of 3 tokens and the start of another fill 512


@pytest.mark.parametrize("module", ["replay.execution.engine", "replay.execution.twin", "replay.assembly.store"])
def test_importing_a_stage_does_not_import_the_compiler(module):
    code = f"import sys, {module}; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@settings(max_examples=80, deadline=None)
@given(replay_cases() | crowded_cases(), st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.5, 2.0)), min_size=1, max_size=20))
def test_loop_and_twin_agree_on_noise(case, drawn):
    trace, table = case
    limits = table.limits
    if limits.replicas_count > 1 or limits.prefill_replicas_count or trace.provenance.load is not None or table.power is not None:
        return
    drawn.sort()
    noise = StepNoise(until_s=np.array([until for until, _ in drawn]), factors=np.array([factor for _, factor in drawn]))
    compiled, plain = replay(trace, table, noise=noise), replay_twin(trace, table, noise=noise)
    assert compiled.requests.equals(plain.requests)
    assert compiled.steps.equals(plain.steps)


def test_noise_takes_the_factor_of_the_moment_at_which_a_step_starts():
    table = constant_table(0.1)
    trace = make_trace([0.0, 5.0], [1, 1], [4, 2])
    noise = StepNoise(until_s=np.array([0.15, 4.0, 5.0]), factors=np.array([1.0, 3.0, 0.5]))
    steps = replay(trace, table, noise=noise).steps
    plain = replay(trace, table).steps["device_s"].to_numpy()
    assert steps["device_s"].to_numpy() / plain == pytest.approx([1.0, 1.0, 3.0, 3.0, 0.5, 0.5])
    ones = StepNoise(until_s=np.array([1.0]), factors=np.array([1.0]))
    assert replay(trace, table, noise=ones).steps.equals(replay(trace, table).steps)


@pytest.mark.parametrize(
    ("until_s", "factors"), [([], []), ([1.0], [1.0, 2.0]), ([2.0, 1.0], [1.0, 1.0]), ([1.0], [-1.0]), ([1.0], [np.nan])]
)
def test_noise_that_is_none_is_refused(until_s, factors):
    case = make_trace([0.0], [1], [1]), constant_table(0.1)
    with pytest.raises(SpecError, match="noise"):
        replay(*case, noise=StepNoise(until_s=np.array(until_s), factors=np.array(factors)))
