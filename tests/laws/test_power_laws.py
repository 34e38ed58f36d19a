"""Laws of power and heat."""

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.execution.engine import replay
from replay.execution.power_arrays import POWERED
from tests.assembly.test_assembly import assembled
from tests.execution.replay_cases import columns, replay_cases
from tests.step_tables import constant_table, linear_table, make_trace, powered

LAW = settings(max_examples=50, deadline=None)
CLOCKS_HZ = [1e9 - 1e7 * step for step in range(81)]
POWER_NAMES = list(POWERED.names)


def whole_windows(run):
    return run.windows.filter(pc.equal(run.windows["layer_type"], "all"))


def exponential_average(start, rest, drawn_w, idle_s, duration_s, constant_s):
    """The average at the end of each step: it nears `rest` + what is drawn, and `rest` while nothing runs."""
    averages = []
    for drawn, idle, duration in zip(drawn_w, idle_s, duration_s, strict=True):
        start = rest + (start - rest) * np.exp(-idle / constant_s)
        start = rest + drawn + (start - rest - drawn) * np.exp(-duration / constant_s)
        averages.append(start)
    return np.array(averages)


@LAW
@given(replay_cases(powered=True, compiles=True))
def test_every_clock_is_one_of_the_devices_and_every_step_draws_at_least_idle_power(case):
    trace, table = case
    steps = columns(replay(trace, table).steps)
    assert set(steps["clock_hz"]) <= set(table.power.clocks_hz)
    idle_j = table.power.ranks_count * table.power.idle_w * (steps["end_s"] - steps["start_s"])
    assert (steps["energy_j"] >= idle_j * (1 - 1e-9)).all()
    assert (steps["temperature_c"] >= table.power.ambient_c).all()


@LAW
@given(replay_cases(powered=True))
def test_the_limits_are_kept_after_every_step_that_does_not_run_at_the_lowest_clock(case):
    trace, table = case
    power, steps = table.power, columns(replay(trace, table).steps)
    duration_s = steps["end_s"] - steps["start_s"]
    idle_s = np.maximum(steps["start_s"] - np.append(0.0, steps["end_s"][:-1]), 0.0)
    if (duration_s < 1e-9).any():
        return  # a step that takes no time has energy and no power
    drawn_w = steps["energy_j"] / power.ranks_count / duration_s - power.idle_w
    average_w = exponential_average(power.idle_w, power.idle_w, drawn_w, idle_s, duration_s, power.average_s)
    free = steps["clock_hz"] > min(power.clocks_hz)
    assert (average_w[free] <= power.cap_w * (1 + 1e-9)).all()
    assert (steps["temperature_c"][free] <= power.throttle_c).all()


@LAW
@given(replay_cases(powered=True, compiles=True))
def test_without_limits_a_device_with_power_takes_the_times_of_one_without(case):
    trace, table = case
    free = replace(table, power=replace(table.power, cap_w=np.inf, throttle_c=np.inf))
    with_power, without = replay(trace, free), replay(trace, replace(table, power=None))
    assert with_power.requests == without.requests
    assert with_power.token_gaps == without.token_gaps
    assert with_power.steps.drop_columns(POWER_NAMES) == without.steps.drop_columns(POWER_NAMES)
    assert all(without.steps[name].null_count == without.steps.num_rows for name in POWER_NAMES)


@LAW
@given(replay_cases(powered=True, compiles=True), st.integers(1, 3))
def test_windows_add_up_to_the_energy_of_steps_and_of_the_time_between_them(case, replicas):
    trace, table = case
    run = assembled(trace, replace(table, limits=replace(table.limits, replicas_count=replicas)))
    steps, windows = columns(run.steps), whole_windows(run)
    end_s = max(steps["end_s"].max(initial=0.0), (windows.num_rows - 1) * run.window_s)
    idle_j = table.power.ranks_count * table.power.idle_w * (replicas * end_s - run.busy_s)
    np.testing.assert_allclose(pc.sum(windows["energy_j"]).as_py(), steps["energy_j"].sum() + idle_j, rtol=1e-9, atol=1e-9)


