"""Bytes per memory level, tiles in buffers, joined time and energy: hand-worked cases, a loop nest run step by step, conservation."""

from dataclasses import replace
from itertools import product as every

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.specs.hardware import DATAFLOWS, BufferSpec
from replay.tiling.families.convolution import convolution_shapes
from replay.tiling.spatial.dataflow import Product, Tiles
from replay.tiling.spatial.formats import cell_format
from replay.tiling.spatial.nests import NESTS, OPERANDS, nest_name, nests_at
from replay.tiling.spatial.product import spatial_convolution, spatial_product
from replay.tiling.spatial.traffic import memory_traffic
from tests.tiling.spatial.devices import PLENTY, ROUND_SPATIAL, shared, small_device


def one(value):
    return np.array([float(value)])


def chosen(device, rows, columns, depth, *, element_bytes=2.0, **asked):
    return spatial_product(device, one(rows), one(columns), one(depth), element_bytes=element_bytes, **asked)


def product(rows, columns, depth):
    return Product(
        rows=one(rows), columns=one(columns), depth=one(depth), repeats=one(1), input_density=one(1), halo_elements=one(0),
        uncut_rows=one(1), format=cell_format(small_device(), 2.0),
    )  # fmt: skip


def tiles(sizes, trips):
    tile = [one(size / trip) for size, trip in zip(sizes, trips, strict=True)]
    return Tiles(
        rows=tile[0], columns=tile[1], depth=tile[2], row_trips=one(trips[0]), column_trips=one(trips[1]), depth_trips=one(trips[2])
    )  # fmt: skip


def nest_bytes(sizes, trips, loops, *held):
    """Run three loops step by step, the outermost first; count the bytes that come and go while so much of each operand is kept."""
    sides = dict(zip("mnk", (size / trip for size, trip in zip(sizes, trips, strict=True)), strict=True))
    count = dict(zip("mnk", trips, strict=True))
    kept = {operand: (None, set()) for operand in OPERANDS}
    moved, steps_done = dict.fromkeys(OPERANDS, 0.0), {}

    def leave(tiles):
        moved["outputs"] += sum(sides["m"] * sides["n"] * (2.0 if steps_done[tile] == count["k"] else 4.0) for tile in tiles)

    for step in np.ndindex(*(count[letter] for letter in loops)):
        at = dict(zip(loops, step, strict=True))
        for operand, letters in zip(OPERANDS, held, strict=True):
            tile, part = tuple(at[letter.lower()] for letter in letters), tuple(at[letter] for letter in letters if letter.islower())
            if kept[operand][0] != part:
                if operand == "outputs":
                    leave(kept[operand][1])
                kept[operand] = (part, set())
            if tile not in kept[operand][1]:
                kept[operand][1].add(tile)
                area = sides[letters[0].lower()] * sides[letters[1].lower()]
                moved[operand] += area * (2.0 if operand != "outputs" else 4.0 * (tile in steps_done))
            if operand == "outputs":
                steps_done[tile] = steps_done.get(tile, 0) + 1
    leave(kept["outputs"][1])
    return moved


def room_elements(sizes, trips, *held):
    """Return the elements that are kept of each operand."""
    sides = dict(zip("mnkMNK", [*(size / trip for size, trip in zip(sizes, trips, strict=True)), *sizes], strict=True))
    return [sides[letters[0]] * sides[letters[1]] for letters in held]


@pytest.mark.parametrize("trips", [(2, 3, 4), (3, 2, 2)])
@pytest.mark.parametrize("place", range(len(NESTS)))
def test_traffic_of_a_loop_nest_is_that_of_the_loops_run_step_by_step(place, trips):
    sizes = (24, 24, 24)
    found = memory_traffic(nests_at((place,)), ROUND_SPATIAL, product(*sizes), tiles(sizes, trips))
    assert {operand: moved.item() for operand, moved in found.items()} == nest_bytes(sizes, trips, *NESTS[place])


