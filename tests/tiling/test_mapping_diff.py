"""What a diff of two mappings holds: laws on the sheets that it compares."""

from functools import cache

import pytest

from replay.mapping_diff import Side, mapping_diff
from replay.mapping_sheet import StepShape, mapping_sheet, step_totals
from replay.pipeline import compile_mapping
from tests.models import LLAMA_8B, MIXTRAL, mapping, round_hardware

STEPS = (
    StepShape(name="decode", decode_sequences=19, context_tokens=700),
    StepShape(name="prefill", prefill_tokens=900),
)
CHANGES = {
    "tile": ("[gemm]", "tile = [128, 64, 64]"),
    "fusion": ("[fusion]", "gate_up = false", "residual_norm = false"),
    "graph": ("[graph]", 'mode = "none"'),
    "formats": ("[formats]", 'weights = "fp8"', 'activations = "fp8"', 'kv = "fp8"'),
    "ranks": ("[parallelism]", "tensor = 2"),
    "pool": ("[kv]", "block_tokens = 32"),
}


@cache
def side(*lines, model=LLAMA_8B):
    spec = mapping(*lines)
    return Side(mapping=spec, schedule=compile_mapping(model, round_hardware(), spec))


def diffed(*lines, model=LLAMA_8B):
    return mapping_diff(side(model=model), side(*lines, model=model), round_hardware(), STEPS)


@pytest.mark.parametrize("lines", [(), *CHANGES.values()], ids=["defaults", *CHANGES])
def test_a_mapping_does_not_differ_from_itself(lines):
    same = side(*lines)
    assert mapping_diff(same, same, round_hardware(), STEPS).is_empty


@pytest.mark.parametrize("model", [LLAMA_8B, MIXTRAL], ids=lambda model: model.name)
@pytest.mark.parametrize("lines", CHANGES.values(), ids=CHANGES)
def test_the_changes_of_the_kernels_add_up_to_the_change_of_the_step(lines, model):
    one, other = side(model=model), side(*lines, model=model)
    found = mapping_diff(one, other, round_hardware(), STEPS)
    totals = zip(step_totals(one.schedule.table, STEPS), step_totals(other.schedule.table, STEPS), strict=True)
    for before, after in totals:
        moved_s = sum(
            (field.candidate or 0.0) - (field.baseline or 0.0)
            for kernel in found.kernels
            if kernel.step == before.step
            for field in kernel.fields
            if field.name == "time_s"
        )
        assert moved_s == pytest.approx(after.device_s - before.device_s, rel=1e-6, abs=1e-9 * before.device_s)


@pytest.mark.parametrize("lines", CHANGES.values(), ids=CHANGES)
def test_a_diff_turned_round_swaps_its_sides(lines):
    there, back = (mapping_diff(*pair, round_hardware(), STEPS) for pair in ((side(), side(*lines)), (side(*lines), side())))
    parts = ("knobs", "decisions", "operators", "serving")
    swapped = {(f.name, repr(f.candidate), repr(f.baseline)) for part in parts for f in getattr(back, part)}
    assert {(f.name, repr(f.baseline), repr(f.candidate)) for part in parts for f in getattr(there, part)} == swapped
    opposite = {"appears": "disappears", "disappears": "appears", "changes": "changes"}
    kernels = {(k.step, k.kernel, opposite[k.change]) for k in back.kernels}
    assert {(k.step, k.kernel, k.change) for k in there.kernels} == kernels


def test_operators_are_followed_into_their_new_kernels():
    found = {f.name: (f.baseline, f.candidate) for f in diffed("[fusion]", "qkv = false").operators}
    assert found == {name: ("qkv", name) for name in ("q_proj", "k_proj", "v_proj")}


def test_a_new_operator_comes_from_no_kernel():
    found = {f.name: (f.baseline, f.candidate) for f in diffed("[parallelism]", "tensor = 2").operators}
    assert found["mlp_all_reduce"] == (None, "mlp_all_reduce")


def test_a_decision_that_falls_back_says_why():
    [decision] = [d for d in diffed("[gemm]", '"tile@lm_head" = [512, 512, 64]').decisions if d.name.startswith("gemm.tile")]
    assert decision.baseline is None
    assert decision.candidate["effective"] == "the default tile"
    assert "bytes of unit memory" in decision.candidate["reason"]


def test_a_sheet_shows_the_rows_of_the_captured_graph():
    done = side("[graph]", "sizes = [32]")
    sheet = mapping_sheet(done.schedule, round_hardware(), done.mapping, STEPS).to_pylist()
    rows = {row["kernel"]: row["rows_count"] for row in sheet if row["step"] == "decode"}
    assert (rows["qkv"], rows["lm_head"], rows["attention_decode"]) == (32, 19, 19)


def test_a_tile_takes_two_stages_of_operands_and_its_results_of_a_unit():
    # 2 stages x 64 deep x (128 + 64) rows and columns x 2 bytes; 128 x 64 results x 4 bytes; 200,000 / 49,152 fit.
    done = side("[gemm]", "tile = [128, 64, 64]")
    row = next(row for row in mapping_sheet(done.schedule, round_hardware(), done.mapping, STEPS).to_pylist() if row["kernel"] == "qkv")
    assert (row["unit_memory_bytes"], row["accumulator_bytes"], row["tiles_per_unit"]) == (49152, 32768, 4)


def test_an_attention_tile_holds_queries_and_two_stages_of_keys_and_values():
    # (128 rows x 2 bytes + 2 x 64 keys x 2 bytes) x 128 wide; 128 x (64 + 128) results x 4 bytes, of 192,000.
    done = side("[attention]", '"tile@prefill" = [128, 64]')
    sheet = mapping_sheet(done.schedule, round_hardware(), done.mapping, STEPS).to_pylist()
    row = next(row for row in sheet if row["kernel"] == "attention_prefill")
    assert (row["unit_memory_bytes"], row["accumulator_bytes"], row["tiles_per_unit"]) == (65536, 98304, 1)
