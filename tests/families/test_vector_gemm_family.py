"""Multiplies on the vector units: cases worked on paper for a round device (100 units, 10 TFLOP/s, 1 TB/s), and laws over drawn ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.tiling.families.arithmetic import FP16_MATRIX, FP16_PAIRS, FP16_STORED, FP32, INT8_QUADS
from replay.tiling.families.output_tiles import Product, fastest_terms, tiles_count
from replay.tiling.families.vector_gemm import VectorGemmFamily, gemm_shapes
from tests.models import round_hardware

DEVICE = round_hardware()
PLAIN = {
    "floor_s": 0.0, "compute_efficiency_ratio": 1.0, "memory_efficiency_ratio": 1.0, "step_latency_s": 0.0, "overlap_exponent": 1.0,
    "split_combine_s": 1.0, "wave_smoothness_ratio": 1.0, "cache_rate_ratio": 1e9, "edge_elements": 0.0, "panel_reach_ratio": 1e9,
    "reread_ratio": 0.0,
}  # fmt: skip
"""Every efficiency 1, no floor or latency, times added up, no split (combining takes a second), whole waves, all panels cached."""
GEMM = VectorGemmFamily()


def time_s(rows, columns, depth, *, parameters=PLAIN, device=DEVICE, count=1.0, family=GEMM):
    shapes = gemm_shapes(np.array([float(rows)]), np.array([float(columns)]), np.array([float(depth)]), count=count)
    found = family.seconds(shapes, device, parameters)
    assert found.shape == (1,)
    return float(found[0])


def bytes_s(rows, columns, depth, count=1.0):
    return count * ((rows + columns) * depth + rows * columns) * 4 / 1e12


def test_a_full_wave_runs_at_the_peak_beside_its_bytes():
    # 1280 x 1280 in 128 x 128 tiles are 100 tiles on 100 units: one wave, 2 x 1280 x 1280 x 1600 operations at 10 TFLOP/s.
    assert time_s(1280, 1280, 1600) == pytest.approx(2 * 1280 * 1280 * 1600 / 10e12 + bytes_s(1280, 1280, 1600))


def test_where_large_tiles_spill_into_another_wave_small_ones_are_taken():
    # 11 x 10 large tiles would be 2 waves; 44 x 40 tiles of 32 x 32 are 17.6, rounded up to 18, of which 16 are one large one.
    large_wave_s = 2 * 128 * 128 * 1600 * 100 / 10e12
    assert time_s(1408, 1280, 1600) == pytest.approx(18 / 16 * large_wave_s + bytes_s(1408, 1280, 1600))


def test_the_edge_of_a_tile_is_weighed_against_its_waves():
    # With 32 elements of edge: 128 x 128 costs 1 + 0.5 in 2 waves = 3, 64 x 64 costs 1 + 1 in 5/4 waves = 2.5, 32 x 32 1 + 2 in 18/16.
    large_wave_s = 2 * 128 * 128 * 1600 * 100 / 10e12
    found = time_s(1408, 1280, 1600, parameters={**PLAIN, "edge_elements": 32.0})
    assert found == pytest.approx(2.5 * large_wave_s + bytes_s(1408, 1280, 1600))


def test_smooth_waves_charge_for_the_part_that_is_used():
    large_wave_s = 2 * 128 * 128 * 1600 * 100 / 10e12
    found = time_s(1408, 1280, 1600, parameters={**PLAIN, "wave_smoothness_ratio": 0.0})
    assert found == pytest.approx(1.1 * large_wave_s + bytes_s(1408, 1280, 1600))


def test_a_deep_product_of_few_tiles_is_split_over_idle_units():
    # 128 x 128 are 16 tiles of 32 x 32, alone on their units: a step of 16 takes 2 x 32 x 32 x 16 operations at 0.1 TFLOP/s.
    whole = time_s(128, 128, 16 * 6400)
    assert whole == pytest.approx(6400 * 2 * 32 * 32 * 16 / 0.1e12 + bytes_s(128, 128, 16 * 6400))
    split = time_s(128, 128, 16 * 6400, parameters={**PLAIN, "split_combine_s": 0.0})
    # In 6.25 waves all units would be busy: at best a sixth of the time, and partial results pass through memory.
    assert whole / 6.25 < split < whole / 4


def test_combining_a_split_costs_a_latency_and_the_partial_results():
    # Sides of 32: one tile, 32 parts of 2 steps would be under the least depth, 8 parts of 8 steps are not.
    product = Product(
        rows=np.array([32.0]), columns=np.array([32.0]), depth=np.array([16 * 64.0]), count=np.array([1.0]), input_bytes=4.0,
        flops_per_s=np.array(10e12),
    )  # fmt: skip
    step_s = 2 * 32 * 32 * 16 * 100 / 10e12
    cheap = {**PLAIN, "split_combine_s": 1e-6}
    for parts in (2, 8):
        found = fastest_terms(product, lambda tile: np.zeros(1), DEVICE, cheap, splits=(parts,)).time_s(cheap["overlap_exponent"])[0]
        assert found == pytest.approx(64 / parts * step_s + 1e-6 + (parts + 1) * 32 * 32 * 4 / 1e12)
    assert np.isinf(fastest_terms(product, lambda tile: np.zeros(1), DEVICE, cheap, splits=(32,)).time_s(1.0)[0])


def test_latency_of_steps_is_hidden_by_eight_tiles_of_a_unit():
    slow = {**PLAIN, "step_latency_s": 1e-3, "reread_ratio": 0.0}
    fast = replace(DEVICE, vector_flops_per_s=1e30, memory_bytes_per_s=1e30)
    for count, turns in ((1.0, 1.0), (800.0, 1.0), (1600.0, 2.0)):
        assert time_s(128, 128, 160, parameters=slow, device=fast, count=count) == pytest.approx(turns * 10 * 1e-3)


def test_operands_come_at_the_rate_of_a_units_cache():
    fast = replace(DEVICE, vector_flops_per_s=1e30, memory_bytes_per_s=1e30, unit_cache_bytes_per_s=1e9)
    # One wave of 100 tiles of 128 x 128: 256 x 16 x 4 bytes a step, at twice 1 GB/s.
    assert time_s(1280, 1280, 160, parameters={**PLAIN, "cache_rate_ratio": 2.0}, device=fast) == pytest.approx(10 * 256 * 16 * 4 / 2e9)


def test_panels_that_overflow_the_cache_are_read_by_every_tile():
    fast = replace(DEVICE, vector_flops_per_s=1e30)
    shared = time_s(12800, 12800, 1600, device=fast)
    unshared = time_s(12800, 12800, 1600, device=fast, parameters={**PLAIN, "reread_ratio": 1.0, "panel_reach_ratio": 1e-9})
    # 100 x 100 large tiles read 256 x 1600 elements each: they need fewest bytes, so they are the ones taken.
    assert unshared - shared == pytest.approx(100 * 100 * 256 * 1600 * 4 / 1e12)
    half = time_s(12800, 12800, 1600, device=fast, parameters={**PLAIN, "reread_ratio": 1.0, "panel_reach_ratio": 100.0})
    assert half == pytest.approx(shared, rel=0.01)


def test_products_of_a_batch_add_tiles_and_bytes():
    assert time_s(128, 128, 1600, count=100.0) == pytest.approx(2 * 128 * 128 * 1600 * 100 / 10e12 + bytes_s(128, 128, 1600, 100))


def test_arithmetic_sets_rate_and_bytes():
    def found(arithmetic, device=DEVICE):
        return time_s(1280, 1280, 1600, family=VectorGemmFamily(arithmetic=arithmetic), device=device)

    operations = 2 * 1280 * 1280 * 1600
    inputs, results = 2 * 1280 * 1600, 1280 * 1280
    assert found(FP16_STORED) == pytest.approx(operations / 10e12 + 2 * (inputs + results) / 1e12)
    assert found(FP16_PAIRS) == pytest.approx(operations / 20e12 + 2 * (inputs + results) / 1e12)
    assert found(INT8_QUADS) == pytest.approx(operations / 40e12 + (inputs + 4 * results) / 1e12)
    matrix = replace(DEVICE, matrix_flops_per_s={"fp16": 100e12})
    assert found(FP16_MATRIX, matrix) == pytest.approx(operations / 100e12 + 2 * (inputs + results) / 1e12)


def test_a_rate_that_the_device_lacks_is_not_made_up():
    with pytest.raises(SpecError, match="no rate for fp16") as caught:
        time_s(128, 128, 128, family=VectorGemmFamily(arithmetic=FP16_MATRIX))
    assert "round" in str(caught.value)


def test_the_bound_is_operations_or_bytes_beyond_the_cache():
    shapes = gemm_shapes(np.array([1280.0, 1.0, 1.0]), np.array([1280.0, 1e5, 10.0]), np.array([1600.0, 1e3, 10.0]))
    found = GEMM.bound_s(shapes, DEVICE)
    assert found[0] == pytest.approx(2 * 1280 * 1280 * 1600 / 10e12)
    assert found[1] == pytest.approx(((1 + 1e5) * 1e3 * 4 + 1e5 * 4 - 40e6) / 1e12)
    assert found[2] == pytest.approx(2 * 100 / 10e12)


def test_the_features_know_sizes_tiles_and_transposes_and_nothing_of_the_device():
    shapes = gemm_shapes(np.array([256.0]), np.array([129.0]), np.array([64.0]), count=8.0, left=1.0)
    assert GEMM.features(shapes)[0].tolist() == pytest.approx([8, np.log2(129), 6, 3, np.log2(2 * 2 * 8), 1, 0])
    assert len(GEMM.residual_features) == 7


def test_tiles_are_counted_over_all_products():
    columns = {name: np.array([value]) for name, value in (("rows", 129.0), ("columns", 64.0), ("depth", 8.0), ("count", 3.0))}
    assert tiles_count(Product(**columns, input_bytes=4.0, flops_per_s=np.array(1.0)), (128, 64)).tolist() == [6.0]


SIZES = st.tuples(st.integers(1, 70000), st.integers(1, 70000), st.integers(1, 60000), st.integers(1, 5000))
PARAMETERS = st.fixed_dictionaries({part.name: st.floats(part.lower, part.upper) for part in GEMM.parameters})
ARITHMETICS = st.sampled_from([FP32, FP16_STORED, FP16_PAIRS, INT8_QUADS, FP16_MATRIX])
FULL = replace(DEVICE, matrix_flops_per_s={"fp16": 100e12})


def drawn(sizes):
    rows, columns, depth, count = (np.array([float(size)]) for size in sizes)
    return gemm_shapes(rows, columns, depth, count=count)


@settings(max_examples=120, deadline=None)
@given(sizes=SIZES, parameters=PARAMETERS, arithmetic=ARITHMETICS, more=st.floats(1.01, 4.0))
def test_no_faster_device_is_slower(sizes, parameters, arithmetic, more):
    family, shapes = VectorGemmFamily(arithmetic=arithmetic), drawn(sizes)
    units = int(FULL.units_count * more)
    scaled = units / FULL.units_count
    vector, matrix = FULL.vector_flops_per_s, FULL.matrix_flops_per_s["fp16"]
    faster = {
        "bandwidth": replace(FULL, memory_bytes_per_s=FULL.memory_bytes_per_s * more),
        "cache": replace(FULL, cache_bytes=FULL.cache_bytes * more),
        "unit cache": replace(FULL, unit_cache_bytes_per_s=FULL.unit_cache_bytes_per_s * more),
        "peak": replace(FULL, vector_flops_per_s=vector * more, matrix_flops_per_s={"fp16": matrix * more}),
        "clock": replace(FULL, clock_hz=FULL.clock_hz * more),
        "units": replace(FULL, units_count=units, vector_flops_per_s=vector * scaled, matrix_flops_per_s={"fp16": matrix * scaled}),
    }
    before = family.seconds(shapes, FULL, parameters)[0]
    for change, device in faster.items():
        assert family.seconds(shapes, device, parameters)[0] <= before * (1 + 1e-9), change


@settings(max_examples=120, deadline=None)
@given(sizes=SIZES, parameters=PARAMETERS, arithmetic=ARITHMETICS)
def test_no_parameters_beat_the_bound_and_features_are_finite(sizes, parameters, arithmetic):
    family, shapes = VectorGemmFamily(arithmetic=arithmetic), drawn(sizes)
    assert family.seconds(shapes, FULL, parameters)[0] >= family.bound_s(shapes, FULL)[0] > 0
    assert np.isfinite(family.features(shapes)).all()


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, parameters=PARAMETERS)
def test_twice_the_depth_is_never_faster(sizes, parameters):
    rows, columns, depth, count = sizes
    before = GEMM.seconds(drawn(sizes), FULL, parameters)[0]
    assert GEMM.seconds(drawn((rows, columns, 2 * depth, count)), FULL, parameters)[0] >= before * (1 - 1e-9)


def test_start_values_lie_inside_their_ranges():
    assert all(part.lower <= part.start <= part.upper for part in GEMM.parameters)