@pytest.mark.parametrize("trips", [(2, 3, 4), (3, 1, 2), (1, 2, 3), (2, 3, 1), (1, 1, 2), (1, 2, 1)])
def test_no_other_order_of_the_loops_and_no_other_holding_moves_less_in_no_more_room(trips):
    sizes = (12, 24, 36)
    known = []
    for place in range(len(NESTS)):
        traffic = memory_traffic(nests_at((place,)), ROUND_SPATIAL, product(*sizes), tiles(sizes, trips))
        known.append([*(moved.item() for moved in traffic.values()), *room_elements(sizes, trips, *NESTS[place][1:])])
    for loops, inputs, weights, outputs in every(
        ("mnk", "mkn", "nmk", "nkm", "kmn", "knm"), ("mk", "mK", "Mk", "MK"), ("kn", "kN", "Kn", "KN"), ("mn", "mN", "Mn", "MN")
    ):
        needs = [
            *nest_bytes(sizes, trips, loops, inputs, weights, outputs).values(),
            *room_elements(sizes, trips, inputs, weights, outputs),
        ]
        assert any(all(have <= need for have, need in zip(mine, needs, strict=True)) for mine in known), (loops, inputs, weights, outputs)


def test_the_words_for_a_nest_name_its_loops_and_what_is_held_whole():
    assert nest_name(0) == ("rows, columns, depth", "")
    assert nest_name(NESTS.index(("nmk", "MK", "Kn", "mn"))) == ("columns, rows, depth", "inputs (rows, depth), weights (depth)")


def test_eight_cubed_by_hand():
    device = small_device(
        buffers=shared(PLENTY, energy_j_per_byte=2e-12), mac_energy_j={"bf16": 1e-12}, memory_energy_j_per_byte=100e-12,
        memory_bytes_per_s=1e9,
    )  # fmt: skip
    found = chosen(device, 8, 8, 8, dataflow="weight_stationary")
    # Three matrices of 64 elements of 2 bytes. In the arrays: inputs twice (two folds of columns), weights once, and sums of 4 bytes
    # written for both folds of the depth and read back for the second.
    assert found.dram_bytes[0] == 3 * 128
    assert found.sram_bytes[0] == 3 * 128 + 2 * 128 + 128 + 64 * 4 * 3
    assert found.utilisation_ratio[0] == 512 / (72 * 16)
    assert {level: float(joules[0]) for level, joules in found.energy_j.items()} == pytest.approx(
        {"mac": 512e-12, "sram": 1536 * 2e-12, "dram": 384 * 100e-12}
    )
    # 72 ns of computing behind 384 ns of memory, of which the first 4 x 4 weights are waited for.
    assert found.terms.compute_s[0] == pytest.approx(72e-9)
    assert found.terms.memory_s[0] == pytest.approx((384 - 32) * 1e-9)
    assert found.terms.sync_s[0] == pytest.approx(32e-9)
    assert found.seconds[0] == pytest.approx(384e-9)


def test_without_double_buffers_computing_and_memory_take_turns_and_the_floor_is_charged_once():
    device = small_device(double_buffered=False, memory_bytes_per_s=1e9, kernel_floor_s=1e-6)
    found = chosen(device, 8, 8, 8, dataflow="weight_stationary")
    assert found.overlap_exponent == 1.0
    assert found.seconds[0] == pytest.approx(72e-9 + 384e-9 + 1e-6)
    doubled = replace(device, spatial=replace(device.spatial, double_buffered=True))
    assert chosen(doubled, 8, 8, 8, dataflow="weight_stationary").seconds[0] == pytest.approx(384e-9 + 1e-6)


