"""Laws of the mapper over drawn shapes and devices: the free choice is the best, bounds hold, more of anything never costs time."""

from dataclasses import replace
from itertools import product as every

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.specs.hardware import DATAFLOWS, BufferSpec
from replay.tiling.families.convolution import convolution_shapes
from replay.tiling.spatial.product import spatial_convolution, spatial_product
from tests.tiling.spatial.devices import shared, small_device

SLACK = 1.0 + 1e-12
SHAPES = st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))


@st.composite
def devices(draw):
    size = draw(st.sampled_from((600.0, 2000.0, 10e3, 1e6)))
    banks = draw(st.sampled_from(({}, {"banks_count": 4, "bank_bytes_per_s": 10e9})))
    whole = shared(size, **banks)
    apart = {"shared": BufferSpec(bytes=size / 2), "outputs": BufferSpec(bytes=size / 2, **banks)}
    return small_device(
        arrays_count=draw(st.sampled_from((1, 2, 4))),
        array_columns_count=draw(st.sampled_from((4, 8))),
        folds_overlap=draw(st.booleans()),
        double_buffered=draw(st.booleans()),
        buffers=draw(st.sampled_from((whole, apart))),
        memory_bytes_per_s=draw(st.sampled_from((0.3e9, 3e9, 30e9))),
    )


def chosen(device, shape, **asked):
    rows, columns, depth = (np.array([float(size)]) for size in shape)
    return spatial_product(device, rows, columns, depth, element_bytes=2.0, **asked)


def seconds(device, shape, **asked):
    return float(chosen(device, shape, **asked).seconds[0])


@settings(max_examples=150, deadline=None)
@given(device=devices(), shape=SHAPES, dataflow=st.sampled_from((None, *DATAFLOWS)), multiples=st.tuples(*[st.integers(1, 40)] * 3))
def test_no_tile_or_dataflow_that_is_asked_for_beats_the_free_choice(device, shape, dataflow, multiples):
    tile = tuple(8 * multiple for multiple in multiples)
    try:
        asked = seconds(device, shape, dataflow=dataflow, tile=tile)
    except SpecError:
        assume(False)
    assert seconds(device, shape) <= asked
    assert seconds(device, shape, dataflow=dataflow) <= asked


@pytest.mark.parametrize("shape", [(20, 24, 28), (17, 33, 9), (64, 5, 30)])
@pytest.mark.parametrize("size", [700.0, 1500.0])
def test_the_free_choice_is_the_best_of_all_legal_tiles_tried_one_by_one(shape, size):
    device = small_device(buffers=shared(size), memory_bytes_per_s=2e9, folds_overlap=True)
    best = np.inf
    for tile in every(*(range(4, edge + 4, 4) for edge in shape)):
        try:
            best = min(best, seconds(device, shape, tile=tile))
        except SpecError:
            continue
    assert best < np.inf
    assert seconds(device, shape) == best


@settings(max_examples=100, deadline=None)
@given(device=devices(), shape=SHAPES)
def test_time_never_beats_the_peak_nor_the_bytes_that_must_move(device, shape):
    rows, columns, depth = shape
    found = chosen(device, shape)
    least = 2.0 * (rows * depth + depth * columns + rows * columns)
    assert found.dram_bytes[0] >= least
    assert found.sram_bytes[0] >= 2.0 * least - 2.0 * rows * columns
    assert 0 < found.utilisation_ratio[0] <= 1
    assert found.terms.compute_s[0] * device.matrix_flops_per_s["bf16"] * SLACK >= 2.0 * rows * columns * depth
    moved_s = found.terms.memory_s[0] + (found.terms.sync_s[0] if device.spatial.double_buffered else 0.0)
    assert moved_s == pytest.approx(found.dram_bytes[0] / device.memory_bytes_per_s)
    assert found.seconds[0] * SLACK >= max(found.terms.compute_s[0], moved_s)
    assert (found.tile[0] <= shape).all()


def grown(device, what):
    spatial = device.spatial
    buffers = {name: replace(buffer, bytes=2 * buffer.bytes) for name, buffer in spatial.buffers.items()}
    banks = {name: replace(each, banks_count=each.banks_count and 2 * each.banks_count) for name, each in spatial.buffers.items()}
    peaks = {name: 2 * rate for name, rate in device.matrix_flops_per_s.items()}
    return {
        "memory rate": lambda: replace(device, memory_bytes_per_s=2 * device.memory_bytes_per_s),
        "buffers": lambda: replace(device, spatial=replace(spatial, buffers=buffers)),
        "banks": lambda: replace(device, spatial=replace(spatial, buffers=banks)),
        "clock": lambda: replace(device, clock_hz=2 * device.clock_hz, matrix_flops_per_s=peaks),
        "arrays": lambda: replace(device, spatial=replace(spatial, arrays_count=2 * spatial.arrays_count), matrix_flops_per_s=peaks),
        "overlapping folds": lambda: replace(device, spatial=replace(spatial, folds_overlap=True)),
    }[what]()


