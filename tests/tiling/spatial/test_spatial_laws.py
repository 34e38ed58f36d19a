"""Laws of the mapper over drawn shapes and devices: the free choice is the best, bounds hold, more of anything never costs time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.specs.hardware import DATAFLOWS, BufferSpec
from replay.tiling.families.convolution import convolution_shapes
from replay.tiling.spatial.cost import Rates, cost_of
from replay.tiling.spatial.dataflow import Product, Tiles, granules
from replay.tiling.spatial.formats import cell_format
from replay.tiling.spatial.nests import NESTS, nests_at
from replay.tiling.spatial.product import spatial_convolution, spatial_product
from replay.tiling.spatial.traffic import fits
from tests.tiling.spatial.devices import shared, small_device

SLACK = 1.0 + 1e-12
LARGEST = 100
SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed, count=20):
    """Return rows, columns and depth of products from 1 to LARGEST, small ones as often as large ones."""
    return np.floor(np.exp(np.random.default_rng(seed).uniform(0.0, np.log(LARGEST), size=(3, count))))


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


def chosen(device, shapes, **asked):
    rows, columns, depth = (np.atleast_1d(np.asarray(sizes, dtype=float)) for sizes in shapes)
    return spatial_product(device, rows, columns, depth, element_bytes=2.0, **asked)


def seconds(device, shapes, **asked):
    return chosen(device, shapes, **asked).seconds


@settings(max_examples=60, deadline=None)
@given(
    device=devices(),
    shape=st.tuples(*[st.integers(1, LARGEST)] * 3),
    dataflow=st.sampled_from(DATAFLOWS),
    multiples=st.tuples(*[st.integers(1, 40)] * 3),
)
def test_no_tile_or_dataflow_that_is_asked_for_beats_the_free_choice(device, shape, dataflow, multiples):
    tile = tuple(8 * multiple for multiple in multiples)
    try:
        asked = seconds(device, shape, dataflow=dataflow, tile=tile)
    except SpecError:
        assume(False)
    assert seconds(device, shape, dataflow=dataflow) <= asked


@settings(max_examples=6, deadline=None)
@given(device=devices(), seed=SEEDS)
def test_the_free_dataflow_is_the_best_of_all(device, seed):
    shapes = drawn(seed)
    assert (seconds(device, shapes) == np.minimum.reduce([seconds(device, shapes, dataflow=name) for name in DATAFLOWS])).all()


def best_of_all(device, shape, dataflow):
    """Return time and memory bytes of the best of all legal tiles under all loop nests: every multiple of 4 of every dimension."""
    spatial, cell = device.spatial, cell_format(device, 2.0)
    rates = Rates(spatial=spatial, clock_hz=device.clock_hz, memory_bytes_per_s=device.memory_bytes_per_s)
    ones = np.ones(1)
    product = Product(
        **dict(zip(("rows", "columns", "depth"), (size * ones for size in shape), strict=True)),
        repeats=ones, input_density=ones, halo_elements=0 * ones, uncut_rows=ones, format=cell,
    ).grid(slice(None))  # fmt: skip
    every = [
        np.minimum(np.arange(edge, size + edge, edge), size) for edge, size in zip(granules(dataflow, spatial, cell), shape, strict=True)
    ]
    rows, columns, nests = every[0].reshape(1, 1, -1, 1), every[1].reshape(1, 1, 1, -1), nests_at(tuple(range(len(NESTS))))
    found = (np.inf, np.inf)
    for depth in every[2]:
        trips = [np.ceil(size / tile) for size, tile in zip(shape, (rows, columns, depth * ones), strict=True)]
        tiles = Tiles(
            rows=rows, columns=columns, depth=depth * ones, row_trips=trips[0], column_trips=trips[1], depth_trips=trips[2]
        )  # fmt: skip
        cost = cost_of(product, dataflow, rates, nests, tiles)
        legal, joined_s = fits(nests, spatial, product, tiles), cost.seconds(double_buffered=spatial.double_buffered)
        quickest = np.where(legal, joined_s, np.inf).min()
        least = np.where(legal & (joined_s == quickest), cost.dram_bytes, np.inf).min()
        found = min(found, (quickest, least))
    return found


@example(device=small_device(double_buffered=False, buffers=shared(600.0)), shape=(4, 4, 34), dataflow="output_stationary")
@example(  # the deepest tile that fits would leave a last one that is shorter than the array
    device=small_device(
        arrays_count=4,
        array_columns_count=8,
        folds_overlap=True,
        double_buffered=False,
        buffers={"shared": BufferSpec(bytes=1e3), "outputs": BufferSpec(bytes=1e3, banks_count=4, bank_bytes_per_s=10e9)},
        memory_bytes_per_s=0.3e9,
    ),
    shape=(17, 19, 73),
    dataflow="output_stationary",
)
@example(  # evenly cut, the last tile would still be shorter than the array
    device=small_device(folds_overlap=True, double_buffered=False, buffers=shared(2e3), memory_bytes_per_s=0.3e9),
    shape=(21, 33, 39),
    dataflow="output_stationary",
)
@settings(max_examples=60, deadline=None)
@given(device=devices(), shape=st.tuples(*[st.integers(1, LARGEST)] * 3), dataflow=st.sampled_from(DATAFLOWS))
def test_the_free_choice_is_the_best_of_all_legal_tiles_tried_one_by_one(device, shape, dataflow):
    best_s, least_bytes = best_of_all(device, shape, dataflow)
    found = chosen(device, shape, dataflow=dataflow)
    assert found.seconds[0] == pytest.approx(best_s, rel=1e-12)
    assert found.dram_bytes[0] == least_bytes


@settings(max_examples=8, deadline=None)
@given(device=devices(), seed=SEEDS)
def test_time_never_beats_the_peak_nor_the_bytes_that_must_move(device, seed):
    rows, columns, depth = shapes = drawn(seed)
    found = chosen(device, shapes)
    least = 2.0 * (rows * depth + depth * columns + rows * columns)
    assert (found.dram_bytes >= least).all()
    assert (found.sram_bytes >= 2.0 * least - 2.0 * rows * columns).all()
    assert (found.utilisation_ratio > 0).all()
    assert (found.utilisation_ratio <= 1).all()
    assert (found.terms.compute_s * device.matrix_flops_per_s["bf16"] * SLACK >= 2.0 * rows * columns * depth).all()
    moved_s = found.terms.memory_s + (found.terms.sync_s if device.spatial.double_buffered else 0.0)
    assert moved_s == pytest.approx(found.dram_bytes / device.memory_bytes_per_s)
    assert (found.seconds * SLACK >= np.maximum(found.terms.compute_s, moved_s)).all()
    assert (found.tile <= shapes.T).all()


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
@settings(max_examples=6, deadline=None)
@given(device=devices(), seed=SEEDS, dataflow=st.sampled_from((None, *DATAFLOWS)))
def test_more_of_it_never_costs_time(what, device, seed, dataflow):
    if what == "arrays" and device.spatial.arrays_count == 4:
        device = replace(device, spatial=replace(device.spatial, arrays_count=1))  # eight arrays share only streams of eight
    shapes = drawn(seed)
    assert (seconds(grown(device, what), shapes, dataflow=dataflow) <= seconds(device, shapes, dataflow=dataflow) * SLACK).all()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_a_larger_array_is_faster_on_products_that_fill_it(dataflow, overlap):
    shapes = 8.0 * np.random.default_rng(1).integers(2, 30, size=(3, 100))
    small, large = (
        seconds(small_device(array_rows_count=edge, array_columns_count=edge, folds_overlap=overlap), shapes, dataflow=dataflow)
        for edge in (4, 8)
    )
    assert (large < small).all()


@settings(max_examples=6, deadline=None)
@given(device=devices(), seed=SEEDS)
def test_shapes_do_not_depend_on_those_beside_them(device, seed):
    shapes = drawn(seed, 6)
    together = chosen(device, shapes)
    for index, shape in enumerate(shapes.T):
        alone = chosen(device, shape)
        for name in ("seconds", "cycles", "dram_bytes", "sram_bytes", "dataflow", "loop_order", "held_whole", "tile"):
            assert np.array_equal(getattr(together, name)[index], getattr(alone, name)[0]), name


@settings(max_examples=6, deadline=None)
@given(device=devices(), seed=SEEDS)
def test_energy_is_what_moves_and_multiplies_times_its_price(device, seed):
    buffers = {name: replace(buffer, energy_j_per_byte=3.0) for name, buffer in device.spatial.buffers.items()}
    priced = replace(device, spatial=replace(device.spatial, buffers=buffers, mac_energy_j={"bf16": 2.0}, memory_energy_j_per_byte=5.0))
    shapes = drawn(seed)
    found = chosen(priced, shapes)
    assert found.energy_j["mac"] == pytest.approx(2.0 * shapes.prod(axis=0))
    assert found.energy_j["sram"] == pytest.approx(3.0 * found.sram_bytes)
    assert found.energy_j["dram"] == pytest.approx(5.0 * found.dram_bytes)


@settings(max_examples=8, deadline=None)
@given(device=devices(), seed=SEEDS)
def test_convolutions_move_between_every_pixel_once_and_the_unfolded_product(device, seed):
    draw = np.random.default_rng(seed)
    images, channels, filters, size = (draw.integers(low, high, 20).astype(float) for low, high in ((1, 4), (1, 9), (1, 9), (5, 31)))
    groups, taps, stride = (draw.choice(values, 20) for values in ((1.0, 4.0), (1.0, 3.0, 5.0), (1.0, 2.0, 3.0)))
    shapes = convolution_shapes(
        images=images, channels=groups * channels, filters=groups * filters, rows=size, columns=size, filter_rows=taps, filter_columns=taps,
        row_padding=taps // 2, column_padding=taps // 2, row_stride=stride, column_stride=stride, groups=groups,
    )  # fmt: skip
    found = spatial_convolution(device, shapes, element_bytes=2.0)
    edge = shapes["result_rows"]
    pixels = images * edge**2
    weights, results = taps * taps * channels * filters * groups, pixels * filters * groups
    reach = np.minimum(size, edge * np.minimum(taps, stride) + np.maximum(taps - stride, 0))
    assert (found.dram_bytes * SLACK >= 2.0 * (images * groups * channels * reach * reach + weights + results)).all()
    unfolded = spatial_product(device, pixels, filters, channels * taps * taps, element_bytes=2.0, repeats=groups)
    assert (found.seconds <= unfolded.seconds * SLACK).all()
