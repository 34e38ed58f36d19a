"""Bundles and run directories speak only for the load they were made on; and no verdict outlives a gate that fails."""

import json

import pytest

from replay.provenance import ORIGIN_UNSTATED


@pytest.fixture
def small(project):
    """The demo on 1,200 requests, so that a gate is quick."""
    arguments = ("trace.parquet", "--out", "trace.parquet", "--max-requests", "1200")
    assert project.replay("trace", "slice", *arguments).exit_code == 0
    return project


def reasons(project, *arguments, code):
    result = project.replay("gate", "--format", "json", *arguments)
    assert result.exit_code == code, result.stderr + result.stdout[:2000]
    predicate = json.loads(result.stdout)["predicate"]
    return [reason["code"] for reason in predicate["reasons"]], predicate


def made(project, verb, *arguments):
    result = project.replay(verb, "--mapping", "mapping.toml", *arguments)
    assert result.exit_code == 0, result.stderr
    return result


def test_a_candidate_made_on_another_trace_is_invalid_evidence(small):
    assert small.replay("trace", "slice", "trace.parquet", "--out", "other.parquet", "--max-requests", "1100").exit_code == 0
    made(small, "run", "--trace", "other.parquet", "--hardware", "h100-sxm", "--out", "runs")
    found, predicate = reasons(small, "--candidate", "runs", code=30)
    assert found[0] == "load_differs"
    assert "other on h100-sxm" in predicate["reasons"][0]["message"]


@pytest.mark.parametrize("role", ["--baseline", "--candidate"])
def test_a_trace_of_another_name_and_content_is_no_way_around_the_record(small, role):
    made(small, "baseline", "--out", "b.json")
    arguments = ("trace.parquet", "--out", "renamed.parquet", "--max-requests", "1100")
    assert small.replay("trace", "slice", *arguments).exit_code == 0
    found, _ = reasons(small, role, "b.json", "--trace", "renamed.parquet", code=30)
    assert found[0] == "load_differs"


def test_the_same_rows_under_another_name_are_the_same_load(small):
    made(small, "baseline", "--out", "b.json")
    assert small.replay("trace", "import", "trace.parquet", "--out", "renamed.parquet").exit_code == 0
    found, _ = reasons(small, "--baseline", "b.json", "--candidate", "mapping.toml", "--trace", "renamed.parquet", code=0)
    assert "load_differs" not in found


def test_another_accelerator_than_recorded_is_invalid_evidence(small):
    made(small, "baseline", "--out", "b.json")
    found, _ = reasons(small, "--baseline", "b.json", "--candidate", "mapping.toml", "--hardware", "h100-sxm", code=30)
    assert found[0] == "load_differs"


@pytest.mark.parametrize(
    ("path", "code"), [(("cells", 0, "hardware", "clock_hz"), "hardware_changed"), (("model", "layers_count"), "model_changed")]
)
@pytest.mark.parametrize("role", ["--baseline", "--candidate"])
def test_an_arm_made_for_other_figures_is_invalid_evidence(small, role, path, code):
    made(small, "baseline", "--out", "b.json")
    document = json.loads(small.read("b.json"))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = inner[path[-1]] // 2
    small.write("b.json", json.dumps(document))
    on = ("--trace", "trace.parquet", "--hardware", "a100-sxm-80gb", "--model", "llama-3.1-8b")
    found, _ = reasons(small, role, "b.json", *on, code=30)
    assert found[0] == code


def test_a_bundle_is_judged_on_its_own_pairs_and_no_others(small):
    assert small.replay("trace", "slice", "trace.parquet", "--out", "other.parquet", "--max-requests", "1100").exit_code == 0
    made(small, "run", "--trace", "trace.parquet", "--hardware", "a100-sxm-80gb", "--out", "runs")
    made(small, "run", "--trace", "other.parquet", "--hardware", "h100-sxm", "--out", "runs")
    _, predicate = reasons(small, "--baseline", "runs", "--candidate", "mapping.toml", code=0)
    pairs = [(cell["trace"], cell["hardware"]) for cell in predicate["per_trace"]]
    assert pairs == [("demo", "a100-sxm-80gb"), ("other", "h100-sxm")]


