"""The main job through the real command line, on the shipped demo."""

import json
import re
import subprocess

import pytest

from replay import documents


def verdict(project, *arguments, code):
    result = project.replay("gate", "--format", "json", *arguments)
    assert result.exit_code == code, result.stderr + result.stdout[:2000]
    document = json.loads(result.stdout)
    assert result.stdout == project.read("replay-out/verdict.json")
    documents.check(document, "verdict.v1", "verdict.json")
    return document["predicate"]


def changed(project, old, new, name="changed.toml"):
    text = project.read("mapping.toml")
    assert old in text
    project.write(name, text.replace(old, new))
    return name


def git(project, *arguments):
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    return subprocess.run(["git", *identity, *arguments], cwd=project.folder, check=True, capture_output=True, text=True).stdout


def test_the_same_mapping_twice_is_released_with_every_ratio_exactly_one(project):
    found = verdict(project, "--candidate", "mapping.toml", code=0)
    assert (found["decision"], found["basis"]) == ("release", "proven_safe")
    ratios = [claim["ratio"] for claim in found["claims"] if claim["ratio"] is not None]
    assert ratios
    assert set(ratios) == {1.0}
    assert {claim["difference"] for claim in found["claims"] if claim["difference"] is not None} == {0.0}
    assert found["knobs"] == []


def test_the_demo_change_is_rolled_back_with_its_knob_owner_and_patch(project):
    found = verdict(project, code=10)
    assert (found["decision"], found["basis"]) == ("rollback", "regression")
    assert found["first_failing_stage"] == "tiling"
    assert found["mitigation"]["revert"] == ["gemm.tile@decode"]
    assert found["mitigation"]["owner"] == "decode-kernels"
    assert found["mitigation"]["verified"] is True
    assert any(reason["code"] == "synthetic_trace" for reason in found["reasons"])


def test_the_patch_of_the_mitigation_applies_and_releases(project):
    git(project, "init", "-q")
    git(project, "add", "-A")
    found = verdict(project, code=10)
    project.write("revert.patch", found["mitigation"]["patch"])
    git(project, "apply", "revert.patch")
    assert verdict(project, code=0)["decision"] == "release"


def test_too_few_seats_are_a_queueing_regression_of_the_execution_stage(project):
    found = verdict(project, "--candidate", changed(project, "max_running = 256", "max_running = 4"), code=10)
    assert found["bottleneck_class"] == "queueing"
    assert found["first_failing_stage"] == "execution"
    assert found["mitigation"]["revert"] == ["batching.max_running"]
    assert found["mitigation"]["owner"] == "serving-runtime"


def test_a_better_candidate_is_released_and_what_improved_is_said(project):
    freed = project.read("mapping.toml").replace("tile = [64, 128, 64]", 'tile = "auto"').replace("[64, 64, 64]", '"auto"')
    project.write("free.toml", freed)
    found = verdict(project, "--candidate", "free.toml", code=0)
    assert {row["metric"] for row in found["improved"]} >= {"ttft_s", "e2e_s"}


def test_two_runs_give_the_same_bytes(project):
    verdict(project, code=10)
    first = {path: path.read_bytes() for path in (project.folder / "replay-out").rglob("*") if path.is_file()}
    verdict(project, code=10)
    assert {path: path.read_bytes() for path in (project.folder / "replay-out").rglob("*") if path.is_file()} == first


def test_a_synthetic_trace_without_permission_is_invalid_evidence(project):
    project.write("policy.toml", project.read("policy.toml").replace("allow_synthetic = true", "allow_synthetic = false"))
    found = verdict(project, "--candidate", "mapping.toml", code=30)
    assert (found["decision"], found["basis"], found["first_failing_stage"]) == ("rollback", "invalid_evidence", "ingress")
    assert found["reasons"][0]["code"] == "synthetic_trace_not_allowed"


def test_a_git_baseline_reads_mapping_owners_and_policy_at_the_commit(project):
    project.write("mapping.candidate.toml", project.read("mapping.toml"))
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "in service")
    project.write(
        "mapping.candidate.toml", project.read("mapping.toml").replace('"tile@decode" = [64, 64, 64]', '"tile@decode" = [256, 128, 64]')
    )
    project.write("policy.toml", re.sub(r'(p9[59]) = "\d %"', r'\1 = "300 %"', project.read("policy.toml")))
    project.write("owners.toml", project.read("owners.toml").replace("decode-kernels", "somebody-else"))
    found = verdict(project, "--baseline", "git:main", code=10)
    assert found["mitigation"]["owner"] == "decode-kernels"
    assert "policy_changed" in {reason["code"] for reason in found["reasons"]}
    names = {record["role"]: record["name"] for record in found["inputs"]}
    assert names["baseline_mapping"] == "git:main:mapping.candidate.toml"
    assert names["policy"] == "git:main:policy.toml"
    verdict(project, "--baseline", "git:main", "--policy", "policy.toml", code=0)


def test_a_bundle_is_replayed_again_and_gives_the_same_claims(project):
    assert project.replay("baseline", "--mapping", "mapping.toml", "--out", "baseline.json").exit_code == 0
    from_bundle = verdict(project, "--baseline", "baseline.json", code=10)
    assert from_bundle["claims"] == verdict(project, code=10)["claims"]


def test_a_bundle_on_another_trace_is_invalid_evidence(project):
    assert project.replay("baseline", "--mapping", "mapping.toml", "--out", "baseline.json").exit_code == 0
    assert project.replay("trace", "slice", "trace.parquet", "--out", "trace.parquet", "--max-requests", "600").exit_code == 0
    found = verdict(project, "--baseline", "baseline.json", "--candidate", "mapping.toml", code=30)
    assert found["reasons"][0]["code"] == "trace_changed"


