"""Recorded expert routing from import to verdict."""

import json

import numpy as np
import pytest

from tests.scenarios.test_experts import skewed

MODEL = ("--model", "qwen3-30b-a3b", "--hardware", "b200-sxm")
SPLIT = 'name = "split"\n[parallelism]\ntensor = 8\n'
WHOLE = 'name = "whole"\n[parallelism]\ntensor = 8\nexpert = 8\n'


@pytest.fixture
def routed(empty):
    """Return a folder with two mappings, a trace without routing, and recorded loads."""
    draw, count = np.random.default_rng(7), 6000
    arrivals = np.append(0.0, np.cumsum(draw.exponential(0.05, count - 1)))
    prompts, outputs = (np.rint(median * np.exp(0.5 * draw.standard_normal(count))).clip(1, 4000) for median in (1500, 60))
    lines = [f"{time},{prompt:.0f},{output:.0f}" for time, prompt, output in zip(arrivals, prompts, outputs, strict=True)]
    empty.write("plain.csv", "\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]))
    empty.write("load.json", json.dumps(skewed().to_document()))
    empty.write("split.toml", SPLIT)
    empty.write("whole.toml", WHOLE)
    return empty


def imported(project, name, load):
    result = project.replay("trace", "import", "plain.csv", "--out", name, "--expert-load", load, "--origin", "a test", "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_trace_is_imported_with_its_expert_load_and_describes_it(routed):
    facts = imported(routed, "skewed.parquet", "load.json")["expert_load"]
    assert (facts["routing"], facts["layers"], facts["experts"]) == ("recorded", 48, 128)
    assert facts["max_over_mean_ratio"] == pytest.approx(2.0, abs=1e-5)
    assert imported(routed, "uniform.jsonl", "uniform")["expert_load"]["routing"] == "uniform"
    assert "max_over_mean_ratio" in routed.replay("trace", "info", "skewed.parquet").output


def test_the_sheet_names_the_imbalance_by_layer_and_the_wait_for_the_busiest_rank(routed):
    imported(routed, "skewed.parquet", "load.json")
    shown = routed.replay("map", "--mapping", "whole.toml", "--trace", "skewed.parquet", *MODEL)
    assert "the busiest rank gets 2.00 times the rows of the mean one" in " ".join(shown.output.split())
    assert "expert_wait" in shown.output
    document = json.loads(routed.replay("map", "--mapping", "whole.toml", "--trace", "skewed.parquet", *MODEL, "--format", "json").output)
    assert document["expert_imbalance_ratios"] == pytest.approx([2.0] * 48)
    [row] = [row for row in document["kernels"] if row["kernel"] == "expert_wait" and row["step"] == "decode"]
    assert row["bottleneck_class"] == "interconnect"


@pytest.mark.parametrize("verb", [("map",), ("run", "--trace", "plain.csv", "--out", "runs")])
def test_without_routing_expert_parallelism_is_refused_and_nothing_is_guessed(routed, verb):
    refused = routed.replay(*verb, "--mapping", "whole.toml", *MODEL)
    assert refused.exit_code == 2
    assert "nothing says how often each expert is chosen" in refused.output


@pytest.mark.slow
def test_recorded_routing_shows_a_loss_that_uniform_routing_hides(routed):
    """No timing says how far the ratio of the experts' changed products is off, so 9 % cannot be told from that error: it is undecided."""
    imported(routed, "skewed.parquet", "load.json")
    imported(routed, "uniform.parquet", "uniform")
    arms = ("gate", "--baseline", "split.toml", "--candidate", "whole.toml", *MODEL)
    ratios = {}
    for name in ("uniform", "skewed"):
        assert routed.replay(*arms, "--trace", f"{name}.parquet", "--out", name).exit_code == 20
        found = json.loads(routed.read(f"{name}/verdict.json"))["predicate"]
        ratios[name] = [claim["ratio"] for claim in found["claims"] if claim["blocking"] and claim["percentile"]]
    assert ratios["uniform"] == pytest.approx([1.0] * 6, abs=0.04)
    assert min(ratios["skewed"]) > 1.06
    assert found["mitigation"]["revert"] == ["parallelism.expert"]
    assert "the error of the kernels' model alone forbids a decision" in found["reasons"][0]["message"]
