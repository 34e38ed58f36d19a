"""Registers and unit memory of tiles: what cannot be launched, what spills, and what that costs."""

import numpy as np
import pytest

from replay.catalog.hardware import read_hardware
from replay.mapping_sheet import StepShape, mapping_sheet
from replay.pipeline import compile_mapping
from replay.tiling.families.gemm import gemm_family, gemm_shapes
from replay.tiling.families.gemm_formats import gemm_format
from replay.tiling.families.gemm_tiles import legal_tiles, tile_resources
from replay.tiling.families.tile_resources import TileResources, spill_s
from tests.models import LLAMA_8B, mapping, round_hardware


def needs(**changes):
    figures = {"operand_bytes": 50e3, "accumulator_bytes": 64e3, "operand_budget_bytes": 200e3, "accumulator_budget_bytes": 192e3}
    return TileResources(**(figures | changes))


def test_occupancy_is_what_the_scarcer_of_memory_and_registers_allows():
    assert needs().resident_count == 3
    assert needs(operand_bytes=90e3).resident_count == 2
    assert needs(accumulator_bytes=193e3).resident_count == 1


def test_more_registers_than_there_are_spill_and_more_memory_than_there_is_does_not_launch():
    assert needs().spill_problem is None
    assert (needs(accumulator_bytes=200e3).spilled_bytes, needs(operand_bytes=200e3).launch_problem) == (8e3, None)
    assert "the rest spills" in needs(accumulator_bytes=200e3).spill_problem
    assert "bytes of unit memory" in needs(operand_bytes=201e3).launch_problem


def test_spilled_values_pass_the_cache_while_all_units_fit_it_and_dram_beyond():
    device = round_hardware(cache_bytes=1e6, unit_cache_bytes_per_s=100e9)  # 100 units, 1 TB/s of DRAM
    assert spill_s(10e3, np.array([5.0]), device, 0.5) == pytest.approx(2 * 10e3 * 5 / 100e9)
    assert spill_s(20e3, np.array([5.0]), device, 0.5) == pytest.approx(2 * 20e3 * 5 / (0.5 * 1e12 / 100))


def test_no_tile_that_is_chosen_automatically_spills():
    for name in ("h100-sxm", "mi300x", "t4"):
        device = read_hardware(name)
        found = legal_tiles(gemm_format("bf16"), device)
        assert found
        assert all(not tile_resources(tile, gemm_format("bf16"), device).spilled_bytes for tile in found)


@pytest.mark.parametrize("rows", [1, 64, 1000, 8192])
def test_a_spilling_tile_never_beats_the_automatic_choice(rows):
    device = round_hardware(unit_memory_bytes=1e6, unit_cache_bytes_per_s=200e9)
    family = gemm_family("bf16", "vllm_0.24.0", device, cold=True)
    start = {p.name: p.start for p in family.parameters}
    shapes = gemm_shapes(np.array([float(rows)]), np.array([4096.0]), np.array([14336.0]))
    held, spilling = ((256, 128, 64), (256, 256, 64))
    assert tile_resources(spilling, family.format, device).spilled_bytes > 0
    auto, kept, spilled = (family.choices(shapes, device, start, tiles=tiles) for tiles in (None, (held,), (spilling,)))
    assert auto.seconds <= kept.seconds
    assert auto.seconds < spilled.seconds
    assert kept.seconds < spilled.seconds
    assert spilled.terms.memory_s > kept.terms.memory_s


def sheet_row(device, *lines, prompt=2048):
    model = LLAMA_8B
    spec = mapping(*lines)
    compiled = compile_mapping(model, device, spec)
    rows = mapping_sheet(compiled, device, spec, (StepShape(name="prefill", prefill_tokens=prompt),)).to_pylist()
    return next(row for row in rows if row["kernel"] == "attention_prefill"), compiled.decisions


def test_an_attention_tile_that_outgrows_the_registers_runs_slower_and_says_why():
    wide, narrow = (round_hardware(unit_registers_bytes=size, cache_bytes=1e6) for size in (512e3, 96e3))
    lines = ("[attention]", '"tile@prefill" = [128, 64]')
    (fits, quiet), (spills, told) = sheet_row(wide, *lines), sheet_row(narrow, *lines)
    assert spills["time_s"] > 1.5 * fits["time_s"]
    assert (fits["bottleneck_class"], spills["bottleneck_class"]) == ("compute", "memory_bandwidth")
    assert not [decision for decision in quiet if decision.reason]
    [decision] = [decision for decision in told if decision.reason]
    assert (decision.knob, decision.effective) == ("attention.tile@prefill", "128x64, spilling")
    assert "the rest spills" in decision.reason
