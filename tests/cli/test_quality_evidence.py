"""`replay gate` with evaluations of both arms: answers are gated as strictly as latencies, and no gain in speed buys a loss."""

import json

import numpy as np
import pytest

FORMATS = ("--baseline", "mapping.toml", "--candidate", "narrow.toml", "--hardware", "h100-sxm", "--policy", "lenient.toml")
LENIENT = """
allow_synthetic = true
resimulations = 60
max_resimulations = 60
[blocking]
tpot_s = { p95 = "30 %" }
"""


@pytest.fixture
def evaluated(project):
    """The demo with a candidate in fp8, a policy that its latencies hold, and the baseline's evaluation."""
    text = project.read("mapping.toml")
    assert 'weights = "model"' in text
    project.write("narrow.toml", text.replace('weights = "model"', 'weights = "fp8"'))
    project.write("lenient.toml", LENIENT)
    evaluation(project, "before.jsonl")
    return project


def evaluation(project, name, *, lost=0.0, won=0.0, n=3000, lengths=None, beyond=None, **more):
    """Write an evaluation in which a share of the right answers (with prompts beyond some length) is lost and of wrong ones is won."""
    rng = np.random.default_rng(3)
    right, prompts, draw = rng.random(n) < 0.7, np.exp(rng.normal(7.0, 1.0, n)).astype(int) + 1, rng.random(n)
    prompts = prompts if lengths is None else np.full(n, lengths)
    subject = np.ones(n, dtype=bool) if beyond is None else prompts > beyond
    found = np.where(right, ~(subject & (draw < lost)), subject & (draw < won))
    rows = [
        {"item_id": f"q{place}", "task": f"t{place % 3}", "correct": int(found[place]), "prompt_hash": f"h{place}", **more}
        | ({} if lengths == 0 else {"prompt_tokens": int(prompts[place])})
        for place in range(n)
    ]
    project.write(name, "".join(json.dumps(row) + "\n" for row in rows))
    return name


def gate(project, candidate, code, *options, baseline="before.jsonl"):
    files = ("--quality-baseline", baseline, "--quality-candidate", candidate)
    result = project.replay("gate", *FORMATS, *files, *options, "--out", "out", "--format", "json")
    assert result.exit_code == code, result.stderr + result.stdout[:2000]
    return json.loads(result.stdout)["predicate"]


def claims_of(predicate):
    return {
        claim["id"].rpartition("/")[2]: claim for claim in predicate["claims"] if "nats" in claim["unit"] or "accuracy" in claim["metric"]
    }


def codes(predicate):
    return {reason["code"] for reason in predicate["reasons"]}


def test_a_narrower_format_without_evidence_supports_no_decision_and_with_equal_answers_it_is_released(evaluated):
    result = evaluated.replay("gate", *FORMATS, "--out", "out", "--format", "json")
    assert result.exit_code == 30
    assert "quality_evidence_missing" in codes(json.loads(result.stdout)["predicate"])
    predicate = gate(evaluated, evaluation(evaluated, "after.jsonl"), 0)
    found = claims_of(predicate)
    assert found["task_accuracy_ratio"]["method"] == "paired_score"
    assert found["task_accuracy_ratio"]["n"] == 2999  # one item is longer than any bin with requests
    assert {claim["outcome"] for claim in found.values()} == {"holds"}
    assert "% of the trace's requests" in found["task_accuracy_ratio@prompt_tokens[512,2048)"]["warnings"][0]
    assert [row["role"] for row in predicate["inputs"]].count("quality") == 2


def test_worse_answers_roll_a_faster_candidate_back_to_the_format_that_made_them(evaluated):
    predicate = gate(evaluated, evaluation(evaluated, "after.jsonl", lost=0.08, won=0.02), 10)
    assert (predicate["first_failing_stage"], predicate["bottleneck_class"]) == ("quality_sla", "numerics")
    assert predicate["mitigation"]["revert"] == ["formats.weights"]
    assert predicate["mitigation"]["verified"]
    assert any(row["metric"] == "tpot_s" for row in predicate["improved"])
    assert claims_of(predicate)["task_accuracy_ratio"]["difference"] == pytest.approx(-0.05, abs=0.015)
    assert "of 3 tasks the worst are" in " ".join(claims_of(predicate)["task_accuracy_ratio"]["warnings"])
    reproduced = evaluated.replay("reproduce", "out")
    assert (reproduced.exit_code, reproduced.stdout) == (0, "out: identical, byte for byte\n")


