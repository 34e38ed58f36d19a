"""Convolutions: cases worked on paper for a round device (100 units, 10 TFLOP/s, 1 TB/s), path rules, and laws over drawn ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.tiling.families.arithmetic import FP16_MATRIX, FP16_PAIRS, FP32
from replay.tiling.families.convolution import ConvolutionFamily, convolution_shapes
from replay.tiling.families.vector_gemm import VectorGemmFamily, gemm_shapes
from tests.models import round_hardware

DEVICE = round_hardware()
MATRIX_DEVICE = round_hardware(matrix_flops_per_s={"fp16": 100e12})
PLAIN = {
    "floor_s": 0.0, "compute_efficiency_ratio": 1.0, "memory_efficiency_ratio": 1.0, "step_latency_s": 0.0, "overlap_exponent": 1.0,
    "split_combine_s": 1.0, "wave_smoothness_ratio": 0.0, "cache_rate_ratio": 1e9, "edge_elements": 0.0,
    "fused_winograd_efficiency_ratio": 1e-3, "unfused_winograd_efficiency_ratio": 1e-3, "transform_s": 0.0, "direct_efficiency_ratio": 1e-6,
    "padded_efficiency_ratio": 1.0, "layout_ratio": 0.0,
}  # fmt: skip
"""Only the implicit GEMM is any good, at the peak, without floor or latency; times add up and waves are charged as used."""
SHAPE = {
    "images": 16, "channels": 128, "filters": 128, "rows": 32, "columns": 32, "filter_rows": 3, "filter_columns": 3, "row_padding": 1,
    "column_padding": 1,
}  # fmt: skip
PIXELS, OPERATIONS = 16 * 32 * 32, 2 * 16 * 32 * 32 * 128 * 128 * 9
ONCE_S = (2 * PIXELS * 128 + 128 * 128 * 9) * 4 / 1e12
"""Pixels in, filters and results in fp32 over 1 TB/s."""


def shapes(**changes):
    return convolution_shapes(**{name: np.array([float(value)]) for name, value in {**SHAPE, **changes}.items()})


def time_s(parameters=PLAIN, device=DEVICE, arithmetic=FP32, **changes):
    found = ConvolutionFamily(arithmetic=arithmetic).seconds(shapes(**changes), device, parameters)
    assert found.shape == (1,)
    return float(found[0])


def test_sizes_of_the_result_follow_padding_and_stride():
    found = shapes(rows=161, columns=700, filter_rows=5, filter_columns=20, row_padding=0, column_padding=0, row_stride=2, column_stride=2)
    assert (found["result_rows"][0], found["result_columns"][0]) == (79, 341)


def test_implicit_gemm_is_operations_at_the_peak_beside_bytes():
    # 128 x 1 large tiles on 100 units are 1.28 waves of 72 steps.
    assert time_s() == pytest.approx(OPERATIONS / 10e12 + ONCE_S)


def test_a_filter_of_one_pixel_is_a_matrix_multiply():
    one = {"filter_rows": 1, "filter_columns": 1, "row_padding": 0, "column_padding": 0}
    gemm = VectorGemmFamily().seconds(
        gemm_shapes(np.array([float(PIXELS)]), np.array([128.0]), np.array([128.0])), DEVICE,
        {**PLAIN, "panel_reach_ratio": 1e9, "reread_ratio": 0.0},
    )  # fmt: skip
    assert time_s(**one) == pytest.approx(float(gemm[0]))


def test_rows_of_pixels_that_a_stride_skips_are_not_read():
    one = {"filter_rows": 1, "filter_columns": 1, "row_padding": 0, "column_padding": 0}
    fast = replace(DEVICE, vector_flops_per_s=1e30)
    found = time_s(device=fast, row_stride=2, column_stride=2, **one)
    assert found == pytest.approx((PIXELS * 128 / 2 + PIXELS * 128 / 4 + 128 * 128) * 4 / 1e12)
    assert time_s(device=fast, row_stride=2, column_stride=2) == pytest.approx((PIXELS * 128 * 1.25 + 128 * 128 * 9) * 4 / 1e12)


def test_unfused_winograd_multiplies_a_quarter_and_passes_transforms_through_memory():
    # Tiles of 4 x 4 pixels: 16 x 8 x 8 = 1024 of them, 36 products of 1024 x 128 with 128 x 128; transforms are written and read.
    winograd = {**PLAIN, "unfused_winograd_efficiency_ratio": 1.0, "transform_s": 5e-6}
    operations = 36 * 2 * 1024 * 128 * 128
    assert operations == OPERATIONS / 4
    passed_s = 2 * 36 * (1024 * 256 + 128 * 128) * 4 / 1e12
    assert time_s(winograd) == pytest.approx(5e-6 + operations / 10e12 + ONCE_S + passed_s)


def test_fused_winograd_multiplies_four_ninths_and_passes_nothing():
    # Tiles of 2 x 2 pixels: 16 products of 4096 x 128 with 128 x 128.
    winograd = {**PLAIN, "fused_winograd_efficiency_ratio": 1.0}
    assert time_s(winograd) == pytest.approx(OPERATIONS / 2.25 / 10e12 + ONCE_S)


@pytest.mark.parametrize(
    "changes",
    [
        {"images": 15},
        {"row_stride": 2, "column_stride": 2},
        {"filter_rows": 7, "filter_columns": 7, "row_padding": 3, "column_padding": 3},
        {"filter_columns": 5, "column_padding": 2},
        {"groups": 2},
    ],
)
def test_the_unfused_form_wants_sixteen_images_and_square_filters_of_stride_one(changes):
    fast = {**PLAIN, "unfused_winograd_efficiency_ratio": 1.0}
    assert time_s(fast, **changes) == pytest.approx(time_s(**changes))
    assert time_s(fast) < time_s()


def test_filters_of_five_have_the_unfused_form_only():
    five = {"filter_rows": 5, "filter_columns": 5, "row_padding": 2, "column_padding": 2}
    assert time_s({**PLAIN, "fused_winograd_efficiency_ratio": 1.0}, **five) == pytest.approx(time_s(**five))
    assert time_s({**PLAIN, "unfused_winograd_efficiency_ratio": 1.0}, **five) < time_s(**five)


def test_depthwise_runs_directly_on_the_vector_units():
    direct = {**PLAIN, "direct_efficiency_ratio": 0.5}
    once_s = (2 * PIXELS * 128 + 128 * 9) * 4 / 1e12
    assert time_s(direct, groups=128) == pytest.approx(2 * PIXELS * 128 * 9 / 5e12 + once_s)


def test_groups_are_products_of_their_own():
    # 2 groups of 64 channels and filters: half the operations, in tiles 64 wide.
    once_s = (2 * PIXELS * 128 + 128 * 64 * 9) * 4 / 1e12
    assert time_s(groups=2) == pytest.approx(OPERATIONS / 2 / 10e12 + once_s)


def test_matrix_units_pad_channels_to_eight():
    few = {"channels": 3, "arithmetic": FP16_MATRIX, "device": MATRIX_DEVICE}
    once_s = (PIXELS * 3 + 128 * 27 + PIXELS * 128) * 2 / 1e12
    # Depth 8 x 9 = 72 instead of 27 elements: 5 steps of 16.
    assert time_s(**few) == pytest.approx(2 * PIXELS * 128 * 80 / 100e12 + once_s)
    slower = {**PLAIN, "padded_efficiency_ratio": 0.5}
    assert time_s(slower, **few) == pytest.approx(2 * PIXELS * 128 * 80 / 50e12 + once_s)
    assert time_s(slower, channels=8, arithmetic=FP16_MATRIX, device=MATRIX_DEVICE) == pytest.approx(
        time_s(channels=8, arithmetic=FP16_MATRIX, device=MATRIX_DEVICE)
    )


def test_channels_outermost_cost_a_pass_on_matrix_units_and_none_on_vector_units():
    passes = {**PLAIN, "layout_ratio": 1.0}
    matrix = {"arithmetic": FP16_MATRIX, "device": MATRIX_DEVICE}
    assert time_s(passes, channels_last=1, **matrix) == pytest.approx(time_s(**matrix))
    assert time_s(passes, **matrix) - time_s(**matrix) == pytest.approx(2 * PIXELS * 128 * 2 / 1e12)
    assert time_s(passes) == pytest.approx(time_s())


def test_the_depth_is_split_on_matrix_units_only():
    deep = {"images": 1, "rows": 8, "columns": 8, "channels": 1024, "filters": 32}
    cheap = {**PLAIN, "split_combine_s": 0.0}
    assert time_s(cheap, **deep) == pytest.approx(time_s(**deep))
    matrix = {"arithmetic": FP16_MATRIX, "device": MATRIX_DEVICE, **deep}
    assert time_s(cheap, **matrix) < 0.5 * time_s(**matrix)


def test_a_rate_that_the_device_lacks_is_not_made_up():
    with pytest.raises(SpecError, match="no rate for fp16"):
        time_s(arithmetic=FP16_MATRIX)


def test_the_bound_is_the_leanest_algorithm_or_bytes_beyond_the_cache():
    def bound(**changes):
        return float(ConvolutionFamily().bound_s(shapes(**changes), DEVICE)[0])

    assert bound() == pytest.approx(OPERATIONS / 4 / 10e12)
    assert bound(row_stride=2, column_stride=2) == pytest.approx(OPERATIONS / 4 / 10e12)  # a quarter of the pixels, by definition
    thin = {"filter_rows": 1, "filter_columns": 1, "row_padding": 0, "column_padding": 0, "channels": 4, "filters": 4, "images": 4096}
    assert bound(**thin) == pytest.approx((2 * 4096 * 1024 * 4 * 4 + 64 - 40e6) / 1e12)


SHAPES = st.fixed_dictionaries({
    "images": st.integers(1, 64), "channels": st.integers(1, 2048), "filters": st.integers(1, 2048), "rows": st.integers(7, 300),
    "columns": st.integers(7, 300), "filter_rows": st.sampled_from([1, 3, 5, 7]), "filter_columns": st.sampled_from([1, 3, 5, 7]),
    "row_padding": st.integers(0, 3), "column_padding": st.integers(0, 3), "row_stride": st.sampled_from([1, 2]),
    "column_stride": st.sampled_from([1, 2]), "channels_last": st.sampled_from([0, 1]),
})  # fmt: skip
PARAMETERS = st.fixed_dictionaries({part.name: st.floats(part.lower, part.upper) for part in ConvolutionFamily().parameters})
ARITHMETICS = st.sampled_from([FP32, FP16_PAIRS, FP16_MATRIX])


def grouped(fields, depthwise):
    return {**fields, "groups": fields["channels"], "filters": fields["channels"]} if depthwise else fields


@settings(max_examples=100, deadline=None)
@given(fields=SHAPES, depthwise=st.booleans(), parameters=PARAMETERS, arithmetic=ARITHMETICS, more=st.floats(1.01, 4.0))
def test_no_faster_device_is_slower(fields, depthwise, parameters, arithmetic, more):
    fields, family = grouped(fields, depthwise), ConvolutionFamily(arithmetic=arithmetic)
    full = MATRIX_DEVICE
    units = int(full.units_count * more)
    scaled = units / full.units_count
    vector, matrix = full.vector_flops_per_s, full.matrix_flops_per_s["fp16"]
    faster = {
        "bandwidth": replace(full, memory_bytes_per_s=full.memory_bytes_per_s * more),
        "cache": replace(full, cache_bytes=full.cache_bytes * more),
        "unit cache": replace(full, unit_cache_bytes_per_s=full.unit_cache_bytes_per_s * more),
        "peak": replace(full, vector_flops_per_s=vector * more, matrix_flops_per_s={"fp16": matrix * more}),
        "clock": replace(full, clock_hz=full.clock_hz * more),
        "units": replace(full, units_count=units, vector_flops_per_s=vector * scaled, matrix_flops_per_s={"fp16": matrix * scaled}),
    }
    before = family.seconds(shapes(**fields), full, parameters)[0]
    for change, device in faster.items():
        assert family.seconds(shapes(**fields), device, parameters)[0] <= before * (1 + 1e-9), change


@settings(max_examples=100, deadline=None)
@given(fields=SHAPES, depthwise=st.booleans(), parameters=PARAMETERS, arithmetic=ARITHMETICS)
def test_no_parameters_beat_the_bound_and_features_are_finite(fields, depthwise, parameters, arithmetic):
    family, shape = ConvolutionFamily(arithmetic=arithmetic), shapes(**grouped(fields, depthwise))
    assert family.seconds(shape, MATRIX_DEVICE, parameters)[0] >= family.bound_s(shape, MATRIX_DEVICE)[0] > 0
    features = family.features(shape)
    assert features.shape == (1, len(family.residual_features))
    assert np.isfinite(features).all()


def test_rows_are_priced_one_by_one():
    # Shapes with and without Winograd in one call: the same times as alone.
    both = [shapes(), shapes(row_stride=2, column_stride=2)]
    joined = {name: np.concatenate([part[name] for part in both]) for name in both[0]}
    parameters = {**PLAIN, "unfused_winograd_efficiency_ratio": 1.0}
    found = ConvolutionFamily().seconds(joined, DEVICE, parameters)
    assert found.tolist() == pytest.approx([float(ConvolutionFamily().seconds(part, DEVICE, parameters)[0]) for part in both])


def test_start_values_lie_inside_their_ranges():
    assert all(part.lower <= part.start <= part.upper for part in ConvolutionFamily().parameters)
