"""Grouped multiplies of experts: cases worked on paper for a round device, laws over drawn ones, and the path rules of tiles."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.tiling.families.expert_tiles import (
    expected_row_tiles,
    marlin_tiles,
    most_loaded_rank,
    row_tiles,
    sglang_tiles,
    vllm_block_tiles,
    vllm_tiles,
)
from replay.tiling.families.experts import EXPERTS
from tests.models import round_hardware

SHAPE = {
    "tokens": 128.0, "choices": 1.0, "hidden": 1024.0, "inter": 512.0, "matrices": 3.0, "rows": 128.0, "active_experts": 1.0,
    "row_tiles": 1.0, "tile_rows": 128.0, "tile_columns": 128.0, "tile_depth": 64.0, "tile_group": 1.0, "tuned": 0.0,
    "weight_bytes": 2.0, "activation_bytes": 2.0,
}  # fmt: skip
PLAIN = {
    "floor_s": 0.0, "multiply_floor_s": 0.0, "compute_efficiency_ratio": 1.0, "memory_efficiency_ratio": 1.0, "step_latency_s": 0.0,
    "overlap_exponent": 1.0, "wave_roundness_ratio": 1.0, "weight_cache_ratio": 1.0, "weight_share_ratio": 1.0,
    "between_efficiency_ratio": 1.0, "between_cache_ratio": 1.0, "activation_share_ratio": 1.0, "port_ratio": 1e12, "gather_ratio": 0.0,
    "unaligned_ratio": 3.0,
}  # fmt: skip
"""Every efficiency 1, no floor, no latency, an endless port, times added up."""
NO_MEMORY = round_hardware(memory_bytes_per_s=1e30)
NO_COMPUTE = round_hardware(matrix_flops_per_s={"bf16": 1e30})


def shapes(**changes):
    return {name: np.array([float(value)]) for name, value in {**SHAPE, **changes}.items()}


def time_s(device, parameters=PLAIN, **changes):
    found = EXPERTS.seconds(shapes(**changes), device, parameters)
    assert found.shape == (1,)
    return float(found[0])


def test_compute_is_the_steps_of_the_padded_tiles():
    # Up: 1024 columns are 8 tiles on 100 units, one wave of 1024/64 = 16 steps; down: 8 steps. A step is a tile's FLOPs at 1 TFLOP/s.
    step_s = 2 * 128 * 128 * 64 / 1e12
    assert time_s(NO_MEMORY) == pytest.approx((16 + 8) * step_s)
    assert time_s(NO_MEMORY, rows=1.0) == pytest.approx((16 + 8) * step_s)  # padding costs what a whole tile costs


@pytest.mark.parametrize(("roundness", "waves"), [(1.0, 2.0), (0.0, 1.6), (0.5, 1.8)])
def test_a_wave_that_is_begun_is_rounded_up_as_far_as_fitted(roundness, waves):
    found = time_s(NO_MEMORY, {**PLAIN, "wave_roundness_ratio": roundness}, row_tiles=20.0, active_experts=20.0, rows=2560.0)
    assert found == pytest.approx(waves * 24 * 2 * 128 * 128 * 64 / 1e12)


def test_memory_is_weights_of_active_experts_and_activations_once():
    # 16 experts of 3 x 1024 x 512 x 2 bytes; inputs of both multiplies; 5 x 512 + 2 x 1024 elements a choice and 2 x 1024 a token between.
    weights, inputs = 16 * 3 * 1024 * 512 * 2, 128 * (1024 + 512) * 2
    between = 128 * (5 * 512 + 2 * 1024) * 2 + 128 * 2 * 1024 * 2
    assert time_s(NO_COMPUTE, active_experts=16.0, row_tiles=16.0) == pytest.approx((weights + inputs + between) / 1e12)


def test_choices_of_other_ranks_cost_bytes_but_no_multiply():
    alone = time_s(NO_COMPUTE)
    assert time_s(NO_COMPUTE, choices=8.0) - alone == pytest.approx(7 * 128 * (5 * 512 + 2 * 1024) * 2 / 1e12)
    assert time_s(NO_MEMORY, choices=8.0) == pytest.approx(time_s(NO_MEMORY))


def test_weights_that_fit_the_cache_come_at_its_rate_and_hardly_larger_ones_do_not():
    faster = {**PLAIN, "weight_cache_ratio": 4.0}
    weights = 3 * 1024 * 512 * 2
    saved = time_s(NO_COMPUTE) - time_s(NO_COMPUTE, faster)
    assert saved == pytest.approx(0.75 * weights / 1e12, rel=1e-6)
    many = {"active_experts": 20.0, "row_tiles": 20.0}  # 63 MB against a cache of 40
    assert time_s(NO_COMPUTE, faster, **many) == pytest.approx(time_s(NO_COMPUTE, **many), rel=0.01)


def test_every_further_group_of_row_tiles_reads_the_weights_again_unless_they_fit():
    tiles = {"row_tiles": 4.0, "rows": 512.0}
    once = time_s(NO_COMPUTE, tile_group=4.0, **tiles)
    assert time_s(NO_COMPUTE, tile_group=1.0, **tiles) == pytest.approx(once, rel=0.01)  # 2 MB stay in 40 MB
    small = replace(NO_COMPUTE, cache_bytes=1.0)
    again = time_s(small, tile_group=1.0, **tiles) - time_s(small, tile_group=4.0, **tiles)
    assert again == pytest.approx(3 * 3 * 1024 * 512 * 2 / 1e12)


def test_without_a_gate_one_matrix_less_is_multiplied():
    step_s = 2 * 128 * 128 * 64 / 1e12
    assert time_s(NO_MEMORY, matrices=2.0) == pytest.approx(24 * step_s)  # 4 column tiles instead of 8: still one wave
    many = {"row_tiles": 100.0, "active_experts": 100.0, "rows": 12800.0}
    assert time_s(NO_MEMORY, matrices=3.0, **many) == pytest.approx((8 * 16 + 8 * 8) * step_s)
    assert time_s(NO_MEMORY, matrices=2.0, **many) == pytest.approx((4 * 16 + 8 * 8) * step_s)


def test_an_unaligned_width_slows_the_multiply_that_is_as_deep():
    step_s = 2 * 128 * 128 * 64 / 1e12
    assert time_s(NO_MEMORY, inter=500.0) == pytest.approx((16 + 3 * 8) * step_s)
    assert time_s(NO_MEMORY, inter=496.0) == pytest.approx((16 + 8) * step_s)


def test_operands_come_over_the_port_and_gathered_rows_slower():
    ported = {**PLAIN, "port_ratio": 2.0}
    device = replace(NO_MEMORY, matrix_flops_per_s={"bf16": 1e30})
    step_s = 2 * 128 * 64 * 2 / (2 * 64 * 1e9)  # two tiles of 128 x 64 at twice 64 bytes a clock
    assert time_s(device, ported) == pytest.approx(24 * step_s)
    gathered = time_s(replace(device, cache_bytes=1.0), {**ported, "gather_ratio": 0.5})
    assert gathered == pytest.approx(1.5 * 24 * step_s)


def test_latency_of_steps_is_hidden_by_four_tiles_a_unit():
    slow = {**PLAIN, "step_latency_s": 1e-6}
    device = replace(NO_MEMORY, matrix_flops_per_s={"bf16": 1e30})
    for tiles, turns in ((1.0, 1.0), (50.0, 1.0), (100.0, 2.0)):  # 8, 400 and 800 tiles on 100 units
        assert time_s(device, slow, row_tiles=tiles, active_experts=tiles) == pytest.approx(turns * 24 * 1e-6)


def test_eight_bit_operands_multiply_at_the_eight_bit_rate_where_there_is_one():
    device = round_hardware(memory_bytes_per_s=1e30)
    assert time_s(device, weight_bytes=1.0, activation_bytes=1.0) == pytest.approx(time_s(device) / 2)
    without = replace(device, matrix_flops_per_s={"bf16": 100e12})
    assert time_s(without, weight_bytes=1.0, activation_bytes=1.0) == pytest.approx(time_s(without))
    assert time_s(device, weight_bytes=0.5) == pytest.approx(time_s(device))  # weights alone are widened first


def test_the_bound_is_flops_of_the_rows_or_bytes_beyond_the_cache():
    device = round_hardware()
    assert EXPERTS.bound_s(shapes(), device)[0] == pytest.approx(128 * 2 * 3 * 1024 * 512 / 100e12)
    many = EXPERTS.bound_s(shapes(active_experts=100.0, rows=100.0), device)[0]
    assert many == pytest.approx((100 * 3 * 1024 * 512 * 2 + 4 * 128 * 1024 - 40e6) / 1e12)


DRAWN_SHAPES = st.fixed_dictionaries({
    "tokens": st.integers(1, 20000), "choices": st.integers(1, 16), "hidden": st.integers(64, 8192), "inter": st.integers(16, 8192),
    "matrices": st.sampled_from([2, 3]), "active_experts": st.integers(1, 256), "spread": st.floats(0.0, 1.0),
    "tile_rows": st.sampled_from([16, 32, 64, 128]), "tile_columns": st.sampled_from([32, 64, 128]),
    "tile_depth": st.sampled_from([32, 64, 128]), "tile_group": st.sampled_from([1, 8, 16]), "tuned": st.sampled_from([0, 1]),
    "weight_bytes": st.sampled_from([0.53, 1.0, 2.0]), "activation_bytes": st.sampled_from([1.0, 2.0]),
})  # fmt: skip
DRAWN_PARAMETERS = st.fixed_dictionaries({part.name: st.floats(part.lower, part.upper) for part in EXPERTS.parameters})


def drawn(fields):
    rows = max(fields["active_experts"], int(fields["tokens"] * fields["choices"] * fields["spread"]))
    tiles = fields["active_experts"] + rows // fields["tile_rows"]
    return shapes(**{name: value for name, value in fields.items() if name != "spread"}, rows=rows, row_tiles=tiles)


@settings(max_examples=150, deadline=None)
@given(fields=DRAWN_SHAPES, parameters=DRAWN_PARAMETERS, more=st.floats(1.01, 4.0))
def test_no_faster_device_is_slower(fields, parameters, more):
    device, shape = round_hardware(), drawn(fields)
    rates = {name: rate * more for name, rate in device.matrix_flops_per_s.items()}
    units = int(device.units_count * more)
    with_units = {name: rate * units / device.units_count for name, rate in device.matrix_flops_per_s.items()}
    better = {
        "bandwidth": replace(device, memory_bytes_per_s=device.memory_bytes_per_s * more),
        "clock": replace(device, clock_hz=device.clock_hz * more),
        "peak": replace(device, matrix_flops_per_s=rates),
        "units": replace(device, units_count=units, matrix_flops_per_s=with_units),
    }
    before = EXPERTS.seconds(shape, device, parameters)[0]
    for change, faster in better.items():
        assert EXPERTS.seconds(shape, faster, parameters)[0] <= before * (1 + 1e-9), change


@settings(max_examples=150, deadline=None)
@given(fields=DRAWN_SHAPES, parameters=DRAWN_PARAMETERS)
def test_no_parameters_beat_the_bound_and_features_are_finite(fields, parameters):
    device, shape = round_hardware(), drawn(fields)
    assert EXPERTS.seconds(shape, device, parameters)[0] >= EXPERTS.bound_s(shape, device)[0] > 0
    features = EXPERTS.features(shape)
    assert features.shape == (1, len(EXPERTS.residual_features))
    assert np.isfinite(features).all()


def test_sglang_leaps_to_the_large_tile_when_tokens_outnumber_experts():
    tiles = sglang_tiles(np.array([8.0, 9.0]), np.array([8.0, 8.0]), np.array([False, False]))
    assert tiles.rows.tolist() == [16, 64]
    assert tiles.columns.tolist() == [32, 64]
    assert tiles.depth.tolist() == [64, 32]
    assert tiles.group.tolist() == [1, 8]
    assert tiles.tuned.tolist() == [0, 0]


def test_a_tuned_file_is_looked_up_at_the_nearest_number_of_tokens():
    tiles = sglang_tiles(np.array([1.0, 100.0, 20000.0]), np.full(3, 64.0), np.full(3, True))
    assert list(zip(tiles.rows, tiles.columns, tiles.depth, strict=True)) == [(16, 64, 256), (32, 256, 64), (128, 128, 64)]
    assert tiles.tuned.tolist() == [1, 1, 1]


def test_vllm_picks_tiles_by_tokens_alone():
    tokens = np.array([32.0, 33.0, 64.0, 65.0, 96.0, 97.0, 512.0, 513.0])
    tiles = vllm_tiles(tokens, np.full(8, 2.0), np.full(8, 8.0), eight_bit=False)
    assert tiles.rows.tolist() == [16, 32, 32, 32, 32, 64, 64, 128]
    assert tiles.columns.tolist() == [64, 64, 64, 128, 128, 128, 128, 128]
    assert tiles.depth.tolist() == [128, 128, 128, 64, 64, 64, 64, 64]
    assert tiles.group.tolist() == [1, 1, 1, 1, 1, 1, 1, 16]  # 513 x 2 / 8 choices an expert: more than 128
    assert vllm_tiles(tokens, np.full(8, 2.0), np.full(8, 8.0), eight_bit=True).depth.tolist() == [128] * 8
    blocks = vllm_block_tiles(np.array([16.0, 64.0, 65.0]))
    assert (blocks.rows.tolist(), blocks.group.tolist()) == ([16, 16, 64], [1, 32, 32])


def test_marlin_takes_the_fewest_rows_that_an_even_load_fills_to_nine_tenths():
    tokens = np.array([7.1, 7.3, 14.3, 14.5, 43.0, 44.0, 1e6])
    assert marlin_tiles(tokens, np.ones(7), np.ones(7)).rows.tolist() == [8, 16, 16, 32, 48, 64, 64]


def test_row_tiles_are_counted_expert_by_expert():
    assert row_tiles(np.array([3.0, 17.0, 0.0]), 16) == 1 + 2 + 0
    assert row_tiles(np.array([[3.0, 17.0], [16.0, 0.0]]), 16) == (3 + 1) / 2  # the mean over draws


def test_the_rank_with_most_rows_is_the_one_that_is_timed():
    assert most_loaded_rank(np.array([[5.0, 1.0, 4.0, 3.0], [9.0, 0.0, 1.0, 1.0]]), 2).tolist() == [[4, 3], [9, 0]]


def test_row_tiles_of_a_load_do_not_depend_on_the_loads_beside_it():
    mean = np.array([0.5, 3.0, 40.0, 900.0])
    alone = [expected_row_tiles(mean[[place]], np.array([16.0]))[0] for place in range(len(mean))]
    np.testing.assert_array_equal(expected_row_tiles(mean, np.full(4, 16.0)), alone)