def test_a_bundle_whose_trace_is_gone_exits_30_and_says_so(project):
    assert project.replay("baseline", "--mapping", "mapping.toml", "--out", "baseline.json").exit_code == 0
    project.write("replay.toml", project.read("replay.toml").replace('traces = "trace.parquet"\n', ""))
    (project.folder / "trace.parquet").unlink()
    result = project.replay("gate", "--baseline", "baseline.json")
    assert result.exit_code == 30
    assert "name it with --trace" in result.stderr


def test_a_run_directory_is_a_baseline(project):
    assert project.replay("run", "--mapping", "mapping.toml", "--out", "runs").exit_code == 0
    assert sorted(path.name for path in (project.folder / "runs/demo-a100-sxm-80gb").iterdir()) == [
        "layers.parquet",
        "requests.parquet",
        "run.json",
        "steps.parquet",
        "token_gaps.parquet",
        "windows.parquet",
    ]
    verdict(project, "--baseline", "runs/demo-a100-sxm-80gb", "--candidate", "mapping.toml", code=0)
    verdict(project, "--baseline", "runs", "--candidate", "mapping.toml", code=0)


def test_every_accelerator_gets_its_own_verdict_and_the_worst_is_copied(project):
    found = verdict(project, "--hardware", "a100-sxm-80gb", "--hardware", "h100-sxm", code=10)
    assert [cell["hardware"] for cell in found["per_trace"]] == ["a100-sxm-80gb", "h100-sxm"]
    assert found["basis"] == "regression"


def test_a_mapping_that_rejects_what_the_baseline_serves_is_a_capacity_regression(project):
    found = verdict(project, "--candidate", changed(project, "memory_ratio = 0.90", "memory_ratio = 0.215"), code=10)
    assert found["bottleneck_class"] == "memory_capacity"
    assert found["first_failing_stage"] == "tiling"
    assert found["mitigation"]["revert"] == ["kv.memory_ratio"]


@pytest.mark.parametrize("basis", ["regression", "inconclusive,invalid_evidence"])
def test_fail_on_chooses_which_bases_exit_non_zero(project, basis):
    assert project.replay("gate", "--fail-on", basis).exit_code == (10 if basis == "regression" else 0)


def test_the_text_says_the_decision_first_and_names_what_to_undo(project):
    result = project.replay("gate")
    assert result.stdout.startswith("ROLLBACK")
    for part in ("gemm.tile@decode", "decode-kernels", "#decode-kernels", "tiling", "synthetic", "replay-out"):
        assert part in result.stdout


def test_github_annotations_point_at_the_changed_line(project):
    line = project.read("mapping.candidate.toml").splitlines().index('"tile@decode" = [256, 128, 64]') + 1
    result = project.replay("gate", "--format", "github")
    assert f"file=mapping.candidate.toml,line={line}" in result.stdout


def test_github_annotations_name_the_file_from_the_top_of_the_repository(project):
    git(project, "-C", "..", "init", "-q")
    assert "file=project/mapping.candidate.toml," in project.replay("gate", "--format", "github").stdout


def test_a_policy_that_limits_the_age_refuses_old_and_undated_traces(project, shared, monkeypatch):
    project.write(
        "policy.toml",
        "max_trace_age_days = 30\nallow_synthetic = true\n" + project.read("policy.toml").replace("allow_synthetic = true", ""),
    )
    undated = verdict(project, "--candidate", "mapping.toml", code=30)
    assert undated["reasons"][0]["code"] == "trace_age_unknown"
    azure = shared / "data/traces/azure_llm_2023/AzureLLMInferenceTrace_conv.csv"
    assert project.replay("trace", "slice", azure, "--out", "azure.parquet", "--max-requests", "1200").exit_code == 0
    on = ("--candidate", "mapping.toml", "--trace", "azure.parquet")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1702000000")  # 2023-12-08
    recent = verdict(project, *on, code=0)
    assert recent["plan"]["as_of"] == "2023-12-08T01:46:40+00:00"
    old = verdict(project, *on, "--as-of", "2024-03-01", code=30)
    assert old["reasons"][0]["code"] == "trace_too_old"
    assert verdict(project, *on, "--as-of", "2023-01-01", code=30)["reasons"][0]["code"] == "trace_from_the_future"


def test_without_an_age_limit_no_time_of_day_gets_into_the_plan(project):
    assert verdict(project, "--candidate", "mapping.toml", code=0)["plan"]["as_of"] is None


@pytest.mark.parametrize(("form", "mark"), [("markdown", "ROLLBACK"), ("junit", "<failure ")])
def test_other_formats_say_what_was_decided(project, form, mark):
    assert mark in project.replay("gate", "--format", form).stdout


def test_a_faster_format_without_quality_evidence_is_never_released(project):
    text = project.read("mapping.toml").replace('weights = "model"', 'weights = "fp8"')
    project.write("fp8.toml", text)
    result = project.replay("gate", "--candidate", "fp8.toml", "--format", "json")
    assert result.exit_code == 30
    predicate = json.loads(result.stdout)["predicate"]
    assert predicate["reasons"][0]["code"] == "quality_evidence_missing"
    assert (predicate["first_failing_stage"], predicate["bottleneck_class"]) == ("quality_sla", "measurement")


def test_an_arm_that_works_on_long_after_the_last_arrival_is_named(project):
    project.write("few.toml", project.read("mapping.toml").replace("max_running = 256", "max_running = 4"))
    result = project.replay("gate", "--candidate", "few.toml", "--format", "json")
    codes = [reason["code"] for reason in json.loads(result.stdout)["predicate"]["reasons"]]
    assert "candidate_overloaded" in codes
    assert "baseline_overloaded" not in codes
