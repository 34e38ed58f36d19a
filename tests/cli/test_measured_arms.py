"""`replay gate` on result files: real pairs get the verdicts that their counts and data support, and what is no pair exits 30 or 2."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replay import documents
from tests.runs import lognormal_s

MEDIANS = """
[blocking]
ttft_s = { p50 = "3 %", p95 = "3 %", p99 = "3 %" }
tpot_s = { p50 = "3 %", p95 = "3 %", p99 = "3 %" }
itl_s = { p50 = "3 %", p95 = "3 %", p99 = "3 %" }
"""


def gate(empty, baseline, candidate, *options, code):
    arms = [part for name, arm in (("--baseline", baseline), ("--candidate", candidate)) for one in arm for part in (name, one)]
    result = empty.replay("gate", *arms, *options, "--out", "out", "--format", "json")
    assert result.exit_code == code, result.stderr + result.stdout[:3000]
    document = json.loads(result.stdout)
    documents.check(document, "verdict.v1", "verdict.json")
    return document["predicate"]


def table(empty, name, values, **columns):
    rows = {"request_id": [f"r{i}" for i in range(len(values))], "arrival_s": [0.1 * i for i in range(len(values))]}
    rows |= {"prompt_tokens": [100] * len(values), "output_tokens": [11] * len(values), "ttft_s": values, "e2e_s": [2 * v for v in values]}
    pq.write_table(pa.table({**rows, **columns}), empty.folder / name)
    return name


@pytest.fixture
def pair(empty):
    values = lognormal_s(4000).tolist()
    return table(empty, "a.parquet", values), table(empty, "b.parquet", [1.3 * value for value in values])


def test_a_decode_slowdown_of_20_percent_shows_in_medians_and_p95_and_p99_of_100_requests_decides_nothing(shared, empty):
    folder = shared / "data/formats/aiperf"
    empty.write("policy.toml", MEDIANS)
    arms = folder / "baseline.profile_export.jsonl", folder / "candidate-decode-20pct-slower.profile_export.jsonl"
    predicate = gate(empty, arms[:1], arms[1:], "--policy", "policy.toml", code=10)
    claims = {claim["id"].rpartition("/")[2]: claim for claim in predicate["claims"]}
    assert {name: claims[f"{name}.p50"]["outcome"] for name in ("ttft_s", "tpot_s", "itl_s")} == {
        "ttft_s": "undecided", "tpot_s": "disproved", "itl_s": "disproved",
    }  # fmt: skip
    assert 1.15 < claims["tpot_s.p50"]["ratio"] < 1.25
    assert claims["tpot_s.p95"]["ratio"] > 1.15
    assert {claims[f"{name}.p99"]["reason_code"] for name in ("ttft_s", "tpot_s", "itl_s")} == {"too_few_samples"}
    assert {claim["method"] for claim in predicate["claims"]} == {"block_bootstrap"}
    assert gate(empty, arms[:1], arms[:1], "--policy", "policy.toml", code=20)["basis"] == "inconclusive"


@pytest.mark.parametrize("rate", ["0.5", "0.9", "1.7", "2.5", "3.3", "4.1"])
def test_the_releases_of_aibrix_get_the_verdict_that_their_rows_support(shared, empty, rate):
    folder = shared / "data/traces/aibrix_regression"
    arms = [folder / release / f"naive_output_{rate}.csv" for release in ("v0.2.1", "v0.3.0")]
    code = {"2.5": 10, "3.3": 10, "4.1": 30}.get(rate, 20)
    predicate = gate(empty, arms[:1], arms[1:], code=code)
    reasons = {reason["code"]: reason["message"] for reason in predicate["reasons"]}
    if rate == "4.1":
        assert "51 of 455 are only in the baseline" in reasons["requests_differ"]
    # The first token comes later throughout: where too few requests lie beyond p95 to decide, the figures still say so.
    p95 = next(claim for claim in predicate["claims"] if (claim["metric"], claim["percentile"]) == ("ttft_s", 95))
    assert p95["interval"]["lower"] > 1.1
    assert p95["outcome"] == ("undecided" if code == 20 else "disproved")
    assert (p95["n_beyond"] < 10) == (code == 20)


def test_a_public_file_with_silent_failures_is_no_evidence(shared, empty):
    (path,) = (shared / "data/formats/vllm_bench").glob("*.json")
    predicate = gate(empty, [path], [path], code=30)
    assert {"requests_not_served", "rows_missing"} <= {reason["code"] for reason in predicate["reasons"]}


def test_stages_of_different_offered_load_are_refused(shared, empty):
    folder = shared / "data/formats/inference_perf"
    arms = [folder / f"{name}.stage_5_lifecycle_metrics.json" for name in ("vllm", "vllm_batch_size")]
    predicate = gate(empty, arms[:1], arms[1:], code=30)
    assert {"offered_load_differs", "offered_load_not_reached"} <= {reason["code"] for reason in predicate["reasons"]}


def test_logs_of_two_models_are_not_compared_and_those_of_one_pair_by_id(shared, empty):
    logs = [
        shared / f"data/traces/vllm_request_logs/{name}_requests.jsonl"
        for name in ("RTX4090_Llama-3.1-8B", "RTXPRO6000_Llama-3.1-8B", "RTXPRO6000_Qwen3-32B")
    ]
    predicate = gate(empty, logs[:1], logs[2:], code=30)
    assert "model_differs" in {reason["code"] for reason in predicate["reasons"]}
    predicate = gate(empty, logs[:1], logs[1:2], code=20)
    assert {"settings_differ", "hardware_unstated"} <= {reason["code"] for reason in predicate["reasons"]}
    assert predicate["per_trace"][0]["hardware"] == "NVIDIA GeForce RTX 4090"
    assert {claim["outcome"] for claim in predicate["claims"] if claim["percentile"] == 95 and claim["blocking"]} == {"holds"}
    assert {claim["method"] for claim in predicate["claims"]} == {"block_bootstrap"}


def test_a_pair_gets_a_verdict_with_its_evidence_and_the_same_inputs_give_the_same_bytes(empty, pair):
    predicate = gate(empty, pair[:1], pair[1:], code=10)
    assert [row["role"] for row in predicate["inputs"]][:2] == ["baseline_run", "candidate_run"]
    assert predicate["inputs"][0]["unit"] == "arrival_s in s, ttft_s in s, e2e_s in s"
    assert (predicate["knobs"], predicate["attribution"], predicate["fidelity"], predicate["sustained"]) == ([], [], None, None)
    assert "mapping_unknown" in {reason["code"] for reason in predicate["reasons"]}
    evidence = empty.folder / "out/evidence"
    listed = {row["path"] for row in json.loads((evidence / "manifest.json").read_text())["files"]}
    assert {"plan.json", "claims.csv", "policy.json", "request.json", "baseline/run-1.json", "candidate/run-1.requests.parquet"} <= listed
    assert pq.read_table(evidence / "candidate/run-1.requests.parquet").num_rows == 4000
    first = empty.read("out/verdict.json"), empty.read("out/summary.md")
    gate(empty, pair[:1], pair[1:], code=10)
    assert (empty.read("out/verdict.json"), empty.read("out/summary.md")) == first


@pytest.mark.parametrize("form", ["text", "markdown", "github", "junit"])
def test_every_form_for_people_tells_a_measured_verdict(empty, pair, form):
    result = empty.replay("gate", "--baseline", pair[0], "--candidate", pair[1], "--out", "out", "--format", form)
    assert result.exit_code == 10
    assert "regression" in result.stdout
    assert "30 %" in result.stdout or "30.0 %" in result.stdout


def test_a_release_is_possible_under_the_policy_for_measured_runs(empty, pair):
    predicate = gate(empty, pair[:1], [shutil.copy(empty.folder / pair[0], empty.folder / "again.parquet")], code=0)
    assert predicate["inputs"][-1]["name"] == "default policy for measured runs"
    assert predicate["decision"] == "release"
    assert predicate["guardrails"]


def test_one_arm_measured_and_the_other_a_mapping_is_no_comparison(project):
    pair = table(project, "a.parquet", [0.5] * 20)
    for arms in (("--baseline", pair, "--candidate", "mapping.toml"), ("--baseline", "mapping.toml", "--candidate", pair)):
        result = project.replay("gate", *arms)
        assert result.exit_code == 30
        assert "two measured arms, or two mappings" in result.stderr
        predicate = json.loads(project.read("replay-out/verdict.json"))["predicate"]
        assert (predicate["basis"], predicate["reasons"][0]["code"]) == ("invalid_evidence", "arms_not_comparable")
        assert {row["role"] for row in predicate["inputs"]} >= {"policy", "owners"}


def test_repeated_runs_are_given_by_repeating_the_option(empty):
    values = lognormal_s(2000)
    names = [table(empty, f"{arm}{run}.parquet", (values * (1 + 0.002 * run)).tolist()) for arm in "ab" for run in range(3)]
    predicate = gate(empty, names[:3], names[3:], code=0)
    assert {claim["method"] for claim in predicate["claims"]} == {"welch_t"}
    assert [row["role"] for row in predicate["inputs"]].count("baseline_run") == 3
    shutil.copy(empty.folder / names[0], empty.folder / "copy")
    for arms, said in (((names[:2], names[3:4]), "2 runs of the baseline and 1"), (([names[0], "copy"], names[3:5]), "given twice")):
        options = [part for name, arm in zip(("--baseline", "--candidate"), arms, strict=True) for one in arm for part in (name, one)]
        result = empty.replay("gate", *options)
        assert result.exit_code == 2
        assert said in result.stderr


def test_mappings_may_not_be_repeated(project):
    result = project.replay("gate", "--baseline", "mapping.toml", "--baseline", "mapping.toml", "--candidate", "mapping.toml")
    assert result.exit_code == 2
    assert "repeat the option only for results" in result.stderr


def test_a_folder_may_bring_steps_and_the_mapping_that_ran(project):
    values = lognormal_s(2000).tolist()
    steps = pa.table({"start_s": [0.0, 300.0], "end_s": [100.0, 400.0], "tokens": [10, 20], "sequences": [1, 1], "kv_tokens": [1, 1]})
    for arm, mapping in (("old", "mapping.toml"), ("new", "mapping.candidate.toml")):
        (project.folder / arm).mkdir()
        table(project, f"{arm}/result.parquet", values)
        pq.write_table(steps, project.folder / arm / "steps.parquet")
        shutil.copy(project.folder / mapping, project.folder / arm / "mapping.toml")
    predicate = gate(project, ["old"], ["new"], "--policy", write_policy(project), code=20)
    assert "gemm.tile@decode" in [knob["knob"] for knob in predicate["knobs"]]
    assert predicate["attribution"] == []
    assert "mapping_unknown" not in {reason["code"] for reason in predicate["reasons"]}
    assert (project.folder / "out/evidence/baseline/run-1.steps.parquet").is_file()


def write_policy(project):
    project.write("measured.toml", '[blocking]\nttft_s = { p95 = "3 %", p99 = "1 %" }\n')
    return "measured.toml"


def test_a_named_trace_names_the_cell_and_finds_rows_that_are_missing(project):
    arms = table(project, "a.parquet", [0.5] * 100)
    predicate = gate(project, [arms], [arms], "--trace", "trace.parquet", "--hardware", "a100-sxm-80gb", "--model", "m", code=30)
    assert [(cell["trace"], cell["hardware"], cell["model"]) for cell in predicate["per_trace"]] == [("demo", "a100-sxm-80gb", "m")]
    assert "rows_missing" in {reason["code"] for reason in predicate["reasons"]}


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"", 2, "the file is empty"),
        (b"request_id,ttft_s,e2e_s\n", 30, "has no requests"),
        (b"request_id,ttft,e2e_s\n", 2, "has no unit"),
        (b'{"request_id": "a", "ttft_s": 1}\n{"request_id', 2, "not valid JSON"),
    ],
    ids=["empty", "header only", "no unit", "cut off"],
)
def test_a_candidate_that_cannot_be_used_never_passes(empty, pair, content, code, said):
    empty.write("bad", content)
    result = empty.replay("gate", "--baseline", pair[0], "--candidate", "bad", "--out", "out")
    assert result.exit_code == code, result.stderr
    assert said in result.stderr + result.stdout
    assert (empty.folder / "out/verdict.json").exists() == (code == 30)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        "formats/aiperf/baseline*.jsonl",
        "formats/llmperf/*.json",
        "formats/vllm_bench/*.json",
        "traces/vllm_request_logs/RTX4090*.jsonl",
        "traces/vllm_request_logs/RTXPRO6000_Q*.jsonl",
        "traces/aibrix_regression/v0.2.1/naive_output_2.5.csv",
        "traces/aibrix_regression/v0.3.0/naive_output_4.1.csv",
        "traces/aibrix_regression/v0.3.0/aibrix_kvcache_dram_output_4.1.csv",
    ],
)
def test_random_halves_of_a_real_file_roll_back_in_at_most_5_percent(shared, pattern):
    from dataclasses import replace

    import numpy as np

    from replay.ingress.measured.reader import read_measured
    from tests.measured import gate_runs

    (path,) = (shared / "data").glob(pattern)
    (run,) = read_measured(path)
    rng, half, trials = np.random.default_rng(1), run.requests.num_rows // 2, 200
    facts = replace(run.facts, identity="none", expected_count=None)
    regressions = 0
    for seed in range(trials):
        order = rng.permutation(run.requests.num_rows)
        halves = [
            replace(run, requests=run.requests.take(pa.array(np.sort(part))), facts=facts)
            for part in (order[:half], order[half : 2 * half])
        ]
        text = MEDIANS if pattern.startswith("formats/aiperf") else MEDIANS.partition("itl_s")[0]
        claims = gate_runs(halves[0], halves[1], text, seed=seed).verdict.worst.claims
        regressions += any(claim.outcome == "disproved" for claim in claims)  # also where other evidence makes the file invalid
    assert regressions <= 0.05 * trials


def test_an_archive_of_runs_comes_from_a_folder_or_the_project_file_and_holds_no_run_twice(empty, pair):
    for one in range(3):
        for place in range(3):
            noise = np.exp(0.01 * np.random.default_rng([one, place]).standard_normal(4000))
            (empty.folder / f"runs/set-{one}").mkdir(parents=True, exist_ok=True)
            table(empty, f"runs/set-{one}/{place}.parquet", (lognormal_s(4000) * noise).tolist())
    predicate = gate(empty, pair[:1], pair[1:], "--archive", "runs", code=10)
    assert sum(row["role"] == "archive_run" for row in predicate["inputs"]) == 9
    assert predicate["plan"]["archive_digest"] is not None
    assert any("9 archived runs in 3 sets" in warning for claim in predicate["claims"] for warning in claim["warnings"])
    empty.write("replay.toml", 'archive = "runs"\n')
    assert gate(empty, pair[:1], pair[1:], code=10)["plan"] == predicate["plan"]
    shutil.copy(empty.folder / "runs/set-0/0.parquet", empty.folder / "runs/set-1/copy.parquet")
    result = empty.replay("gate", "--baseline", pair[0], "--candidate", pair[1])
    assert (result.exit_code, "one result twice" in result.stderr) == (2, True)
    result = empty.replay("gate", "--baseline", pair[0], "--candidate", pair[1], "--archive", "nowhere")
    assert (result.exit_code, "no folder" in result.stderr) == (2, True)


def test_flat_runs_of_an_archive_are_one_set_and_steps_beside_a_result_are_no_run(empty, pair):
    for place in range(3):
        noise = np.exp(0.01 * np.random.default_rng(place).standard_normal(4000))
        (empty.folder / f"runs/{place}").mkdir(parents=True)
        table(empty, f"runs/{place}/requests.parquet", (lognormal_s(4000) * noise).tolist())
        steps = {"start_s": [0.0, 1.0], "end_s": [0.5, 1.5], "tokens": [8, 8], "sequences": [2, 2], "kv_tokens": [9, 9]}
        pq.write_table(pa.table(steps), empty.folder / f"runs/{place}/steps.parquet")
    predicate = gate(empty, pair[:1], pair[1:], "--archive", "runs", code=10)
    assert any("3 archived runs in 1 set " in warning for claim in predicate["claims"] for warning in claim["warnings"])


def test_a_pair_with_steps_and_an_archive_is_judged_by_noise_swap_from_files(empty):
    from replay.ingress.measured.measured_run import METRICS
    from tests.measured_steps import load, measured

    trace = load(10_000, 1)
    for number, place in enumerate(["a", "b", *(f"runs/{one}" for one in range(12))]):
        run = measured(trace, 40 + number)
        folder = empty.folder / place
        folder.mkdir(parents=True)
        names = ["request_id", "arrival_s", "prompt_tokens", "output_tokens", *METRICS]
        pq.write_table(run.requests.select(names), folder / "requests.parquet")
        pq.write_table(run.steps, folder / "steps.parquet")
        (folder / "mapping.toml").write_text(
            'name = "m"\n[batching]\nmax_running = 96\nmax_batched_tokens = 1024\nasync_scheduling = false\n'
        )
    empty.write("policy.toml", '[blocking]\nttft_s = { p99 = "3 %" }\n')
    result = empty.replay("gate", "--baseline", "a", "--candidate", "b", "--archive", "runs", "--policy", "policy.toml", "--format", "json")
    (claim,) = json.loads(result.stdout)["predicate"]["claims"]
    assert (claim["method"], claim["replicates"]) == ("noise_swap", 0)
    assert not any("vLLM's defaults" in warning for warning in claim["warnings"])
    notes = json.loads(result.stdout)["predicate"]["inputs"][0]["provenance"]["notes"]
    assert any(note.startswith("steps.parquet sha256:") for note in notes)
    assert (empty.folder / "replay-out/evidence/archive/set-1-run-12.steps.parquet").is_file()
