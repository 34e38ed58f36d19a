"""A tuned mapping: never slower on the steps, few settings, each with its reason; `auto` where nothing wins."""

import itertools
import tomllib
from functools import cache

import jsonschema
import numpy as np
import pyarrow as pa
import pytest

from replay.catalog.hardware import read_hardware
from replay.documents import load_schema
from replay.execution.step_costs import step_seconds
from replay.execution.tables import SHAPE_COLUMNS
from replay.pipeline import compile_mapping
from replay.specs.mapping import parse_mapping
from replay.tuning.graphs import best_sizes, covered_s
from replay.tuning.mix import shape_mix
from replay.tuning.moves import LEAST_GAIN_RATIO
from replay.tuning.text import tuned_text
from replay.tuning.tune import Tuner
from tests.models import LLAMA_8B, MIXTRAL, mapping, round_hardware

SMALL = ("[batching]", "max_batched_tokens = 192", "max_running = 24", "max_context_tokens = 2048")
GIVEN = {
    "defaults": (),
    "pinned": ("[gemm]", "tile = [64, 64, 64]", '"tile@mlp.decode[rows<=8]" = [128, 128, 64]', "split_k = 2"),
    "attention": ("[attention]", '"tile@prefill" = [32, 128]', "kv_split = 8"),
    "a tile that does not fit": ("[gemm]", "tile = [512, 512, 64]"),
    "another chip's": ("[gemm]", '"tile@[chip=l40s]" = [16, 32, 64]', '"tile@mlp[chip=round]" = [256, 32, 64]'),
    "few graphs": ("[graph]", "sizes = [16, 24, 128]"),
    "eager": ("[graph]", 'mode = "none"'),
}


@cache
def some_steps(seed=0, count=300):
    """Steps of a replay with up to 24 sequences and prompts of up to 168 tokens in a third of them."""
    rng = np.random.default_rng(seed)
    decodes = rng.integers(1, 25, count)
    context = decodes * rng.integers(20, 1500, count)
    prefill = np.where(rng.random(count) < 0.3, rng.integers(1, 169, count), 0)
    columns = (decodes + prefill, decodes, decodes, context, prefill, prefill * rng.integers(1, 400, count))
    return pa.table({name: pa.array(column, pa.int64()) for name, column in zip(SHAPE_COLUMNS, columns, strict=True)})


@cache
def tuned(*lines, model=LLAMA_8B, accelerator=None):
    device = round_hardware() if accelerator is None else read_hardware(accelerator)
    tuner = Tuner(model=model, hardware=device, steps=some_steps(), progress=lambda message: None)
    return tuner.tune(mapping(*lines, *SMALL))


def seconds(spec, model=LLAMA_8B):
    table = compile_mapping(model, round_hardware(), spec).table
    return float(step_seconds(table, some_steps()).duration_s.sum())


CASES = [*((lines, LLAMA_8B) for lines in GIVEN.values()), ((), MIXTRAL), (GIVEN["pinned"], MIXTRAL)]
NAMES = [*GIVEN, "experts", "experts, pinned"]


@pytest.mark.parametrize(("lines", "model"), CASES, ids=NAMES)
def test_a_tuned_mapping_is_never_slower_on_the_steps_and_every_line_kept_is_faster(lines, model):
    found = tuned(*lines, model=model)
    assert seconds(found.mapping, model) == pytest.approx(found.after_s, rel=1e-12)
    assert seconds(mapping(*lines, *SMALL), model) == pytest.approx(found.before_s, rel=1e-12)
    assert found.after_s <= found.before_s
    for one in found.kept:
        assert one.before_s - one.after_s > LEAST_GAIN_RATIO * one.move.place_s > 0


@pytest.mark.parametrize(("lines", "model"), CASES, ids=NAMES)
def test_the_file_parses_to_the_mapping_and_says_why_it_sets_what_it_sets(lines, model):
    found = tuned(*lines, model=model)
    text = tuned_text(found, "tuned", ["for a test"])
    assert parse_mapping(text, "tuned.toml").digest == found.mapping.digest
    jsonschema.Draft202012Validator(load_schema("mapping.v1")).validate(tomllib.loads(text))
    given = {setting.knob: setting.value for setting in mapping(*lines, *SMALL).settings}
    written = text.splitlines()
    for setting in found.mapping.settings:
        if given.get(setting.knob) != setting.value and any(one.move.knob == setting.name for one in found.kept):
            key = setting.knob.split(".", 1)[1]
            [at] = [place for place, line in enumerate(written) if line.startswith((f'"{key}" = ', f"{key} = "))]
            assert "of the time of all steps" in written[at - 1] or setting.value in given.values()