def test_a_buffer_s_banks_can_be_what_is_slowest():
    device = small_device(buffers=shared(PLENTY, banks_count=4, bank_bytes_per_s=1e9))
    assert chosen(device, 8, 8, 8, dataflow="weight_stationary").terms.compute_s[0] == pytest.approx(1536 / 4e9)
    more = small_device(buffers=shared(PLENTY, banks_count=400, bank_bytes_per_s=1e9))
    assert chosen(more, 8, 8, 8, dataflow="weight_stationary").terms.compute_s[0] == pytest.approx(72e-9)


def test_only_the_bytes_of_its_own_operands_pass_a_buffer():
    banks = {"banks_count": 1, "bank_bytes_per_s": 1e9}
    buffers = {"inputs": BufferSpec(bytes=PLENTY), "weights": BufferSpec(bytes=PLENTY, **banks), "outputs": BufferSpec(bytes=PLENTY)}
    found = chosen(small_device(buffers=buffers), 8, 8, 8, dataflow="weight_stationary")
    assert found.terms.compute_s[0] == pytest.approx(256e-9)  # weights in from device memory, and out to the array


def test_a_level_without_an_energy_is_absent():
    assert chosen(small_device(), 8, 8, 8).energy_j == {}
    buffers = {"shared": BufferSpec(bytes=PLENTY, energy_j_per_byte=1e-12), "weights": BufferSpec(bytes=PLENTY)}
    assert chosen(small_device(buffers=buffers, mac_energy_j={"int8": 1e-12}), 8, 8, 8).energy_j == {}
    assert set(chosen(small_device(mac_energy_j={"int8": 1e-12}), 8, 8, 8, element_bytes=1.0).energy_j) == {"mac"}


def test_a_small_buffer_is_tiled_by_hand():
    # 16 x 16 x 16 of 2 bytes, sums of 4. Three 8 x 8 tiles, each with the next one beside it, take 2 x (128 + 128 + 256) = 1024 bytes. Sums
    # stay until they are done, and both operands come twice: 2 x 512 + 2 x 512 + 512 bytes.
    pinned = chosen(small_device(buffers=shared(1024), memory_bytes_per_s=1.0), 16, 16, 16, tile=(8, 8, 8))
    assert pinned.dram_bytes[0] == 2 * 512 + 2 * 512 + 512
    assert (pinned.loop_order[0], pinned.held_whole[0]) == ("rows, columns, depth", "")
    # All inputs (512 bytes, once), a panel of 4 columns of weights and the next one (2 x 128), 4 x 4 sums (2 x 64): 896 bytes, and
    # everything moves once. A byte less than that does not hold any such choice.
    free = chosen(small_device(buffers=shared(896), memory_bytes_per_s=1.0), 16, 16, 16)
    assert free.dram_bytes[0] == 3 * 512
    assert chosen(small_device(buffers=shared(895), memory_bytes_per_s=1.0), 16, 16, 16).dram_bytes[0] > 3 * 512


def test_one_tile_of_everything_needs_no_second_copy():
    # Inputs and weights of 128 bytes, sums of 256.
    assert chosen(small_device(buffers=shared(512)), 8, 8, 8, tile=(8, 8, 8)).dram_bytes[0] == 3 * 128
    with pytest.raises(SpecError, match="not this tile"):
        chosen(small_device(buffers=shared(511)), 8, 8, 8, tile=(8, 8, 8))


def test_several_products_need_a_second_copy_for_the_next_one():
    assert chosen(small_device(buffers=shared(1024)), 8, 8, 8, tile=(8, 8, 8), repeats=2.0).dram_bytes[0] == 2 * 3 * 128
    with pytest.raises(SpecError, match="not this tile"):
        chosen(small_device(buffers=shared(1023)), 8, 8, 8, tile=(8, 8, 8), repeats=2.0)


def test_the_halo_is_read_once_where_all_rows_of_the_inputs_are_held():
    rows_cut = replace(product(24, 24, 24), input_density=one(0.5), halo_elements=one(10))
    for place, nest in enumerate(NESTS):
        moved = memory_traffic(nests_at((place,)), ROUND_SPATIAL, rows_cut, tiles((24, 24, 24), (3, 1, 1)))["inputs"].item()
        assert moved == 2.0 * (24 * 24 / 2 + (0 if "M" in nest[1] else 2 * 10)), nest


