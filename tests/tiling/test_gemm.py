"""Hand-worked tiles, waves and rooflines: figures in the comments are worked on paper for 100 units at 1 TFLOP/s each."""

import numpy as np
import pytest

from replay.lowering.kernel_plan import Kernel
from replay.lowering.op_graph import MatmulShape
from replay.lowering.select import plan_kernels
from replay.tiling import gemm
from tests.models import LLAMA_8B, MIXTRAL, mapping, round_hardware


def kernel(columns, depth, **shape):
    return Kernel(
        id="k",
        layer_type="mlp",
        ops=("k",),
        shape=MatmulShape(columns=columns, depth=depth, **shape),
        axis="tokens",
        calls_count=1,
    )


def cost(rows, columns, depth, tile, split=1, **changes):
    device = round_hardware(**changes)
    return gemm.choose(kernel(columns, depth), np.array([rows]), "matrix", (tile,), split, device)


def test_whole_waves_run_at_the_peak():
    # 1280 x 1280 in 128 x 128 tiles = 100 tiles on 100 units = 1 wave; 2 x 1280 x 1280 x 1024 FLOPs at 100 TFLOP/s = 33.55 us.
    choice = cost(1280, 1280, 1024, (128, 128, 64))
    assert choice.terms.compute_s[0] == pytest.approx(2 * 1280 * 1280 * 1024 / 100e12)
    assert choice.waves[0] == 1
    assert choice.padding_ratio[0] == 0


def test_one_tile_more_than_a_wave_costs_a_second_wave():
    # 1281 rows need an eleventh row of tiles: 110 tiles = 2 waves.
    whole, more = cost(1280, 1280, 1024, (128, 128, 64)), cost(1281, 1280, 1024, (128, 128, 64))
    assert more.waves[0] == 2
    assert more.terms.compute_s[0] == pytest.approx(2 * whole.terms.compute_s[0])


def test_a_single_row_pays_for_its_whole_tile():
    # 1 of 128 rows is used: padding 127/128; 10 tiles on 100 units = 1 wave of one tile's time.
    choice = cost(1, 1280, 1024, (128, 128, 64))
    assert choice.padding_ratio[0] == pytest.approx(127 / 128)
    assert choice.terms.compute_s[0] == pytest.approx(2 * 128 * 128 * 1024 / 1e12)


def test_splitting_the_reduction_fills_idle_units():
    # 10 tiles x 8 parts = 80 units busy, each with an eighth of the depth.
    alone, split = cost(1, 1280, 1024, (128, 128, 64)), cost(1, 1280, 1024, (128, 128, 64), split=8)
    assert split.terms.compute_s[0] == pytest.approx(alone.terms.compute_s[0] / 8)
    # Eight partial results of 1 x 1280 in 32 bit are moved on top of the operands.
    assert split.terms.bytes[0] - alone.terms.bytes[0] == 8 * 1280 * 4
    assert split.terms.memory_s[0] > alone.terms.memory_s[0]


def test_memory_time_is_the_operands_once_over_the_bandwidth():
    # (8 x 1024 + 1024 x 4096 + 8 x 4096) x 2 bytes at 1 TB/s.
    choice = cost(8, 4096, 1024, (16, 128, 64))
    assert choice.terms.memory_s[0] == pytest.approx(2 * (8 * 1024 + 1024 * 4096 + 8 * 4096) / 1e12)


def test_few_rows_are_bound_by_memory_and_many_by_compute():
    few, many = cost(8, 8192, 8192, (16, 128, 64)), cost(8192, 8192, 8192, (128, 128, 64))
    assert few.terms.memory_s[0] > few.terms.compute_s[0]
    assert many.terms.compute_s[0] > many.terms.memory_s[0]


def test_a_small_tile_is_slowed_by_its_operand_loads():
    # 16 x 16 tile, depth 64: 4096 operand bytes at 10 GB/s = 0.41 us against 0.033 us of products.
    slow = cost(1280, 1280, 1024, (16, 16, 64), unit_cache_bytes_per_s=10e9)
    fast = cost(1280, 1280, 1024, (128, 128, 64), unit_cache_bytes_per_s=10e9)
    assert slow.terms.compute_s[0] > 3 * fast.terms.compute_s[0]


def test_the_automatic_choice_is_never_worse_than_any_pinned_tile():
    device = round_hardware(unit_cache_bytes_per_s=50e9)
    rows = np.array([1, 7, 16, 100, 129, 1000, 2048])
    tiles, _ = gemm.candidate_tiles("auto", 2.0, device)
    free = gemm.choose(kernel(4096, 4096), rows, "matrix", tiles, "auto", device).terms.time_s(float("inf"))
    for tile in tiles:
        for split in gemm.SPLITS:
            pinned = gemm.choose(kernel(4096, 4096), rows, "matrix", (tile,), split, device).terms.time_s(float("inf"))
            assert (free <= pinned).all()


def test_a_tile_that_does_not_fit_is_replaced_with_the_reason():
    tiles, problem = gemm.candidate_tiles((512, 512, 64), 2.0, round_hardware())
    assert len(tiles) > 1
    assert "tile 512x512x64 needs 262144 bytes of unit memory, round has 200000" in problem


def test_expert_weights_are_read_once_for_each_active_expert():
    # Uniform routing of 4096 tokens reaches all 8 experts; one token reaches exactly its two.
    plan = {k.id: k for k in plan_kernels(MIXTRAL, round_hardware(), mapping()).kernels}
    device = round_hardware()
    choice = gemm.choose(plan["down_proj"], np.array([1, 4096]), "matrix", ((64, 128, 64),), 1, device)
    weights = 4096 * 14336 * 2
    routed = np.array([2, 8192]) * (14336 + 4096) * 2
    assert choice.terms.bytes - routed == pytest.approx(np.array([2, 8]) * weights, rel=1e-6)


def test_low_precision_weights_move_fewer_bytes():
    plans = [
        {k.id: k for k in plan_kernels(LLAMA_8B, round_hardware(), m).kernels} for m in (mapping(), mapping("[formats]", 'weights = "fp8"'))
    ]
    moved = [gemm.choose(p["gate_up"], np.array([1]), "matrix", ((16, 128, 64),), 1, round_hardware()).terms.bytes[0] for p in plans]
    assert moved[1] == pytest.approx(moved[0] / 2, rel=0.01)
