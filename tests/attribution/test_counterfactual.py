"""Counterfactual costs: with a class as the baseline has it, what that class cost goes away and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.compute as pc
import pytest

from gates.attribution.counterfactual import with_terms_of
from replay.catalog.hardware import read_hardware
from replay.documents import shipped_path
from replay.execution.step_costs import price_kernels, step_seconds
from replay.ingress.synth import read_recipe, synthesize
from replay.pipeline import Replayer
from replay.specs.mapping import parse_mapping
from tests.models import LLAMA_8B

BASELINE = parse_mapping('name = "b"', "b")


@pytest.fixture(scope="module")
def replayer():
    recipe = replace(read_recipe(shipped_path("traces") / "demo" / "recipe.toml"), requests_count=150, rate_per_s=3.0)
    return Replayer(trace=synthesize(recipe, seed=1, name="t"), model=LLAMA_8B, hardware=read_hardware("a100-sxm-80gb"), seed=0)


def tables(replayer, text):
    return replayer.table(parse_mapping(f'name = "c"\n{text}', "c")), replayer.table(BASELINE)


@pytest.mark.parametrize(
    ("text", "bottleneck_class"),
    [
        ('[placement]\nweights = "host"\n', "memory_bandwidth"),
        ("[gemm]\ntile = [256, 128, 32]\n", "compute"),
    ],
)
def test_the_class_that_grew_takes_the_growth_with_it(replayer, text, bottleneck_class):
    candidate, baseline = tables(replayer, text)
    steps = replayer.run(BASELINE).steps
    without = with_terms_of(candidate, baseline, bottleneck_class)
    before, after, then = (float(step_seconds(table, steps).duration_s.sum()) for table in (baseline, candidate, without))
    assert after > 1.01 * before
    assert (after - then) / (after - before) > 0.9


def test_host_time_goes_back_too(replayer):
    baseline = replayer.table(BASELINE)
    candidate = replace(baseline, host_graph_launch_s=0.1, host_calls_s=0.1)
    assert with_terms_of(candidate, baseline, "launch_sync") == baseline
    assert with_terms_of(candidate, baseline, "compute") == candidate


def test_other_terms_stay_and_a_mapping_against_itself_is_unchanged(replayer):
    candidate, baseline = tables(replayer, "[gemm]\ntile = [256, 128, 32]\n")
    steps = replayer.run(BASELINE).steps
    without = with_terms_of(candidate, baseline, "compute")
    for kept, changed, old in zip(*(price_kernels(table, steps) for table in (without, candidate, baseline)), strict=True):
        assert kept.memory_s.tolist() == changed.memory_s.tolist()
        assert kept.launch_s.tolist() == changed.launch_s.tolist()
        assert kept.compute_s.tolist() == old.compute_s.tolist()
    assert with_terms_of(baseline, baseline, "memory_bandwidth") == baseline


@pytest.mark.parametrize("bottleneck_class", ["queueing", "memory_capacity", "thermal", "numerics"])
def test_classes_that_are_no_part_of_a_steps_time_have_none(replayer, bottleneck_class):
    assert with_terms_of(*tables(replayer, "[gemm]\nsplit_k = 4\n"), bottleneck_class) is None


def test_tables_over_other_steps_or_without_a_kernel_of_the_baseline_have_none(replayer):
    assert with_terms_of(*tables(replayer, "[batching]\nmax_batched_tokens = 4096\n"), "compute") is None
    split, fused = tables(replayer, "[fusion]\nqkv = false\n")
    assert set(fused.kernels["kernel"].to_pylist()) - set(split.kernels["kernel"].to_pylist())
    assert with_terms_of(split, fused, "launch_sync") is None


def test_collectives_are_the_interconnects_and_only_they():
    replayer = Replayer(
        trace=synthesize(
            replace(read_recipe(shipped_path("traces") / "demo" / "recipe.toml"), requests_count=50, rate_per_s=3.0), seed=1, name="t"
        ),
        model=LLAMA_8B,
        hardware=read_hardware("a100-sxm-80gb"),
        seed=0,
    )
    before, after = (
        replayer.table(parse_mapping(f'name = "c"\n[parallelism]\ntensor = 2\n[all_reduce]\none_shot_max_bytes = {most}\n', "c"))
        for most in (524288, 0)
    )
    without = with_terms_of(after, before, "interconnect")
    layers = dict(zip(after.kernels["kernel"].to_pylist(), after.kernels["layer_type"].to_pylist(), strict=True))
    assert "all_reduce" in layers.values()
    for name in after.token_terms.column_names:
        kernel, _, term = name.rpartition(".")
        expected = before if layers.get(kernel) == "all_reduce" and term != "bytes" else after
        assert pc.all(pc.equal(without.token_terms[name], expected.token_terms[name])).as_py(), name