def test_inputs_that_fit_their_own_buffer_are_read_once_though_weights_come_through_a_small_one():
    buffers = {
        "shared": BufferSpec(bytes=16 * 64 * 2),
        "weights": BufferSpec(bytes=2 * 4 * 4 * 2),
        "outputs": BufferSpec(bytes=2 * 16 * 4 * 4),
    }
    found = chosen(small_device(buffers=buffers), 16, 64, 64)
    assert found.tile[0].tolist() == [16, 4, 4]
    assert "inputs (" in found.held_whole[0]
    assert found.dram_bytes[0] == 2.0 * (16 * 64 + 64 * 64 + 16 * 64)


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@settings(max_examples=25, deadline=None)
@given(shape=st.tuples(*[st.integers(1, 5000)] * 3))
def test_with_endless_buffers_every_operand_moves_exactly_once(dataflow, shape):
    rows, columns, depth = shape
    found = chosen(small_device(), *shape, dataflow=dataflow)
    assert found.dram_bytes[0] == 2.0 * (rows * depth + depth * columns + rows * columns)


CONVOLUTION = {
    "images": 2, "channels": 16, "filters": 32, "rows": 28, "columns": 28, "filter_rows": 3, "filter_columns": 3, "row_padding": 1,
    "column_padding": 1,
}  # fmt: skip


def convolved(device, *, tile=None, **changes):
    named = {name: one(value) for name, value in {**CONVOLUTION, **changes}.items()}
    return spatial_convolution(device, convolution_shapes(**named), element_bytes=2.0, tile=tile)


def test_a_convolution_reads_each_pixel_once_and_multiplies_it_for_every_tap():
    found = convolved(small_device(mac_energy_j={"bf16": 1.0}))
    assert found.dram_bytes[0] == 2.0 * (2 * 16 * 28 * 28 + 9 * 16 * 32 + 2 * 32 * 28 * 28)
    assert found.energy_j["mac"][0] == 2 * 28 * 28 * 32 * 16 * 9


def test_a_convolution_is_the_product_of_unfolded_pixels_for_the_arrays():
    device = small_device()
    assert convolved(device).cycles[0] == chosen(device, 2 * 28 * 28, 32, 16 * 9).cycles[0]
    one_tap = {"filter_rows": 1, "filter_columns": 1, "row_padding": 0, "column_padding": 0}
    lone, plain = convolved(device, **one_tap), chosen(device, 2 * 28 * 28, 32, 16)
    assert (lone.seconds[0], lone.dram_bytes[0], lone.sram_bytes[0]) == (plain.seconds[0], plain.dram_bytes[0], plain.sram_bytes[0])


def test_pixels_that_a_stride_skips_are_not_read():
    one_tap = {"filter_rows": 1, "filter_columns": 1, "row_padding": 0, "column_padding": 0, "row_stride": 2, "column_stride": 2}
    assert convolved(small_device(), **one_tap).dram_bytes[0] == 2.0 * (2 * 16 * 14 * 14 + 16 * 32 + 2 * 32 * 14 * 14)