@pytest.mark.parametrize("what", ["memory rate", "buffers", "banks", "clock", "arrays", "overlapping folds"])
@settings(max_examples=40, deadline=None)
@given(device=devices(), shape=SHAPES, dataflow=st.sampled_from((None, *DATAFLOWS)))
def test_more_of_it_never_costs_time(what, device, shape, dataflow):
    if what == "arrays" and device.spatial.arrays_count == 4:
        device = replace(device, spatial=replace(device.spatial, arrays_count=1))  # eight arrays share only streams of eight
    assert seconds(grown(device, what), shape, dataflow=dataflow) <= seconds(device, shape, dataflow=dataflow) * SLACK


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@given(multiples=st.tuples(*[st.integers(2, 30)] * 3))
@settings(max_examples=20, deadline=None)
def test_a_larger_array_is_faster_on_products_that_fill_it(dataflow, multiples):
    shape = tuple(8 * multiple for multiple in multiples)
    for overlap in (False, True):
        times = [
            seconds(small_device(array_rows_count=edge, array_columns_count=edge, folds_overlap=overlap), shape, dataflow=dataflow)
            for edge in (4, 8)
        ]
        assert times[1] < times[0]


@settings(max_examples=30, deadline=None)
@given(device=devices(), shapes=st.lists(SHAPES, min_size=2, max_size=8))
def test_shapes_do_not_depend_on_those_beside_them(device, shapes):
    rows, columns, depth = (np.array(column, dtype=float) for column in zip(*shapes, strict=True))
    together = spatial_product(device, rows, columns, depth, element_bytes=2.0)
    for index, shape in enumerate(shapes):
        alone = chosen(device, shape)
        assert together.seconds[index] == alone.seconds[0]
        assert together.dram_bytes[index] == alone.dram_bytes[0]
        assert together.dataflow[index] == alone.dataflow[0]
        assert together.tile[index].tolist() == alone.tile[0].tolist()


@settings(max_examples=50, deadline=None)
@given(device=devices(), shape=SHAPES)
def test_energy_is_what_moves_and_multiplies_times_its_price(device, shape):
    buffers = {name: replace(buffer, energy_j_per_byte=3.0) for name, buffer in device.spatial.buffers.items()}
    priced = replace(device, spatial=replace(device.spatial, buffers=buffers, mac_energy_j={"bf16": 2.0}, memory_energy_j_per_byte=5.0))
    found = chosen(priced, shape)
    assert found.energy_j["mac"][0] == 2.0 * np.prod(shape)
    assert found.energy_j["sram"][0] == pytest.approx(3.0 * found.sram_bytes[0])
    assert found.energy_j["dram"][0] == pytest.approx(5.0 * found.dram_bytes[0])


@settings(max_examples=50, deadline=None)
@given(
    device=devices(), images=st.integers(1, 3), channels=st.integers(1, 8), filters=st.integers(1, 8), groups=st.sampled_from((1, 4)),
    size=st.integers(5, 30), taps=st.sampled_from((1, 3, 5)), stride=st.integers(1, 3),
)  # fmt: skip
def test_convolutions_move_between_every_pixel_once_and_the_unfolded_product(
    device, images, channels, filters, groups, size, taps, stride
):
    named = {
        "images": images, "channels": groups * channels, "filters": groups * filters, "rows": size, "columns": size, "filter_rows": taps,
        "filter_columns": taps, "row_padding": taps // 2, "column_padding": taps // 2, "row_stride": stride, "column_stride": stride,
        "groups": groups,
    }  # fmt: skip
    shapes = convolution_shapes(**{name: np.array([float(value)]) for name, value in named.items()})
    found = spatial_convolution(device, shapes, element_bytes=2.0)
    pixels = images * float(shapes["result_rows"][0]) ** 2
    weights, results = taps * taps * channels * filters * groups, pixels * filters * groups
    reach = min(size, (float(shapes["result_rows"][0]) * min(taps, stride) + max(taps - stride, 0)))
    assert found.dram_bytes[0] >= 2.0 * (images * groups * channels * reach * reach + weights + results) / SLACK
    unfolded = spatial_product(device, np.array([pixels]), filters, channels * taps * taps, element_bytes=2.0, repeats=groups)
    assert found.seconds[0] <= unfolded.seconds[0] * SLACK