def test_a_loss_in_long_prompts_alone_is_named_by_its_bin_and_its_share_of_the_traffic(evaluated):
    predicate = gate(evaluated, evaluation(evaluated, "after.jsonl", lost=0.3, beyond=2048), 10)
    found = claims_of(predicate)
    assert found["task_accuracy_ratio@prompt_tokens[2048,8192)"]["outcome"] == "disproved"
    assert found["task_accuracy_ratio@prompt_tokens[512,2048)"]["outcome"] == "holds"


def test_items_longer_than_any_request_are_left_out_and_told(evaluated):
    """The demo's longest request has 14,050 tokens: answers to prompts of another bin are lost, and those to its own are not."""
    for name in ("before", "after"):
        own, long = (evaluation(evaluated, f"{name}-{lengths}.jsonl", lengths=lengths) for lengths in (None, 40_000))
        rows = [json.loads(line) for line in evaluated.read(long).splitlines()[:300]]
        lost = [{**row, "item_id": f"long {row['item_id']}", "correct": row["correct"] * (name == "before")} for row in rows]
        evaluated.write(f"{name}.jsonl", evaluated.read(own) + "".join(json.dumps(row) + "\n" for row in lost))
    predicate = gate(evaluated, "after.jsonl", 0)
    [told] = [reason["message"] for reason in predicate["reasons"] if reason["code"] == "quality_items_beyond_traffic"]
    assert claims_of(predicate)["task_accuracy_ratio"]["n"] == 2999
    assert told.startswith("301 of 3300 items have longer prompts (from 38960 tokens)")
    for name in ("before", "after"):  # nothing but long prompts was asked: they count, as good evidence as there is
        evaluation(evaluated, f"{name}-long.jsonl", lengths=40_000, lost=0.1 * (name == "after"))
    predicate = gate(evaluated, "after-long.jsonl", 10, baseline="before-long.jsonl")
    assert claims_of(predicate)["task_accuracy_ratio"]["outcome"] == "disproved"
    assert "quality_items_beyond_traffic" not in codes(predicate)


def test_a_bin_with_traffic_and_without_items_is_undecided(evaluated):
    evaluation(evaluated, "before.jsonl", lengths=600)
    predicate = gate(evaluated, evaluation(evaluated, "after.jsonl", lengths=600), 20)
    found = claims_of(predicate)["task_accuracy_ratio@prompt_tokens[2048,8192)"]
    assert (found["outcome"], found["reason_code"]) == ("undecided", "stratum_absent")
    assert "% of the trace's requests do" in found["reason"]


def test_items_that_do_not_tell_their_length_stand_for_prompts_up_to_the_policys_length_and_no_further(evaluated):
    evaluation(evaluated, "before.jsonl", lengths=0)
    assert set(claims_of(gate(evaluated, evaluation(evaluated, "after.jsonl", lengths=0), 0))) == {"task_accuracy_ratio"}
    evaluated.write("lenient.toml", LENIENT + "[quality]\nunknown_lengths_to_tokens = 2048\n")
    predicate = gate(evaluated, "after.jsonl", 20)
    assert claims_of(predicate)["task_accuracy_ratio@prompt_tokens[2048,8192)"]["outcome"] == "undecided"


@pytest.mark.parametrize(
    ("change", "code"),
    [({"n": 2990}, "quality_items_differ"), ({"prompt_hash": "other"}, "quality_prompts_differ")],
)
def test_evaluations_of_other_items_or_prompts_support_no_decision(evaluated, change, code):
    assert code in codes(gate(evaluated, evaluation(evaluated, "after.jsonl", **change), 30))


