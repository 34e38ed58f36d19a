"""Clock, energy and temperature of steps worked by hand."""

from math import exp

import pytest

from replay.execution.engine import replay
from tests.step_tables import captured_table, constant_table, linear_table, make_limits, make_trace, powered

ONE = make_trace([0.0], [1], [2])
"""A step of one prompt token, then a decode that sees two keys."""
ENERGIES = {"flop_energy_j": 10.0, "memory_energy_j_per_byte": 1.0}
"""Of constant_table: the first step has 1 + 1 + 1 FLOPs and 100 + 1 bytes, the second 1 + 1 + 2 FLOPs and 100 + 2 bytes."""
FIRST_J, SECOND_J = 30.0 + 101.0, 40.0 + 102.0
IDLE_W = 100.0


def steps_of(table, trace=ONE):
    return replay(trace, table).steps.to_pylist()


def test_a_step_draws_idle_power_and_the_energy_of_its_flops_and_bytes():
    first, second = steps_of(powered(constant_table(1.0), **ENERGIES))
    assert (first["energy_j"], second["energy_j"]) == (IDLE_W + FIRST_J, IDLE_W + SECOND_J)
    assert first["clock_hz"] == second["clock_hz"] == 1e9


def test_the_clock_falls_until_the_average_stays_below_the_cap():
    limits = {"clocks_hz": [1e9, 0.75e9, 0.5e9, 0.25e9], "average_s": 1.0, "cap_w": 165.0}
    first, second = steps_of(powered(constant_table(1.0), **ENERGIES, **limits))
    # At 1, 3/4 and 1/2 of the clock the first step takes 1, 4/3 and 2 s, and the average ends at 183, 172 and 157 W.
    average_w = IDLE_W + FIRST_J / 2 * (1 - exp(-2))
    assert IDLE_W + FIRST_J * 3 / 4 * (1 - exp(-4 / 3)) > 165.0 > average_w
    assert (first["clock_hz"], first["device_s"], first["energy_j"]) == (0.5e9, 2.0, 2 * IDLE_W + FIRST_J)
    # The second begins where the first one ended: at 1/2 it would end at 169 W.
    assert IDLE_W + (average_w - IDLE_W) * exp(-2) + SECOND_J / 2 * (1 - exp(-2)) > 165.0
    assert (second["clock_hz"], second["device_s"]) == (0.25e9, 4.0)


def test_the_lowest_clock_is_taken_where_none_keeps_the_cap():
    first, _ = steps_of(powered(constant_table(1.0), clocks_hz=[1e9, 0.5e9], cap_w=IDLE_W / 2))
    assert first["clock_hz"] == 0.5e9


def test_the_temperature_follows_the_power_through_resistance_and_capacity():
    heat = {"thermal_resistance_k_per_w": 0.1, "thermal_s": 2.0}
    first, second = steps_of(powered(constant_table(1.0), **ENERGIES, **heat))
    idle_c = 30.0 + 0.1 * IDLE_W
    assert first["temperature_c"] == pytest.approx(idle_c + 0.1 * FIRST_J * (1 - exp(-0.5)), rel=1e-14)
    rest_c = idle_c + (first["temperature_c"] - idle_c) * exp(-0.5)
    assert second["temperature_c"] == pytest.approx(rest_c + 0.1 * SECOND_J * (1 - exp(-0.5)), rel=1e-14)


def test_heat_holds_the_clock_back_as_the_cap_does():
    # The same exponential average, of degrees instead of watts.
    by_cap = powered(constant_table(1.0), **ENERGIES, clocks_hz=[1e9, 0.75e9, 0.5e9, 0.25e9], average_s=1.0, cap_w=165.0)
    heat = {"thermal_resistance_k_per_w": 0.5, "thermal_s": 1.0, "throttle_c": 30.0 + 0.5 * 165.0}
    by_heat = powered(constant_table(1.0), **ENERGIES, clocks_hz=[1e9, 0.75e9, 0.5e9, 0.25e9], **heat)
    assert [step["clock_hz"] for step in steps_of(by_cap)] == [step["clock_hz"] for step in steps_of(by_heat)] == [0.5e9, 0.25e9]