def test_tuning_twice_gives_the_same_bytes():
    first = tuned("[gemm]", "tile = [64, 64, 64]")
    again = Tuner(model=LLAMA_8B, hardware=round_hardware(), steps=some_steps(), progress=lambda message: None).tune(
        mapping("[gemm]", "tile = [64, 64, 64]", *SMALL)
    )
    assert tuned_text(first, "a", []) == tuned_text(again, "a", [])


def test_a_dense_product_keeps_auto_and_a_pinned_one_goes_back_to_it():
    assert [one.move.knob for one in tuned().kept if one.move.knob.startswith("gemm.")] == []
    found = tuned(*GIVEN["pinned"])
    assert {setting.name for setting in found.mapping.settings} & {"gemm.tile", "gemm.split_k"} == set()
    assert "gemm.tile@mlp.decode goes back to auto: was 128x128x64, 64x64x64" in tuned_text(found, "a", [])


def test_experts_leave_the_rules_of_the_stack():
    found = tuned(model=MIXTRAL, accelerator="a100-sxm-80gb")
    pinned = [setting for setting in found.mapping.settings if setting.name == "gemm.tile"]
    assert pinned
    assert {setting.scope.layer for setting in pinned} == {"moe"}
    assert found.after_s < 0.999 * found.before_s


def test_rows_that_the_traffic_never_has_keep_auto():
    spec = tuned(model=MIXTRAL, accelerator="a100-sxm-80gb").mapping.on("a100-sxm-80gb")
    for phase, rows in (("decode", 150), ("prefill", 1000)):
        assert spec.value("gemm.tile", layer="moe", phase=phase, rows=rows) == "auto"


def test_settings_of_other_chips_stay():
    found = tuned(*GIVEN["another chip's"]).mapping
    assert [(s.knob, s.value) for s in found.settings if s.scope.chip] == [("gemm.tile@[chip=l40s]", (16, 32, 64))]


def test_graph_sizes_follow_the_traffic_no_more_and_no_larger_than_given():
    given = (16, 24, 128)
    found = {s.name: s.value for s in tuned(*GIVEN["few graphs"]).mapping.settings}["graph.sizes"]
    assert found[-1] == given[-1]
    assert len(found) <= 3
    assert not [one for one in tuned(*GIVEN["eager"]).kept if one.move.knob == "graph.sizes"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_no_other_sizes_cost_less(seed, most):
    rng = np.random.default_rng(seed)
    padded = np.cumsum(rng.random((6, 6)), axis=1) * rng.integers(0, 5, 6)[:, None]
    found = best_sizes(padded, most)
    others = (np.array([*chosen, 5]) for count in range(most) for chosen in itertools.combinations(range(5), count))
    assert found[-1] == 5
    assert len(found) <= most
    assert covered_s(padded, found) == pytest.approx(min(covered_s(padded, sizes) for sizes in others))


def test_the_all_reduce_threshold_is_tuned_where_there_are_ranks():
    lines = ("[parallelism]", "tensor = 2", "[all_reduce]", "one_shot_max_bytes = 0")
    found = tuned(*lines)
    assert [one.move.value for one in found.kept if one.move.knob.startswith("all_reduce")]
    assert found.mapping.count("all_reduce.one_shot_max_bytes") > 0
    assert not [one for one in tuned().kept if one.move.knob.startswith("all_reduce")]


def test_a_mix_counts_every_step_once_on_each_axis():
    steps = some_steps()
    table = compile_mapping(LLAMA_8B, round_hardware(), mapping(*SMALL)).table
    mix = shape_mix(table, steps)
    prefilling = int((steps["prefill_tokens"].to_numpy() > 0).sum())
    assert [part.steps_count.sum() for part in mix.tokens] == [steps.num_rows - prefilling, prefilling]
    assert mix.sequences.steps_count.sum() == steps.num_rows
    assert mix.decode.steps_count.sum() == pytest.approx(steps.num_rows)
    assert mix.prefill.steps_count.sum() == pytest.approx(prefilling)
    tokens = (mix.prefill.rows[:, None] * mix.prefill.steps_count).sum()
    assert tokens == pytest.approx(steps["prefill_tokens"].to_numpy().sum())
    captured = set(table.capture["captured_tokens"].to_pylist())
    assert set(mix.tokens[0].rows.tolist()) <= captured


def test_no_traffic_of_a_kind_moves_nothing_of_it():
    decode_only = some_steps().filter(pa.compute.equal(some_steps()["prefill_tokens"], 0))
    tuner = Tuner(model=LLAMA_8B, hardware=round_hardware(), steps=decode_only, progress=lambda message: None)
    found = tuner.tune(mapping(*GIVEN["pinned"], *SMALL))
    assert {one.move.place.phase for one in found.kept if one.move.place is not None} == {"decode"}
    assert found.mapping.on("round").value("gemm.tile", layer="qkv", phase="prefill", rows=64) == (64, 64, 64)