def test_evaluations_without_items_count_with_both_arms_errors(evaluated, shared):
    folder = shared / "data/formats/lm_eval_results"
    one, other = (folder / name for name in ("1b-deduped_step93000.json", "1b-bf16-5shot_step1000.json"))
    claim = claims_of(gate(evaluated, one, 20, baseline=one))["task_accuracy_ratio"]
    assert (claim["method"], claim["difference"]) == ("reported_errors", 0.0)
    assert claim["interval"]["upper"] == pytest.approx(0.01, abs=0.001)  # wider than the margin of a point, for pairing is not known
    evaluated.write("lenient.toml", LENIENT + '[quality]\ntask_accuracy_ratio = "2 points"\n')
    assert gate(evaluated, one, 0, baseline=one)["decision"] == "release"
    predicate = gate(evaluated, other, 10, baseline=one)
    assert "quality_models_differ" in codes(predicate)


def test_one_evaluation_alone_and_one_that_cannot_be_read_are_usage_errors(evaluated):
    for options in (("--quality-baseline", "before.jsonl"), ("--quality-candidate", "before.jsonl")):
        result = evaluated.replay("gate", *FORMATS, *options)
        assert (result.exit_code, "evaluations of both arms" in result.stderr) == (2, True)
    result = evaluated.replay("gate", *FORMATS, "--quality-baseline", "before.jsonl", "--quality-candidate", "mapping.toml")
    assert (result.exit_code, result.stderr.strip().count("\n")) == (2, result.stderr.strip().count("\n"))
    assert "no known form of quality results" in result.stderr


def test_a_metric_that_a_policy_asks_for_and_no_file_has_is_undecided(evaluated):
    evaluated.write("lenient.toml", LENIENT + '[quality]\noutput_match_ratio = "1 point"\n')
    predicate = gate(evaluated, evaluation(evaluated, "after.jsonl"), 20)
    claim = next(claim for claim in predicate["claims"] if claim["metric"] == "output_match_ratio")
    assert (claim["outcome"], claim["reason_code"]) == ("undecided", "metric_absent")


def test_answers_that_differ_are_gated_where_a_policy_asks_for_the_same_ones(evaluated):
    evaluated.write("lenient.toml", LENIENT + '[quality]\noutput_match_ratio = "5 points"\n')

    def write(name, changed):
        rows = [{"item_id": f"q{place}", "output": "other" if place < changed else f"answer {place}"} for place in range(800)]
        evaluated.write(name, "".join(json.dumps(row) + "\n" for row in rows))

    write("before.jsonl", 0)
    write("few.jsonl", 8)
    write("many.jsonl", 120)
    assert gate(evaluated, "few.jsonl", 0)["decision"] == "release"
    assert gate(evaluated, "many.jsonl", 10)["bottleneck_class"] == "numerics"


def test_measured_runs_are_judged_with_their_evaluations(evaluated):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("a", "b"):
        rows = {"request_id": [f"r{place}" for place in range(2000)], "ttft_s": np.random.default_rng(1).lognormal(0, 0.3, 2000)}
        about = {"prompt_tokens": [600] * 2000, "output_tokens": [5] * 2000, "source": [name] * 2000}
        pq.write_table(pa.table(rows | about), evaluated.folder / f"{name}.parquet")
    evaluated.write("measured.toml", '[blocking]\nttft_s = { p50 = "10 %" }\n')
    files = ("--baseline", "a.parquet", "--candidate", "b.parquet", "--policy", "measured.toml", "--out", "out", "--format", "json")
    for name, lost, code in (("same.jsonl", 0.0, 0), ("worse.jsonl", 0.1, 10)):
        quality = ("--quality-baseline", "before.jsonl", "--quality-candidate", evaluation(evaluated, name, lost=lost))
        result = evaluated.replay("gate", *files, *quality)
        assert result.exit_code == code, result.stderr + result.stdout[:1500]
    assert evaluated.replay("reproduce", "out").stdout == "out: identical, byte for byte\n"


@pytest.mark.parametrize("line", ['weight_scales = "tensor"', 'accumulation = "fp16"'])
def test_a_knob_of_numbers_that_has_no_price_needs_evidence_too(project, line):
    text = project.read("mapping.toml")
    project.write("narrow.toml", text.replace('weights = "model"', f'weights = "model"\n{line}'))
    project.write("lenient.toml", LENIENT)
    result = project.replay("gate", *FORMATS, "--out", "out", "--format", "json")
    assert result.exit_code == 30
    [reason] = [one for one in json.loads(result.stdout)["predicate"]["reasons"] if one["code"] == "quality_evidence_missing"]
    assert f"formats.{line.split(' = ')[0]}" in reason["message"]