def test_only_compute_time_scales_with_the_clock():
    slow = {"clocks_hz": [0.25e9]}
    # The body takes max(1 s of compute, 3 s of memory), four times as much compute at a quarter of the clock; the head 0.5 s.
    [first, _] = steps_of(powered(linear_table(step_s=1.0, memory_step_s=3.0, per_sequence_s=0.5), **slow))
    assert first["device_s"] == 4.0 + 2.0
    [first, _] = steps_of(powered(linear_table(memory_step_s=3.0), **slow))
    assert first["device_s"] == 3.0
    [first, _] = steps_of(powered(linear_table(step_s=1.0, host_launch_s=9.0), **slow))
    assert (first["device_s"], first["host_s"]) == (4.0, 9.0)


def test_the_padding_of_a_captured_graph_costs_flops():
    limits = make_limits()
    captured = constant_table(1.0, limits=limits, capture=captured_table(limits, [8]))
    assert steps_of(powered(captured, **ENERGIES))[0]["energy_j"] == IDLE_W + FIRST_J + 7 * 10.0


def test_a_step_that_runs_eagerly_computes_no_padding_and_one_that_waits_for_its_kernels_rests_first():
    # A variant for up to 1 token takes 2 s to compile; then there may be no more, and the second prompt of 2 tokens runs eagerly.
    limits = make_limits(compile_bins=(1, 4), compile_variant_s=2.0, compile_max_variants=1)
    heat = {"thermal_resistance_k_per_w": 0.1, "thermal_s": 2.0}
    table = powered(constant_table(1.0, limits=limits, capture=captured_table(limits, [8])), **ENERGIES, **heat)
    waits, eager = steps_of(table, make_trace([0.0, 3.0], [1, 2], [1, 1]))
    first_j, second_j = FIRST_J + 7 * 10.0, 60.0 + 103.0  # 2 + 1 + 3 FLOPs, 100 + 3 bytes
    assert (waits["compile_s"], waits["end_s"], waits["energy_j"]) == (2.0, 3.0, 3 * IDLE_W + first_j)
    assert waits["temperature_c"] == pytest.approx(40.0 + 0.1 * first_j * (1 - exp(-0.5)), rel=1e-14)
    assert (eager["compile_s"], eager["captured_tokens"], eager["energy_j"]) == (0.0, 0, IDLE_W + second_j)


def test_each_replica_warms_by_what_it_runs_itself():
    limits = make_limits(replicas_count=2)
    heat = {"thermal_resistance_k_per_w": 0.1, "thermal_s": 2.0}
    steps = steps_of(powered(constant_table(1.0, limits=limits), **ENERGIES, **heat), make_trace([0.0, 0.5], [1, 1], [1, 1]))
    assert [step["replica"] for step in steps] == [0, 1]
    warm_c = 40.0 + 0.1 * FIRST_J * (1 - exp(-0.5))
    assert [step["temperature_c"] for step in steps] == pytest.approx([warm_c, warm_c], rel=1e-14)


def test_ranks_share_the_flops_and_each_draws_idle_power_and_moves_its_bytes():
    assert steps_of(powered(constant_table(1.0), ranks_count=2, **ENERGIES))[0]["energy_j"] == 2 * (IDLE_W + 101.0) + 30.0


def test_a_kernel_factor_scales_time_and_not_the_energy_of_the_work():
    table = powered(constant_table(1.0), **ENERGIES)
    first = replay(ONE, table, kernel_factors={"body": 2.0}).steps.to_pylist()[0]
    assert (first["device_s"], first["energy_j"]) == (2.0, 2 * IDLE_W + FIRST_J)
