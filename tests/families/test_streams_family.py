"""Streams: cases worked on paper for a round device, laws over drawn ones, and the shapes of each operator."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.tiling.families import stream_shapes
from replay.tiling.families.scales import SCALE_INCREMENT
from replay.tiling.families.streams import (
    ACTIVATION,
    ELEMENTWISE,
    EMBEDDING,
    NORM,
    QUANTISE,
    RESIDUAL_ADD,
    ROPE,
    SOFTMAX,
    TRANSFORM,
    bytes_bound_s,
)
from tests.models import round_hardware

PLAIN = {
    "floor_s": 0.0, "memory_efficiency_ratio": 1.0, "overlap_exponent": 1.0, "element_cycles": 0.0, "cache_rate_ratio": 1.0,
    "cache_share_ratio": 1.0, "row_cycles": 0.0, "unit_share_bytes": 1e5,
}  # fmt: skip
"""No floor, no arithmetic, no gain from the cache, times added up."""
ADDED = {**PLAIN, "scale_row_cycles": 0.0, "scale_element_cycles": 0.0, "scale_rows_per_unit": 8.0}


def only(values):
    assert values.shape == (1,)
    return float(values[0])


def test_an_addition_moves_twelve_bytes_an_element_and_pays_the_floor():
    shapes = stream_shapes.elementwise(1e6, inputs=2, element_bytes=4.0)
    assert only(ELEMENTWISE.seconds(shapes, round_hardware(), {**PLAIN, "floor_s": 2e-6})) == pytest.approx(2e-6 + 12e6 / 1e12)


def test_arithmetic_of_all_units_runs_beside_memory():
    shapes = stream_shapes.elementwise(1e6, inputs=2, element_bytes=4.0)
    device, busy = round_hardware(), {**PLAIN, "element_cycles": 1.0}
    assert only(ELEMENTWISE.seconds(shapes, device, busy)) == pytest.approx(12e-6 + 1e6 / (1e9 * 100))
    assert only(ELEMENTWISE.seconds(shapes, device, {**busy, "overlap_exponent": 2.0})) == pytest.approx(np.hypot(12e-6, 10e-6))


def test_what_fits_the_cache_comes_faster_and_what_is_far_too_large_does_not():
    faster = {**PLAIN, "cache_rate_ratio": 3.0}
    for elements, gain in ((1e5, 3.0), (1e9, 1.0)):  # 1.2 MB and 12 GB against 40 MB
        shapes = stream_shapes.elementwise(elements, inputs=2, element_bytes=4.0)
        assert only(ELEMENTWISE.seconds(shapes, round_hardware(), faster)) == pytest.approx(elements * 12 / 1e12 / gain, rel=1e-4)
    half = stream_shapes.elementwise(40e6 / 12, inputs=2, element_bytes=4.0)
    assert only(ELEMENTWISE.seconds(half, round_hardware(), faster)) == pytest.approx(40e6 / 1e12 / 2.0)


def test_rows_beyond_the_units_wait_their_turn():
    chain = {**PLAIN, "row_cycles": 1000.0, "element_cycles": 2.0}
    for rows, turns in ((1, 1), (200, 1), (600, 3)):  # 100 units hold 2 rows of 1024 threads each
        shapes = stream_shapes.norm(rows, 500, element_bytes=1e-9, row_threads=1024)
        assert only(NORM.seconds(shapes, round_hardware(), chain)) == pytest.approx(turns * 2e-6, rel=1e-6)


def test_a_norm_reads_rows_again_that_left_the_cache():
    device = round_hardware()
    for columns, times in ((100, 2), (1_000_000, 3)):  # 16 rows of 400 bytes, or of 4 MB, against a share of 0.1 MB
        shapes = stream_shapes.norm(1e4, columns, element_bytes=4.0)
        assert only(NORM.seconds(shapes, device, PLAIN)) == pytest.approx(times * 1e4 * columns * 4 / 1e12, rel=1e-3)


def test_the_bound_is_bytes_beyond_the_cache_or_an_operation_an_element():
    device = round_hardware()
    assert only(bytes_bound_s(np.array([100e6]), device)) == pytest.approx(60e-6)
    assert only(bytes_bound_s(np.array([30e6]), device)) == pytest.approx(30e6 / (100 * 1e15))
    assert only(ELEMENTWISE.bound_s(stream_shapes.elementwise(1e6, inputs=1, element_bytes=1.0), device)) == pytest.approx(1e6 / 10e12)


DRAWN = st.fixed_dictionaries(
    {"rows": st.integers(1, 10**6), "columns": st.integers(1, 70000), "element_bytes": st.sampled_from([1.0, 2.0, 4.0])}
)


def family_and_shapes(name, rows, columns, element_bytes):
    return {
        "elementwise": (ELEMENTWISE, stream_shapes.residual_add(rows, columns, element_bytes=element_bytes)),
        "norm": (NORM, stream_shapes.norm(rows, columns, element_bytes=element_bytes)),
        "softmax": (SOFTMAX, stream_shapes.softmax(rows, columns, element_bytes=element_bytes)),
        "quantise": (QUANTISE, stream_shapes.quantise(rows, columns, from_bytes=element_bytes, to_bytes=1.0)),
    }[name]


@pytest.mark.parametrize("name", ["elementwise", "norm", "softmax", "quantise"])
@settings(max_examples=60, deadline=None)
@given(shape=DRAWN, data=st.data(), more=st.floats(1.01, 4.0))
def test_no_faster_device_is_slower_and_none_beats_the_bound(name, shape, data, more):
    family, shapes = family_and_shapes(name, **shape)
    parameters = data.draw(st.fixed_dictionaries({part.name: st.floats(part.lower, part.upper) for part in family.parameters}))
    device = round_hardware()
    before = only(family.seconds(shapes, device, parameters))
    assert before >= only(family.bound_s(shapes, device)) > 0
    better = {
        "bandwidth": replace(device, memory_bytes_per_s=device.memory_bytes_per_s * more),
        "clock": replace(device, clock_hz=device.clock_hz * more),
        "peak": replace(device, vector_flops_per_s=device.vector_flops_per_s * more),
        "units": replace(device, units_count=int(device.units_count * more)),
    }
    for change, faster in better.items():
        assert only(family.seconds(shapes, faster, parameters)) <= before * (1 + 1e-9), change
    assert family.features(shapes).shape == (1, len(family.residual_features))


def test_finding_a_scale_adds_the_reduction_where_rows_are_what_takes_time():
    shapes = stream_shapes.quantise(1600, 512, from_bytes=2.0, to_bytes=1.0)  # two turns of 8 rows on 100 units
    device = round_hardware(memory_bytes_per_s=1e30)
    found = SCALE_INCREMENT.seconds(shapes, device, {**ADDED, "scale_row_cycles": 300.0, "scale_element_cycles": 1.0, "floor_s": 1e-6})
    assert only(found) == pytest.approx(1e-6 + 2 * (300 + 512) * 1e-9)
    short = stream_shapes.quantise(1600, 64, from_bytes=2.0, to_bytes=1.0)  # a quarter of a warp's load
    assert only(SCALE_INCREMENT.seconds(short, device, {**ADDED, "scale_row_cycles": 300.0})) == pytest.approx(2 * 75e-9)


def test_the_reduction_hides_behind_memory():
    shapes = stream_shapes.quantise(16000, 512, from_bytes=2.0, to_bytes=1.0)
    busy = {**ADDED, "row_cycles": 100.0, "scale_row_cycles": 100.0, "overlap_exponent": 8.0, "floor_s": 0.0, "unit_share_bytes": 1e7}
    shown = only(SCALE_INCREMENT.seconds(shapes, round_hardware(memory_bytes_per_s=1e30), busy))
    hidden = only(SCALE_INCREMENT.seconds(shapes, round_hardware(memory_bytes_per_s=1e12), busy))
    assert shown == pytest.approx(20 * 100e-9)
    assert 0 < hidden < shown / 100
    assert only(SCALE_INCREMENT.bound_s(shapes, round_hardware())) == 0.0


def test_softmax_pads_short_rows_to_a_power_of_two_and_walks_long_ones_three_times():
    shapes = stream_shapes.softmax(np.full(4, 10.0), np.array([600.0, 1024.0, 1025.0, 4096.0]), element_bytes=4.0)
    assert shapes["work_columns"].tolist() == [1024, 1024, 1025, 4096]
    assert shapes["passes"].tolist() == [0, 0, 2, 2]
    assert shapes["rows_per_unit"].tolist() == [64, 64, 8, 4]


def test_each_operator_moves_the_bytes_it_must():
    def moved(shapes):
        return only(shapes["rows"] * shapes["columns"] * (shapes["read_bytes"] + shapes["written_bytes"]))

    assert moved(stream_shapes.rope(10, 40, 128, element_bytes=2.0)) == 10 * 40 * 128 * 4
    assert moved(stream_shapes.gated_activation(10, 512, element_bytes=2.0)) == 10 * 512 * 6
    assert moved(stream_shapes.gated_activation(10, 512, gates=0.0, element_bytes=2.0)) == 10 * 512 * 4
    assert moved(stream_shapes.residual_add(10, 512, element_bytes=2.0)) == 10 * 512 * 6
    assert moved(stream_shapes.embedding(10, 512, element_bytes=2.0)) == 10 * 512 * 4
    assert moved(stream_shapes.quantise(10, 512, from_bytes=2.0, to_bytes=1.0)) == 10 * 512 * 3


@pytest.mark.parametrize(("run", "wasted"), [(2, 16.0), (32, 1.0), (48, 64 / 48), (4096, 1.0)])
def test_a_layout_change_wastes_the_rest_of_a_sector_that_a_run_ends_in(run, wasted):
    shapes = stream_shapes.transform(1000, element_bytes=2.0, read_run_bytes=run, written_run_bytes=4096)
    assert only(shapes["read_bytes"]) == pytest.approx(2.0 * wasted)
    assert only(shapes["written_bytes"]) == 2.0


def test_every_operator_has_a_family_of_its_own_name():
    families = (ELEMENTWISE, EMBEDDING, TRANSFORM, NORM, SOFTMAX, ROPE, ACTIVATION, RESIDUAL_ADD, QUANTISE, SCALE_INCREMENT)
    assert len({family.name for family in families}) == len(families)


def test_a_lookup_and_a_layout_change_cost_their_bytes():
    device = round_hardware()
    looked_up = stream_shapes.embedding(1e4, 4096, element_bytes=2.0)
    assert only(EMBEDDING.seconds(looked_up, device, PLAIN)) == pytest.approx(1e4 * 4096 * 4 / 1e12)
    transposed = stream_shapes.transform(1e8, element_bytes=2.0, read_run_bytes=2.0, written_run_bytes=4096)
    assert only(TRANSFORM.seconds(transposed, device, PLAIN)) == pytest.approx(1e8 * 2 * (16 + 1) / 1e12)
