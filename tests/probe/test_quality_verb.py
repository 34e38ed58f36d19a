"""`replay quality` from files to a report and to evidence that the gate reads."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from gates.cli import main
from replay import documents
from replay.ingress.quality.reader import read_quality
from tests.probe_models import CONFIG, inside_package, random_tensors, word_probes, write_folder_of, write_probes

WORDS = re.findall(
    r"\w+",
    """
    about accept baseline change default evidence figure gates hardware interval judge kernel latency margin number outcome policy
    quality record sample traffic unknown verdict window xylophone yellow zero accelerator benchmark candidate deterministic example
    floating gradient holdout inference jitter knob layer mapping normal operator packet quantile regression scenario throughput upper
    vocabulary
    """,
)
GOOD = '[formats]\nweights = "int8"\nactivations = "bf16"\n'


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder_of(tmp_path / "m")
    write_probes(tmp_path / "probes.jsonl")
    return tmp_path


def probe(work, candidate, *options, baseline=None, weights="m", probes="probes.jsonl", code=0):
    (work / "candidate.toml").write_text(f'name = "candidate"\n{candidate}')
    arguments = [
        "quality",
        "--mapping",
        "candidate.toml",
        "--weights",
        str(weights),
        "--probes",
        str(probes),
        "--answer-tokens",
        "4",
        *options,
    ]
    if baseline is not None:
        (work / "baseline.toml").write_text(f'name = "baseline"\n{baseline}')
        arguments += ["--baseline", "baseline.toml"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def report(work, candidate, *options, **more):
    return json.loads(probe(work, candidate, "--format", "json", *options, **more).stdout)


def test_the_same_arithmetic_drifts_by_nothing_and_another_order_by_the_floor(work):
    found = report(work, GOOD, baseline=GOOD)
    overall = found["overall"]
    assert (overall["kl_max_nats"], overall["nll_change_nats_per_token"], overall["top1_agreement_ratio"]) == (0.0, 0.0, 1.0)
    assert (overall["answers_equal_ratio"], overall["first_divergence_median_tokens"], found["reverts"]) == (1.0, None, [])
    assert overall["embedding_cosine_min"] == pytest.approx(1.0, abs=1e-12)
    assert all(row["relative_error"] == 0.0 and row["sqnr_db"] is None for row in found["layers"])
    exact = report(work, "[gemm]\nsplit_k = 2\n[attention]\nkv_split = 2\n")
    assert 0 < exact["overall"]["kl_mean_nats"] < 1e-9
    assert exact["overall"]["kl_mean_nats"] == pytest.approx(exact["floor"]["kl_mean_nats"])


def test_a_report_follows_its_schema_and_the_figures_follow_from_logits(work):
    found = report(work, GOOD, "--out", "out")
    documents.check(found, "quality-probe.v1", "the report")
    assert json.loads((work / "out" / "report.json").read_text()) == found
    overall = found["overall"]
    assert 0 < overall["kl_mean_nats"] < overall["kl_p99_nats"] <= overall["kl_max_nats"]
    change = overall["nll_candidate_nats_per_token"] - overall["nll_baseline_nats_per_token"]
    assert overall["nll_change_nats_per_token"] == pytest.approx(change)
    assert overall["perplexity_ratio"] == pytest.approx(np.exp(change))
    assert overall["predictions"] == 12 * 23
    assert [row["figures"] is None for row in found["by_prompt_bin"]] == [False, True, True, True, True]
    assert {row["layer_type"] for row in found["layers"]} == {"qkv", "attention", "output_proj", "mlp", "lm_head"}
    assert all(10 < row["sqnr_db"] < 80 for row in found["layers"])


def test_figures_are_those_of_distributions_written_out(work):
    from replay.quality.compare import Arm, compare
    from replay.quality.models import model_of
    from replay.quality.numerics import Numerics
    from replay.quality.weights.checkpoint import read_checkpoint
    from replay.specs.mapping import parse_mapping

    model = model_of(read_checkpoint(work / "m"))
    numerics = [Numerics.exact(), Numerics.of(parse_mapping('name = "x"\n[formats]\nweights = "int4"\n', "x"), "fp32")]
    tokens = np.random.default_rng(0).integers(0, 101, 90).tolist()
    arms = [Arm(numerics=own, states=model.states(own, tokens, tokens[1:])) for own in numerics]
    [found] = compare(model, arms[0], arms[1:], tokens[1:])
    for place, label in enumerate(tokens[1:]):
        logits = [model.logits(arm.numerics, arm.states[place : place + 1])[0].astype(np.longdouble) for arm in arms]
        shares = [np.exp(own) / np.exp(own).sum() for own in logits]
        assert found.kl_nats[place] == pytest.approx(float((shares[0] * np.log(shares[0] / shares[1])).sum()), rel=1e-4)
        assert found.nll_baseline_nats[place] == pytest.approx(-float(np.log(shares[0][label])), rel=1e-5)
        assert found.nll_candidate_nats[place] == pytest.approx(-float(np.log(shares[1][label])), rel=1e-5)
        assert found.top1_equal[place] == (shares[0].argmax() == shares[1].argmax())


PLANTED = {
    ("formats.weights", "mlp"): '"weights@mlp" = "int4"\n"weight_scales@mlp" = "tensor"\n',
    ("formats.weights", "output_proj"): '"weights@output_proj" = "int4"\n"weight_scales@output_proj" = "tensor"\n',
    ("formats.activations", "lm_head"): '"activations@lm_head" = "nvfp4"\n',
    ("formats.sparsity", "qkv"): '"sparsity@qkv" = "2:4"\n',
}


@pytest.mark.parametrize("place", PLANTED, ids="@".join)
def test_undoing_finds_the_one_bad_format(work, place):
    found = report(work, f"{GOOD}{PLANTED[place]}", baseline='[formats]\nactivations = "bf16"\n')
    first = found["reverts"][0]
    assert (first["knob"], first["layer_type"]) == place
    assert first["undone_share_ratio"] > 0.5
    assert first["kl_mean_nats_left"] < found["attributed"]["kl_mean_nats"]


def test_a_cache_format_and_narrow_sums_are_found_too_and_without_attribution_nothing_is_undone(work):
    found = report(work, '[formats]\nweights = "int8"\nkv = "fp8"\n')
    assert (found["reverts"][0]["knob"], found["reverts"][0]["revert_cost"]) == ("formats.kv", "restart")
    sums = report(work, '[formats]\n"accumulation@mlp" = "bf16"\n')
    assert [(row["knob"], row["layer_type"]) for row in sums["reverts"]] == [("formats.accumulation", "mlp")]
    assert sums["reverts"][0]["undone_share_ratio"] == pytest.approx(1.0)
    less = report(work, '[formats]\nkv = "fp8"\n', "--attribution-tokens", "0")
    assert (less["reverts"], less["layers"], less["attributed"]) == ([], [], {"items": 0, "kl_mean_nats": None})


def test_logits_that_are_not_finite_are_a_finding_and_never_a_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tensors = random_tensors()
    tensors["model.layers.1.mlp.down_proj.weight"] *= 1e4
    write_folder_of(tmp_path / "m", tensors=tensors)
    write_probes(tmp_path / "probes.jsonl")
    found = report(tmp_path, '[formats]\nactivations = "fp16"\n', "--out", "out")
    documents.check(found, "quality-probe.v1", "the report")
    assert found["findings"][0]["code"] == "logits_not_finite"
    assert found["overall"]["not_finite_predictions"] > 0
    candidate, baseline = ((tmp_path / "out" / f"{arm}.jsonl").read_text().splitlines() for arm in ("candidate", "baseline"))
    assert len(baseline) == 12
    assert len(candidate) < 12


def test_the_gate_reads_what_the_probe_writes(work):
    report(work, GOOD, "--out", "out")
    before, after = (read_quality(work / "out" / f"{arm}.jsonl") for arm in ("baseline", "candidate"))
    assert before.items.num_rows == after.items.num_rows == 12 * 5
    metrics = set(before.items["metric"].to_pylist())
    assert metrics == {"nll_nats_per_token", "kl_nats_per_token", "top1_agreement_ratio", "output_match_ratio", "degenerate_ratio"}
    assert before.items["prompt_hash"].to_pylist() == after.items["prompt_hash"].to_pylist()
    assert set(before.items["prompt_tokens"].to_pylist()) == {24}
    floors = [row["value"] for row in before.items.to_pylist() if row["metric"] == "kl_nats_per_token"]
    assert max(floors) < 1e-9


def test_a_second_report_takes_the_place_of_the_first_and_of_nothing_else(work):
    report(work, GOOD, "--out", "out")
    report(work, GOOD, "--out", "out")
    (work / "mine").mkdir()
    (work / "mine" / "notes").write_text("x")
    assert "other content" in probe(work, GOOD, "--out", "mine", code=2).output


BAD = {
    "vocabulary": ('{"item_id": "a", "tokens": [1, 101]}', "the token 101; want ids below 101, the size of the model's vocabulary"),
    "context": (json.dumps({"item_id": "a", "tokens": [1] * 253}), "253 tokens and 4 of an answer; want at most 256"),
    "keys": ('{"item_id": "a", "ids": [1, 2]}', "probes.jsonl:1: the keys item_id, ids"),
    "short": ('{"item_id": "a", "tokens": [1]}', "no list of two or more ids"),
    "twice": ('{"item_id": "a", "tokens": [1, 2]}\n' * 2, "the item 'a' twice"),
    "text": ('{"item_id": "a", "text": "hello"}', "no tokenizer among the weights"),
    "json": ('{"item_id": "a", "tokens": [1, NaN]}', "the value NaN"),
}


@pytest.mark.parametrize("kind", BAD)
def test_probes_that_cannot_be_asked_are_one_sentence(work, kind):
    text, said = BAD[kind]
    (work / "probes.jsonl").write_text(text)
    output = probe(work, GOOD, code=2).output
    assert said in output
    assert len(output.strip().splitlines()) == 1


def test_experts_are_refused(work):
    config = CONFIG | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    write_folder_of(work / "m", config=config, tensors={"a": np.ones((2, 2), np.float32)})
    assert "a mixture of experts or latent attention; want a dense Llama-like model" in probe(work, GOOD, code=2).output


def test_the_text_names_layers_knobs_and_limits(work):
    output = probe(work, GOOD).stdout
    assert "candidate against float32 on m: 12 probes, 276 predictions" in output
    assert "formats.weights of mlp" in output
    assert "note: 276 predictions are few" in output


def test_coarser_scales_of_a_real_model_drift_further_step_by_step(tmp_path, monkeypatch):
    """g2p-en: published figures for equal pronunciations are 0.982, 0.970, 0.777 and 0.627, on other words."""
    weights = inside_package("g2p_en", "checkpoint20.npz")
    monkeypatch.chdir(tmp_path)
    probes = word_probes(tmp_path / "words.jsonl", WORDS)
    ladder = (("bf16", "format"), ("int8", "format"), ("int8", "tensor"), ("int4", "channel"), ("int4", "tensor"))
    found = [
        report(tmp_path, f'[formats]\nweights = "{name}"\nweight_scales = "{scales}"\n', weights=weights, probes=probes)["overall"]
        for name, scales in ladder
    ]
    divergences = [row["kl_mean_nats"] for row in found]
    assert divergences == sorted(divergences)
    shares = [row["answers_equal_ratio"] for row in found]
    assert min(shares[:3]) > 0.93
    assert 0.3 < shares[4] < shares[3] < 0.93


def test_settings_of_one_accelerator_need_its_name(work):
    body = '[formats]\n"weights@[chip=h100-sxm]" = "int4"\n'
    output = probe(work, body, code=2).output
    assert "formats.weights@[chip=h100-sxm] holds for one accelerator" in output
    assert "add --hardware h100-sxm" in output
    assert report(work, body, "--hardware", "h100-sxm")["overall"]["kl_mean_nats"] > 0
    assert report(work, body, "--hardware", "l40s")["overall"]["kl_mean_nats"] == 0


def test_sums_that_depend_on_the_batch_are_told_from_those_that_do_not(work):
    """Narrow sums in parts only for small batches: twelve prompts decode together, or one alone."""
    fixed = '[formats]\naccumulation = "bf16"\n'
    varying = fixed + '[gemm]\n"split_k@decode[rows<=4]" = 2\n'
    found = report(work, varying, "--batch-invariance", "--answer-tokens", "48", "--out", "out", baseline=fixed)
    documents.check(found, "quality-probe.v1", "the report")
    assert found["batch_invariance"]["baseline_ratio"] == 1.0
    assert found["batch_invariance"]["candidate_ratio"] < 1.0
    after = read_quality(work / "out" / "candidate.jsonl").items.to_pylist()
    values = [row["value"] for row in after if row["metric"] == "batch_invariance_ratio"]
    assert sum(values) / len(values) == pytest.approx(found["batch_invariance"]["candidate_ratio"])
    assert report(work, varying, baseline=fixed)["batch_invariance"] is None