@LAW
@given(replay_cases(powered=True, compiles=True))
def test_layer_times_add_up_to_busy_time_at_every_clock(case):
    run = assembled(*case)
    np.testing.assert_allclose(run.layers["time_s"].to_numpy().sum(), run.busy_s, rtol=1e-9, atol=1e-12)
    plain = assembled(case[0], replace(case[1], power=None))
    for name in ("clock_hz", "power_w", "temperature_c", "energy_j", "joules_per_token"):
        assert plain.windows[name].null_count == plain.windows.num_rows
        rows = run.windows.filter(pc.not_equal(run.windows["layer_type"], "all"))
        assert rows[name].null_count == rows.num_rows


@LAW
@given(st.floats(110.0, 600.0), st.floats(1.0, 1.5), st.floats(0.01, 100.0), st.integers(20, 300))
def test_a_lower_cap_never_serves_more_where_computing_is_all_there_is(cap_w, ratio, average_s, count):
    trace = make_trace([0.0] * count, [64] * count, [1] * count)

    def seconds(cap):
        table = powered(constant_table(0.01), clocks_hz=CLOCKS_HZ, memory_energy_j_per_byte=0.002, cap_w=cap, average_s=average_s)
        steps = replay(trace, table).steps
        assert steps.num_rows == count
        return steps["end_s"][-1].as_py()

    # Up to one step at the next clock: with few clocks far apart, which step takes the lower one is a matter of chance.
    rounding_s = 0.01 * 1e9 * (1.0 / CLOCKS_HZ[-1] - 1.0 / CLOCKS_HZ[-2])
    assert seconds(cap_w) >= seconds(cap_w * ratio) - rounding_s


@LAW
@given(st.floats(0.01, 1.0), st.floats(0.1, 100.0), st.floats(0.01, 0.5), st.floats(0.0, 2.0))
def test_steps_of_constant_power_warm_the_device_as_one_resistance_and_one_capacity(step_s, thermal_s, k_per_w, byte_j):
    count = 50
    trace = make_trace([0.0] * count, [64] * count, [1] * count)
    table = powered(constant_table(step_s), thermal_resistance_k_per_w=k_per_w, thermal_s=thermal_s, memory_energy_j_per_byte=byte_j)
    steps = columns(replay(trace, table).steps)
    drawn_w = steps["energy_j"] / (steps["end_s"] - steps["start_s"]) - table.power.idle_w
    expected = 30.0 + k_per_w * (table.power.idle_w + drawn_w * (1.0 - np.exp(-steps["end_s"] / thermal_s)))
    np.testing.assert_allclose(steps["temperature_c"], expected, rtol=1e-9)


@LAW
@given(replay_cases(powered=True))
def test_after_a_long_rest_all_happens_as_the_first_time(case):
    trace, table = case
    longest_s = max(table.power.average_s, table.power.thermal_s)
    again_s = (replay(trace, table).steps["end_s"].to_pylist() or [0.0])[-1] + 1000.0 * longest_s + 1.0
    fields = [trace.requests[name].to_numpy() for name in ("arrival_s", "prompt_tokens", "output_tokens")]
    twice = make_trace(*(np.append(field, field + (again_s if field is fields[0] else 0)) for field in fields))
    limits = replace(table.limits, prefix_cache=False)
    steps = columns(replay(twice, replace(table, limits=limits)).steps)
    half = len(steps["clock_hz"]) // 2
    first, second = ({name: steps[name][part] for name in POWER_NAMES} for part in (slice(half), slice(half, None)))
    np.testing.assert_allclose(second["temperature_c"], first["temperature_c"], rtol=1e-6)
    np.testing.assert_allclose(second["energy_j"], first["energy_j"], rtol=1e-6)


@LAW
@given(st.floats(1.0, 99.0), st.integers(1, 50))
def test_steps_that_wait_for_memory_take_as_long_at_any_clock(cap_w, count):
    trace = make_trace([0.0] * count, [64] * count, [1] * count)
    plain = linear_table(step_s=0.002, memory_step_s=0.01)
    capped = powered(plain, clocks_hz=CLOCKS_HZ, cap_w=cap_w)
    steps = replay(trace, capped).steps
    assert steps["end_s"] == replay(trace, plain).steps["end_s"]
    assert set(steps["clock_hz"].to_pylist()) == {CLOCKS_HZ[-1]}
