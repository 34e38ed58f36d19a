"""Tuned tables as kernels: which rows take which entry, and what is said where a table or an entry is of no use."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from replay.catalog.hardware import read_hardware
from replay.mapping_sheet import StepShape, mapping_sheet
from replay.pipeline import compile_mapping
from replay.specs.mapping import parse_mapping
from replay.specs.routing import ExpertLoad
from replay.specs.tile_table import parse_table
from replay.tiling.families.gemm_formats import gemm_format
from replay.tiling.tuned_tables import entry_problem
from tests.models import LLAMA_8B, MIXTRAL, round_hardware

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "formats" / "fused_moe_config"
DEVICE = round_hardware(name="h100-sxm")
EXPERTS = "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json"
DENSE = "N=28672,K=4096,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"
BLOCK = ("[formats]", 'weights = "fp8_block"', 'activations = "fp8_block"')


def entry(rows=16, columns=64, depth=64, group=1, warps=4, stages=3):
    return {
        "BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": columns, "BLOCK_SIZE_K": depth, "GROUP_SIZE_M": group, "num_warps": warps,
        "num_stages": stages,
    }  # fmt: skip


def tabled(content, *lines, names=(EXPERTS,), knob='"tile_table@moe"'):
    text = "\n".join(['name = "m"', "[gemm]", f"{knob} = {json.dumps(list(names))}", *lines])
    return parse_mapping(text, "mapping.toml", lambda path: json.dumps(content))


def compiled(spec, model=MIXTRAL, device=DEVICE, routing=None):
    return compile_mapping(model, device, spec, routing=routing)


def plain(*lines):
    return parse_mapping("\n".join(['name = "m"', *lines]), "mapping.toml")


def decision(done, knob="gemm.tile_table@moe"):
    return next(d for d in done.decisions if d.knob == knob)


def times(done, kernel="experts"):
    return np.asarray(done.table.token_terms[f"{kernel}.compute_s"])


def test_rows_take_the_nearest_entry_and_the_sheet_says_which():
    spec = tabled({"4": entry(16), "32": entry(32, 128), "512": entry(128, 128, warps=8)})
    steps = tuple(StepShape(name=str(rows), decode_sequences=rows, context_tokens=10) for rows in (1, 18, 32, 19, 200, 256))
    sheet = mapping_sheet(compiled(spec, device=DEVICE), DEVICE, spec, steps).to_pylist()
    found = {row["step"]: (row["tile"], row["tile_source"]) for row in sheet if row["kernel"] == "experts"}
    # A graph of 24 tokens stands for 18 and 19; 24 is nearer to 32 than to 4.
    assert found == {
        "1": ("16x64x64", "batch 4"),
        "18": ("32x128x64", "batch 32"),
        "19": ("32x128x64", "batch 32"),
        "32": ("32x128x64", "batch 32"),
        "200": ("32x128x64", "batch 32"),
        "256": ("32x128x64", "batch 32"),
    }
    assert {row["tile_source"] for row in sheet if row["kernel"] == "router"} == {"auto"}


def test_a_table_of_expert_parallel_ranks_is_for_the_experts_that_one_of_them_holds():
    name = "E=2,N=14336,device_name=NVIDIA_H100_80GB_HBM3.json"
    ranks = ("[parallelism]", "tensor = 4", "expert = 4")
    whole, split = (tabled({"4": entry(32)}, *lines, names=(name,)) for lines in (ranks, ranks[:2]))
    told = [decision(compiled(spec, routing=ExpertLoad(origin="stated"))) for spec in (whole, split)]
    assert [one.effective for one in told] == ["experts: batch 4 for every row count", "default tiles"]
    assert "made for 2 experts 14336 wide; experts is 8 experts 3584 wide on each rank" in told[1].reason


def test_a_table_gives_tile_group_and_threads_of_its_entry():
    spec = tabled({"4": entry(16, 64, 128, warps=8, stages=5)})
    sheet = mapping_sheet(compiled(spec), DEVICE, spec, (StepShape(name="d", decode_sequences=4, context_tokens=10),)).to_pylist()
    row = next(row for row in sheet if row["kernel"] == "experts")
    assert (row["threads_count"], row["unit_memory_bytes"]) == (256, 4 * 128 * (16 + 64) * 2)
    grouped = compiled(tabled({"1": entry(16, group=64)}))
    alone = compiled(tabled({"1": entry(16, group=1)}))
    column = "experts.memory_s"  # weights are read again for every row tile that shares no pass
    assert np.asarray(grouped.table.token_terms[column])[2000] < np.asarray(alone.table.token_terms[column])[2000]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (EXPERTS.replace("E=8", "E=16"), "made for 16 experts 14336 wide; experts is 8 experts 14336 wide on each rank"),
        (EXPERTS.replace("14336", "7168"), "made for 8 experts 7168 wide"),
        (EXPERTS.replace("H100", "H200"), "made for NVIDIA_H200_80GB_HBM3; this is h100-sxm"),
        (EXPERTS.replace("H100_80GB_HBM3", "H100_PCIe"), "made for NVIDIA_H100_PCIe"),
        (EXPERTS.replace(".json", ",dtype=fp8_w8a8.json"), "made for fp8_w8a8; experts multiplies bf16 by bf16"),
        (EXPERTS.replace(".json", ",dtype=fp8_w8a8,block_shape=[128,128].json"), "in blocks of 128,128"),
        ("N=4096,K=4096,device_name=NVIDIA_H100.json", "made for 4096 columns 4096 deep; router is 8 columns"),
    ],
)
def test_a_table_made_for_something_else_runs_the_default_and_says_so(name, says):
    done = compiled(tabled({"4": entry(16)}, names=[name]))
    found = decision(done)
    assert found.effective == "default tiles"
    assert found.requested == name
    assert says in found.reason
    assert (times(done) == times(compiled(plain()))).all()


@pytest.mark.parametrize(
    ("device_name", "accelerator", "same"),
    [
        ("NVIDIA_A100-SXM4-80GB", "a100-sxm-80gb", True),
        ("NVIDIA_A100-SXM4-40GB", "a100-sxm-80gb", False),
        ("NVIDIA_A100-PCIE-40GB", "a100-pcie-40gb", True),
        ("NVIDIA_A100-PCIE-40GB", "a100-sxm-40gb", False),
        ("NVIDIA_H200", "h200-sxm", True),
        ("NVIDIA_GB200", "b200-sxm", False),
        ("NVIDIA_L40S", "l40s", True),
        ("NVIDIA_L4", "l40s", False),
        ("AMD_Instinct_MI300X", "mi300x", True),
        ("NVIDIA_H100_80GB_HBM3", "rack-7-h100-sxm", True),
    ],
)
def test_a_device_is_told_by_chip_memory_and_form(device_name, accelerator, same):
    spec = tabled({"4": entry(16)}, names=[f"E=8,N=14336,device_name={device_name}.json"])
    found = decision(compiled(spec, device=round_hardware(name=accelerator)))
    assert (found.reason is None or "made for" not in found.reason) == same


def test_an_entry_that_does_not_fit_runs_the_default_on_its_rows_only():
    content = {"8": entry(16), "64": entry(128, 256, 128, stages=5), "512": entry(16)}
    done = compiled(tabled(content))
    assert "rows 37-288: the default tile runs, as batch 64 does not fit (tile 128x256x128 in 5 stages" in decision(done).reason
    default, tabled_s = times(compiled(plain())), times(done)
    np.testing.assert_allclose(tabled_s[37:289], default[37:289], rtol=1e-12)
    assert (np.abs(tabled_s[1:37] / default[1:37] - 1.0) > 1e-3).all()


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (entry(256, 128, 32, warps=4), "needs 256 registers of each thread for its results, a thread has 255: it spills"),
        (entry(256, 128, 32, warps=8), None),
        (entry(64, 64, 256, stages=5), "in 5 stages needs 262144 bytes of unit memory"),
        (entry(64, 64, 256, stages=3), None),
        (entry(512, 512, 16, warps=32), "needs 256 registers of each thread"),
    ],
)
def test_an_entry_fits_by_unit_memory_and_registers(found, says):
    table = parse_table(EXPERTS, {"1": found}, "m")
    problem = entry_problem(table, table.batches[0][1], gemm_format("bf16"), DEVICE)
    assert problem is None if says is None else says in problem


def test_a_wavefront_of_amd_has_twice_the_threads_and_registers():
    table = parse_table(EXPERTS.replace("NVIDIA_H100_80GB_HBM3", "AMD_Instinct_MI300X"), {"1": entry(256, 128, 32, warps=4)}, "m")
    assert entry_problem(table, table.batches[0][1], gemm_format("bf16"), DEVICE) is None


def test_rows_far_from_every_batch_are_named():
    one = decision(compiled(tabled({"64": entry(16)})))
    assert one.effective == "experts: batch 64 for every row count"
    assert one.reason == "rows 1-31 are less than half of batch 64, the nearest; rows 129-2048 are more than twice batch 64, the nearest"
    ladder = {str(2**power): entry(16) for power in range(12)}
    whole = decision(compiled(tabled(ladder)))
    assert (whole.effective, whole.reason) == ("experts: the nearest of 12 batches from 1 to 2048 for each row count", None)


def test_a_tile_that_is_set_comes_before_the_table():
    done = compiled(tabled({"64": entry(16)}, '"tile@moe.decode[rows<=8]" = [32, 64, 64]'))
    assert "rows 1-8 of decode: gemm.tile is set and comes first" in decision(done).reason
    pinned = compiled(plain("[gemm]", '"tile@moe.decode[rows<=8]" = [32, 64, 64]'))
    np.testing.assert_allclose(times(done)[1:9], times(pinned)[1:9], rtol=1e-12)


def test_dense_products_take_tables_of_their_own_shape_and_run_unsplit():
    narrow = DENSE.replace("N=28672,K=4096", "N=4096,K=14336")
    spec = tabled({"16": entry(16, 32, 128)}, *BLOCK, names=[DENSE, narrow], knob="tile_table")
    done = compiled(spec, model=LLAMA_8B)
    found = decision(done, "gemm.tile_table")
    assert found.effective == "gate_up: batch 16 for every row count; down_proj: batch 16 for every row count"
    assert "used by nothing" not in found.reason
    sheet = mapping_sheet(done, DEVICE, spec, (StepShape(name="d", decode_sequences=16, context_tokens=10),)).to_pylist()
    rows = {row["kernel"]: (row["tile"], row["split"], row["tile_source"]) for row in sheet}
    assert rows["gate_up"] == rows["down_proj"] == ("16x32x128", "1", "batch 16")
    assert rows["qkv"][2] == "auto"


def test_a_table_that_holds_what_runs_anyway_changes_the_dense_product_in_nothing():
    """The tile of the automatic choice, looked up, gives the automatic choice."""
    automatic = plain(*BLOCK)
    done = compiled(automatic, model=LLAMA_8B)
    step = StepShape(name="d", decode_sequences=16, context_tokens=10)
    row = next(row for row in mapping_sheet(done, DEVICE, automatic, (step,)).to_pylist() if row["kernel"] == "gate_up")
    tile = [int(size) for size in row["tile"].split("x")]
    same = compiled(tabled({"16": entry(*tile)}, *BLOCK, names=[DENSE], knob='"tile_table@mlp"'), model=LLAMA_8B)
    assert row["split"] == "1"
    assert times(same, "gate_up")[16] == pytest.approx(times(done, "gate_up")[16], rel=1e-12)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not beside the checkout")
@pytest.mark.parametrize(
    ("pattern", "accelerator", "format_"), [("E=1,*A100*", "a100-sxm-80gb", "bf16"), ("E=128,*H200*", "h200-sxm", "fp8_block")]
)
def test_every_entry_of_a_real_table_fits_the_device_it_was_tuned_on(pattern, accelerator, format_):
    [path] = SHARED.glob(pattern)
    table, device = parse_table(path.name, json.loads(path.read_text()), "m"), read_hardware(accelerator)
    assert [entry_problem(table, found, gemm_format(format_), device) for _, found in table.batches] == [None] * len(table.batches)
    small = replace(device, unit_memory_bytes=65536.0)
    assert any(entry_problem(table, found, gemm_format(format_), small) for _, found in table.batches)