def test_a_baseline_of_a_bundle_keeps_the_bundles_model(small):
    made(small, "baseline", "--model", "qwen3-30b-a3b", "--out", "b.json")
    result = small.replay("baseline", "--mapping", "b.json", "--out", "again.json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(small.read("again.json")) == json.loads(small.read("b.json"))


@pytest.fixture
def without_its_trace(small):
    """A bundle whose trace is gone, and the verdict of an earlier gate."""
    made(small, "baseline", "--out", "b.json")
    reasons(small, "--candidate", "mapping.toml", code=0)
    small.write("replay.toml", small.read("replay.toml").replace('traces = "trace.parquet"\n', ""))
    (small.folder / "trace.parquet").unlink()
    return small


def test_evidence_that_is_gone_is_a_verdict_in_every_form(without_its_trace):
    project = without_its_trace
    found, predicate = reasons(project, "--baseline", "b.json", code=30)
    assert found[0] == "evidence_missing"
    assert (predicate["decision"], predicate["basis"], predicate["first_failing_stage"]) == ("rollback", "invalid_evidence", "ingress")
    assert predicate == json.loads(project.read("replay-out/verdict.json"))["predicate"]
    assert {claim["outcome"] for claim in predicate["claims"]} == {"undecided"}
    assert predicate["evidence"] is None
    assert {record["role"] for record in predicate["inputs"]} >= {"baseline_mapping", "candidate_mapping", "trace", "model", "hardware"}
    assert "## ROLLBACK - invalid" in project.read("replay-out/summary.md")
    for form, mark in (("text", "ROLLBACK"), ("markdown", "ROLLBACK"), ("github", "::error "), ("junit", "<error ")):
        result = project.replay("gate", "--baseline", "b.json", "--format", form)
        assert result.exit_code == 30
        assert mark in result.stdout
        assert "name it with --trace" in result.stderr


def test_evidence_that_is_gone_obeys_fail_on(without_its_trace):
    assert without_its_trace.replay("gate", "--baseline", "b.json", "--fail-on", "regression").exit_code == 0


FAILURES = {
    "a broken candidate": ("mapping.candidate.toml", "nonsense", ()),
    "a broken project file": ("replay.toml", "nonsense", ()),
    "a broken policy": ("policy.toml", "nonsense", ()),
    "a broken option": ("unused", "", ("--fail-on", "regresion")),
    "a missing trace": ("unused", "", ("--trace", "gone.csv")),
}


@pytest.mark.parametrize(("name", "text", "arguments"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("out", [(), ("--out", "results")])
def test_no_verdict_outlives_a_gate_that_fails(project, name, text, arguments, out):
    folder = project.folder / (out[1] if out else "replay-out")
    folder.mkdir()
    statement = {"predicateType": "https://replay-gate.dev/gate-verdict/v1", "predicate": {"basis": "proven_safe"}}
    (folder / "verdict.json").write_text(json.dumps(statement))
    (folder / "summary.md").write_text("## RELEASE - proven\\_safe\n")
    project.write(name, text)
    assert project.replay("gate", *arguments, *out).exit_code == 2
    assert list(folder.iterdir()) == []


def test_the_plan_fixes_every_input_but_the_candidate(small):
    _, predicate = reasons(small, "--candidate", "mapping.toml", code=0)
    digests = {(record["role"], record["name"]): record["digest"] for record in predicate["inputs"]}
    [cell] = predicate["plan"]["cells"]
    assert cell["hardware_digest"] == digests["hardware", "a100-sxm-80gb"]
    assert cell["model_digest"] == digests["model", "llama-3.1-8b"]
    assert cell["baseline_mapping_digest"] == digests["baseline_mapping", "mapping.toml"]
    assert (cell["trace_digest"], cell["trace_kind"]) == (digests["trace", "trace.parquet"], "synthetic")
    assert predicate["plan"]["max_rejected_ratio"] == 0.01


def test_two_cuts_of_a_trace_are_judged_side_by_side(project):
    for name, start in (("morning", "0"), ("evening", "60")):
        cut = project.replay("trace", "slice", "trace.parquet", "--out", f"{name}.parquet", "--start", start, "--max-requests", "1100")
        assert cut.exit_code == 0, cut.stderr
    _, predicate = reasons(project, "--candidate", "mapping.toml", "--trace", "morning.parquet", "--trace", "evening.parquet", code=0)
    assert [cell["trace"] for cell in predicate["per_trace"]] == ["morning", "evening"]


def name_of(project, file):
    return json.loads(project.replay("trace", "info", file, "--format", "json").stdout)["name"]


def test_a_written_trace_is_named_by_the_option_else_by_its_new_file(project):
    first = ("--max-requests", "5")
    assert project.replay("trace", "slice", "trace.parquet", "--out", "cut.parquet", *first).exit_code == 0
    assert project.replay("trace", "slice", "trace.parquet", "--out", "b.parquet", *first, "--name", "mine").exit_code == 0
    assert project.replay("trace", "import", "b.parquet", "--out", "c d!.jsonl").exit_code == 0
    assert project.replay("trace", "slice", "trace.parquet", "--out", "trace.jsonl", *first).exit_code == 0
    names = [name_of(project, file) for file in ("cut.parquet", "b.parquet", "c d!.jsonl", "trace.jsonl")]
    assert names == ["cut", "mine", "c d_", "demo"]


def test_a_synthetic_trace_that_lost_its_label_is_said_to_be_of_unstated_origin(small):
    rows = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{index / 4},{100 + index % 7},{5 + index % 3}\n" for index in range(1100))
    small.write("laundered.csv", rows)
    found, predicate = reasons(small, "--candidate", "mapping.toml", "--trace", "laundered.csv", code=0)
    assert "origin_unstated" in found
    assert small.replay("trace", "import", "laundered.csv", "--out", "laundered.parquet").exit_code == 0
    assert "origin_unstated" in reasons(small, "--candidate", "mapping.toml", "--trace", "laundered.parquet", code=0)[0]
    stated = ("--origin", "our gateway's log", "--out", "stated.parquet")
    assert small.replay("trace", "import", "laundered.csv", *stated).exit_code == 0
    found, predicate = reasons(small, "--candidate", "mapping.toml", "--trace", "stated.parquet", code=0)
    assert "origin_stated_on_import" in found
    assert "origin_unstated" not in found
    [record] = [record for record in predicate["inputs"] if record["role"] == "trace"]
    assert ORIGIN_UNSTATED in record["provenance"]["notes"]
