"""Dense multiplies: cases worked on paper for a round device (100 units, 100 TFLOP/s, 1 TB/s), and laws over drawn ones."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.catalog.hardware import read_hardware
from replay.errors import SpecError
from replay.tiling.families.gemm import GemmFamily, gemm_family, gemm_shapes
from replay.tiling.families.gemm_formats import GEMM_FORMATS, gemm_format
from replay.tiling.families.gemm_paths import COLD, GemmPaths, WeightRotation, gemm_paths
from replay.tiling.families.gemm_tiles import MOST_SPLIT_TILES_PER_UNIT, SPLITS, legal_tiles, most_split
from tests.models import round_hardware

DEVICE = round_hardware()
PLAIN = {
    "floor_s": 0.0, "compute_efficiency_ratio": 1.0, "memory_efficiency_ratio": 1.0, "step_latency_cycles": 0.0, "overlap_exponent": inf,
    "wave_smoothness_ratio": 1.0, "store_rate_ratio": 1e12, "unit_load_ratio": 1e12, "cache_rate_ratio": 1.0, "weights_cache_ratio": 1.0,
    "activations_cache_ratio": 1.0, "split_combine_s": 0.0, "combine_rate_ratio": 1e12, "column_rate_ratio": 1e-12,
    "narrowing_floor_s": 0.0, "narrowing_rate_ratio": 1e12, "widening_operations": 0.0,
}  # fmt: skip
"""Every efficiency 1, no floor or latency, free stores, loads and combining, whole waves, the larger of execution and memory."""
TILE = (128, 128, 64)
TILE_S = 2 * 128 * 128 * 64 / 1e12
"""One step of that tile on one unit, which reaches 1 TFLOP/s."""


def family(name="bf16", *, splits=True, vector=False, rotation=COLD):
    return GemmFamily(format=gemm_format(name), paths=GemmPaths(splits=splits, vector=vector, rotation=rotation), units_count=100)


def shape(rows, columns, depth):
    return gemm_shapes(np.array([rows]), np.array([columns]), np.array([depth]))


def choice(rows, columns, depth, *, of=None, device=DEVICE, tiles=(TILE,), split=1, **changes):
    return (of or family()).choices(shape(rows, columns, depth), device, {**PLAIN, **changes}, tiles=tiles, split=split)


def time_s(*sizes, **options):
    return float(choice(*sizes, **options).seconds[0])


def test_a_full_wave_runs_at_the_peak():
    # 10 x 10 tiles on 100 units; its 6.6 MB take a third of that.
    assert time_s(1280, 1280, 640) == pytest.approx(2 * 1280 * 1280 * 640 / 100e12)


def test_a_tile_over_a_wave_starts_another_one_as_far_as_waves_are_hard():
    for smoothness, waves in ((1.0, 2.0), (0.0, 1.1), (0.5, 1.55)):
        found = choice(1408, 1280, 640, wave_smoothness_ratio=smoothness)
        assert found.waves[0] == pytest.approx(waves)
        assert found.seconds[0] == pytest.approx(waves * 10 * TILE_S)


def test_rows_beyond_a_tile_are_padded_to_the_next_one():
    assert time_s(1281, 1280, 640) == time_s(1408, 1280, 640)
    assert choice(1300, 1280, 640).padding_ratio[0] == pytest.approx(1 - 1300 / 1408)
    assert choice(1280, 1280, 640).padding_ratio[0] == 0


def test_depth_is_padded_to_whole_steps():
    assert time_s(1280, 1280, 577) == time_s(1280, 1280, 640) == pytest.approx(10 * TILE_S)


def test_a_split_shortens_the_reduction_and_adds_its_parts():
    # One tile of 32 steps: 8 steps in each of 4 parts, and 4 partial results of 4 bytes an element at 1 TB/s.
    found = choice(128, 128, 2048, split=4, split_combine_s=1e-6, combine_rate_ratio=1.0)
    assert found.split[0] == 4
    assert found.seconds[0] == pytest.approx(8 * TILE_S + 1e-6 + 4 * 128 * 128 * 4 / 1e12)
    # Whole: as all parts together.
    assert time_s(128, 128, 2048) == pytest.approx(32 * TILE_S)


def test_the_automatic_split_is_the_one_that_pays():
    free = choice(128, 128, 2048, split=None)
    assert (free.split[0], float(free.seconds[0])) == (16, pytest.approx(2 * TILE_S))
    assert choice(128, 128, 2048, split=None, split_combine_s=1.0).split[0] == 1


@pytest.mark.parametrize(
    ("sizes", "asked", "taken"),
    [
        ((128, 128, 512), 32, 4),  # 8 steps, at least 2 in each part
        ((128, 128, 384), 4, 2),  # 6 steps would do for 3 parts: the next power of two below
        ((128, 128, 64), 8, 1),
        ((2560, 1280, 8192), 8, 8),  # 200 tiles on 100 units: no library would split them, and who asks for it gets it
    ],
)
def test_a_pinned_split_is_taken_as_far_as_the_depth_allows(sizes, asked, taken):
    assert choice(*sizes, split=asked).split[0] == taken


def test_a_stack_without_split_kernels_never_splits():
    assert choice(128, 128, 8192, of=family(splits=False), split=8).split[0] == 1


def test_one_row_has_a_kernel_of_its_own():
    # 1600 columns are one turn of 16 on each unit; a column of 4096 weights at 10 GB/s.
    device = replace(DEVICE, unit_cache_bytes_per_s=1e12)
    options = {"of": family(vector=True), "device": device, "tiles": None, "split": None, "column_rate_ratio": 0.01, "split_combine_s": 1.0}
    found = choice(1, 1600, 4096, **options)
    assert found.tile[0].tolist() == [1, 1, 64]
    assert (found.waves[0], found.padding_ratio[0]) == (1, 0)
    turns = 2.5
    assert float(choice(1, int(1600 * turns), 4096, **options).terms.compute_s[0]) == pytest.approx(turns * 4096 * 2 / 10e9)
    assert choice(2, 1600, 4096, **options).tile[0, 0] > 1
    assert choice(1, 1600, 4096, **{**options, "split": 8}).tile[0, 0] > 1


def test_latency_of_steps_is_hidden_by_four_tiles_of_a_unit():
    fast = replace(DEVICE, matrix_flops_per_s={"bf16": 1e30}, memory_bytes_per_s=1e30)
    for columns, turns in ((1280, 1.0), (4 * 1280, 1.0), (8 * 1280, 2.0)):
        found = time_s(1280, columns, 640, device=fast, step_latency_cycles=1e6)
        assert found == pytest.approx(turns * 10 * 1e-3)  # 10 steps of a million cycles at 1 GHz


def test_operands_come_at_the_rate_of_a_units_cache_and_results_leave_after_a_wave():
    fast = replace(DEVICE, matrix_flops_per_s={"bf16": 1e30}, memory_bytes_per_s=1e30, unit_cache_bytes_per_s=1e9)
    assert time_s(1280, 1280, 640, device=fast, unit_load_ratio=2.0) == pytest.approx(10 * 256 * 64 * 2 / 2e9)
    stored = time_s(1280, 1280, 640, store_rate_ratio=1e-3) - time_s(1280, 1280, 640)
    assert stored == pytest.approx(128 * 128 * 2 / 1e9)


def test_computing_and_loading_overlap_as_a_cubic_norm():
    device = replace(DEVICE, unit_cache_bytes_per_s=256 * 64 * 2 / TILE_S)  # loads as long as it computes
    assert time_s(1280, 1280, 640, device=device, unit_load_ratio=1.0) == pytest.approx(2 ** (1 / 3) * 10 * TILE_S)


def test_narrow_products_wait_for_their_weights():
    moved = (4096 * 4096 + 8 * 4096 + 8 * 4096) * 2
    assert time_s(8, 4096, 4096, tiles=None) == pytest.approx(moved / 1e12)
    assert float(choice(8, 4096, 4096, activations_cache_ratio=1e-9).terms.bytes[0]) == pytest.approx(moved)


def test_weights_in_rotation_are_found_in_the_cache_while_all_copies_fit():
    def read_bytes(columns, rotation):
        found = choice(1, columns, 1000, of=family(rotation=rotation), device=replace(DEVICE, cache_bytes=20e6))
        return float(found.terms.bytes[0])

    six = WeightRotation(most_copies=6.0)
    assert read_bytes(500, six) < 0.01 * 1e6  # 6 MB
    assert read_bytes(5000, six) > 0.99 * 10e6  # 60 MB
    assert read_bytes(5000, WeightRotation(most_copies=1.0)) < 0.01 * 10e6
    assert read_bytes(500, COLD) == pytest.approx(1e6, rel=0.01)


def test_stacks_rotate_weights_and_split_by_their_own_rules():
    weights = np.array([1e6, 20e6, 100e6])
    assert gemm_paths("bf16", "trtllm_1.0.0", 50e6).rotation.set_bytes(weights).tolist() == [5e6, 60e6, 100e6]
    assert gemm_paths("bf16", "vllm_0.24.0", 50e6).rotation.set_bytes(weights).tolist() == [6e6, 120e6, 600e6]
    assert gemm_paths("fp8_block", "vllm_0.24.0", 50e6).rotation.set_bytes(weights).tolist() == [1e6, 20e6, 100e6]
    splits = {(stack, form): gemm_paths(form, stack, 50e6).splits for stack in ("trtllm_1", "sglang_1", "x") for form in ("bf16", "fp8")}
    assert [key for key, there in splits.items() if not there] == [("sglang_1", "fp8"), ("x", "fp8")]


def test_a_narrow_format_doubles_the_rate_and_adds_the_kernel_that_narrows():
    found = choice(1280, 1280, 640, of=family("fp8"), tiles=((128, 128, 128),), narrowing_floor_s=1e-6, narrowing_rate_ratio=1.0)
    narrowing_s = 1e-6 + 1280 * 640 * (2 + 1) / 1e12
    assert found.seconds[0] == pytest.approx(2 * 1280 * 1280 * 640 / 200e12 + narrowing_s)
    assert found.terms.sync_s[0] == pytest.approx(1e-6)  # the rest of it is memory time


def test_widening_weights_is_work_of_the_vector_units():
    # 64 x 128 weights a step, 5 operations each at 0.1 TFLOP/s of one unit.
    fast = replace(DEVICE, matrix_flops_per_s={"bf16": 1e30}, memory_bytes_per_s=1e30)
    found = time_s(1280, 1280, 640, of=family("int4_weights"), device=fast, widening_operations=5.0)
    assert found == pytest.approx(10 * 5 * 64 * 128 / 0.1e12)


def test_tiles_are_those_that_a_unit_holds():
    # 256 x 256 accumulators of 4 bytes are more than three quarters of 256 kB of registers.
    found = legal_tiles(gemm_format("bf16"), DEVICE)
    assert len(found) == 19
    assert (256, 128, 64) in found
    assert (256, 256, 64) not in found
    small = replace(DEVICE, unit_memory_bytes=2 * 64 * 2 * (128 + 128))
    assert max(rows * columns for rows, columns, _ in legal_tiles(gemm_format("bf16"), small)) == 128 * 128


def test_the_bound_is_operations_or_bytes_beyond_the_cache():
    found = family().bound_s(gemm_shapes(np.array([1280, 1]), np.array([1280, 50000]), np.array([640, 1000])), DEVICE)
    assert found[0] == pytest.approx(2 * 1280 * 1280 * 640 / 100e12)
    assert found[1] == pytest.approx((50000 * 1000 * 2 + 1000 * 2 + 50000 * 2 - 40e6) / 1e12)


def test_terms_of_the_automatic_choice_join_to_its_time():
    of, shapes, parameters = family(), shape(300, 4096, 2048), {**PLAIN, "overlap_exponent": 2.0, "floor_s": 2e-6}
    joined = of.terms(shapes, DEVICE, parameters).time_s(of.overlap_exponent(parameters))
    assert joined[0] == pytest.approx(of.seconds(shapes, DEVICE, parameters)[0])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: choice(0, 8, 8), "gemm rows: 0"),
        (lambda: choice(8, 8, 8, tiles=((128, 128, 4096),)), "bytes of unit memory, and there are 200000 on round"),
        (lambda: choice(8, 8, 8, tiles=((0, 128, 64),)), "a side below 1"),
        (lambda: choice(8, 8, 8, tiles=()), "no tile is allowed"),
        (lambda: choice(8, 8, 8, split=0), "gemm split: 0"),
        (lambda: choice(8, 8, 8, of=family("nvfp4")), "no rate for fp4"),
        (lambda: gemm_family("fp9", "vllm_1", DEVICE), "unknown format 'fp9'"),
    ],
    ids=["empty product", "operands", "no side", "no tile", "no part", "no rate", "no format"],
)
def test_what_cannot_run_is_one_sentence(call, named):
    with pytest.raises(SpecError) as caught:
        call()
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


SIZES = st.tuples(st.integers(1, 20000), st.integers(1, 60000), st.integers(1, 60000))
FULL = replace(read_hardware("b200-sxm"), matrix_flops_per_s={"bf16": 2250e12, "fp8": 4500e12, "int8": 4500e12, "fp4": 9000e12})
FAMILIES = [gemm_family(name, stack, FULL) for name in GEMM_FORMATS for stack in ("trtllm_1", "sglang_1")]
RANGES = {part.name: (part.lower, part.upper) for one in FAMILIES for part in one.parameters}
PARAMETERS = st.fixed_dictionaries({name: st.floats(*ends) for name, ends in RANGES.items()})


@settings(max_examples=100, deadline=None)
@given(of=st.sampled_from(FAMILIES), sizes=SIZES, parameters=PARAMETERS, more=st.floats(1.01, 4.0))
def test_no_faster_device_is_slower(of, sizes, parameters, more):
    units = int(FULL.units_count * more)
    scaled = units / FULL.units_count
    faster = {
        "bandwidth": replace(FULL, memory_bytes_per_s=FULL.memory_bytes_per_s * more),
        "cache": replace(FULL, cache_bytes=FULL.cache_bytes * more),
        "unit cache": replace(FULL, unit_cache_bytes_per_s=FULL.unit_cache_bytes_per_s * more),
        "peak": replace(FULL, matrix_flops_per_s={name: rate * more for name, rate in FULL.matrix_flops_per_s.items()}),
        "clock": replace(FULL, clock_hz=FULL.clock_hz * more),
        "units": replace(
            FULL,
            units_count=units,
            vector_flops_per_s=FULL.vector_flops_per_s * scaled,
            matrix_flops_per_s={name: rate * scaled for name, rate in FULL.matrix_flops_per_s.items()},
        ),
    }
    before = of.seconds(shape(*sizes), FULL, parameters)[0]
    for change, device in faster.items():
        assert of.seconds(shape(*sizes), device, parameters)[0] <= before * (1 + 1e-9), change


@settings(max_examples=100, deadline=None)
@given(of=st.sampled_from(FAMILIES), sizes=SIZES, parameters=PARAMETERS)
def test_no_parameters_beat_the_bound_and_features_are_finite(of, sizes, parameters):
    assert of.seconds(shape(*sizes), FULL, parameters)[0] >= of.bound_s(shape(*sizes), FULL)[0] > 0
    assert np.isfinite(of.features(shape(*sizes))).all()
    assert of.features(shape(*sizes)).shape == (1, len(of.residual_features))


@settings(max_examples=40, deadline=None)
@given(of=st.sampled_from(FAMILIES), sizes=SIZES, parameters=PARAMETERS, drawn=st.sampled_from(SPLITS))
def test_no_pinned_tile_or_split_beats_the_automatic_choice(of, sizes, parameters, drawn):
    automatic = of.seconds(shape(*sizes), FULL, parameters)[0]
    pins = [(None, split) for split in (*SPLITS, 3)] + [(tile, split) for tile in legal_tiles(of.format, FULL) for split in (None, drawn)]
    for tile, split in pins:
        pinned = of.choices(shape(*sizes), FULL, parameters, tiles=None if tile is None else (tile,), split=split)
        tiles = np.prod(np.ceil(np.array(sizes[:2]) / pinned.tile[0][:2])) * pinned.split[0]
        crowded = pinned.split[0] > 1 and tiles > MOST_SPLIT_TILES_PER_UNIT * FULL.units_count  # no automatic choice
        assert crowded or pinned.seconds[0] >= automatic * (1 - 1e-12), (tile, split)


@settings(max_examples=40, deadline=None)
@given(of=st.sampled_from(FAMILIES), sizes=SIZES, parameters=PARAMETERS)
def test_the_choice_can_be_pinned_and_then_takes_as_long(of, sizes, parameters):
    found = of.choices(shape(*sizes), FULL, parameters)
    tile, split = tuple(found.tile[0].tolist()), int(found.split[0])
    assert split <= most_split(np.array([float(sizes[2])]), of.format.step_elements)[0]
    if tile[0] > 1:
        pinned = of.seconds_at(shape(*sizes), FULL, parameters, tile=tile, split=split)
        assert pinned[0] == pytest.approx(found.seconds[0], rel=1e-12)


def test_start_values_lie_inside_their_ranges():
    assert all(part.lower <= part.start <= part.upper for one in FAMILIES for part in one.parameters)