def test_cuts_between_row_tiles_read_the_halo_again_and_never_more_than_the_unfolded_product():
    weights_and_results, pixels, unfolded = 9 * 16 * 32 + 2 * 32 * 28 * 28, 2 * 16 * 28 * 28, 2 * 28 * 28 * 16 * 9
    least, most = 2.0 * (weights_and_results + pixels), 2.0 * (weights_and_results + unfolded)
    # 392 pixels of results (half an image) need 392 x 16 elements and two lines of 28 pixels more, twice: 28,672 bytes.
    room = 2 * 2 * (392 + 2 * 28) * 16
    buffers = {"shared": BufferSpec(bytes=PLENTY), "inputs": BufferSpec(bytes=float(room)), "outputs": BufferSpec(bytes=2e5)}
    found = convolved(small_device(buffers=buffers, dataflows=("weight_stationary",), memory_bytes_per_s=1e6), tile=(392, 32, 144))
    assert found.dram_bytes[0] == least + 2.0 * 2 * 2 * 28 * 16  # each image is cut once
    tight = {**buffers, "inputs": BufferSpec(bytes=room - 1.0)}
    with pytest.raises(SpecError, match="not this tile"):
        convolved(small_device(buffers=tight, dataflows=("weight_stationary",)), tile=(392, 32, 144))
    # Tiles of 4 pixels would read two lines for each of 390 cuts: more than the unfolded product, which is then read instead.
    few = small_device(buffers=buffers, dataflows=("weight_stationary",))
    assert convolved(few, tile=(4, 32, 144)).dram_bytes[0] == most


def test_depthwise_leaves_the_arrays_almost_empty():
    device = small_device(array_rows_count=128, array_columns_count=128, folds_overlap=True)
    dense = convolved(device, channels=128, filters=128)
    depthwise = convolved(device, channels=128, filters=128, groups=128)
    assert dense.utilisation_ratio[0] > 0.8
    assert depthwise.utilisation_ratio[0] <= 9 / 128  # one column, or nine rows of the array at best
    assert depthwise.cycles[0] > dense.cycles[0] / 8  # an eighth of the time for a 128th of the work at best


def test_groups_are_products_of_their_own():
    device = small_device(folds_overlap=True)
    grouped = convolved(device, groups=2)
    assert grouped.cycles[0] == spatial_product(device, one(1568), one(16), one(72), element_bytes=2.0, repeats=2.0).cycles[0]
    assert grouped.dram_bytes[0] == 2.0 * (2 * 16 * 28 * 28 + 9 * 16 * 32 / 2 + 2 * 32 * 28 * 28)


ERRORS = {
    "no arrays": (lambda: chosen(replace(small_device(), spatial=None), 8, 8, 8), r"no table \[spatial\]"),
    "no rate": (lambda: chosen(small_device(), 8, 8, 8, element_bytes=0.5), "no rate for elements of 0.5 bytes"),
    "empty": (lambda: chosen(small_device(), 8, 0, 8), "spatial product columns: 0"),
    "not a size": (lambda: chosen(small_device(), np.nan, 8, 8), "spatial product rows: nan"),
    "nothing": (lambda: spatial_product(small_device(), np.array([]), one(1), one(1), element_bytes=2.0), "no product"),
    "unknown dataflow": (lambda: chosen(small_device(), 8, 8, 8, dataflow="weight_stationery"), "did you mean 'weight_stationary'"),
    "unable": (lambda: chosen(small_device(dataflows=DATAFLOWS[:1]), 8, 8, 8, dataflow=DATAFLOWS[1]), "arrays of small do not know"),
    "nothing fits": (
        lambda: chosen(small_device(buffers=shared(64)), 80, 80, 80),
        r"no tile of a product of 80 x 80 x 80 fits \(shared 64",
    ),
    "too large": (lambda: chosen(small_device(buffers=shared(512)), 80, 80, 80, tile=(40, 40, 40)), "not this tile"),
    "cut inside": (lambda: chosen(small_device(), 80, 80, 80, tile=(6, 8, 8)), "6 x 8 x 8 is cut inside an array"),
    "empty tile": (lambda: chosen(small_device(), 80, 80, 80, tile=(0, 8, 8)), "0 x 8 x 8 is cut inside an array"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_cannot_be_mapped_is_one_sentence(case):
    attempt, named = ERRORS[case]
    with pytest.raises(SpecError, match=named) as caught:
        attempt()
    assert "\n" not in str(caught.value)
