"""`replay selfcheck`, and the gate that cites it."""

import json
import shutil
from dataclasses import replace

import pytest

import gates.selfcheck.check
import gates.selfcheck.pool
from gates.checks.ages import parse_time
from gates.cli.gate_request import moment_of_plan
from gates.cli.inputs import chosen_mapping, chosen_model, chosen_seed, current_project, load_hardware, load_traces
from gates.plan import CellSpec
from gates.policy import read_policy
from gates.selfcheck.document import read_selfcheck
from replay import documents
from tests.cli.conftest import DEMO, Project


def test_the_gates_error_rates_are_measured_and_cited(project, monkeypatch):
    monkeypatch.setattr(gates.selfcheck.check, "LEVELS", (0.10,))
    monkeypatch.setattr(gates.selfcheck.check, "QUICK_DRAWS", 62)
    monkeypatch.setattr(gates.selfcheck.pool, "PILOT_DRAWS", 6)
    made = project.replay("selfcheck", "--mapping", "mapping.toml", "--as-of", "2026-01-01", "--out", "selfcheck.json", "--format", "json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert document == json.loads(project.read("selfcheck.json"))
    documents.check(document, "selfcheck.v1", "selfcheck.json")
    rows = {(row["kind"], row["level"]): row for row in document["cells"][0]["rows"]}
    assert rows["none", 0.0]["release"]["rate"] == 1.0
    assert abs(rows["service", 0.1]["shift"] - 0.1) < 0.03
    assert rows["service", 0.1]["release"]["rate"] == 0.0
    assert rows["service", 0.03]["release"]["rate"] <= 0.2
    gated = project.replay(
        "gate", "--candidate", "mapping.toml", "--selfcheck", "selfcheck.json", "--as-of", "2026-01-02", "--format", "json"
    )
    predicate = json.loads(gated.stdout)["predicate"]
    assert "selfcheck" in {reason["code"] for reason in predicate["reasons"]}
    assert {record["name"] for record in predicate["inputs"] if record["role"] == "selfcheck"} == {"selfcheck.json"}


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    folder = tmp_path / "shipped"
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("replay-out"))
    monkeypatch.chdir(folder)
    return Project(folder)


def test_the_shipped_self_check_is_of_the_shipped_project_and_of_these_rules(shipped):
    project = current_project()
    cited = read_selfcheck(shipped.folder / project.selfcheck, project.selfcheck)
    policy = read_policy(shipped.folder / project.policy)
    [(trace, _)], [device] = load_traces((), project), load_hardware((), project, ())
    arm = chosen_mapping("mapping.toml", project)
    model = chosen_model(None, arm, project)
    [cell] = cited.document["cells"]
    assert cell["baseline_mapping_digest"] == arm.mapping.digest
    assert cited.document["seed"] == str(chosen_seed(None, project))
    spec = CellSpec(
        trace=trace.name,
        trace_digest=trace.digest,
        hardware=device.name,
        hardware_digest=device.digest,
        model=model.name,
        model_digest=model.digest,
        layer_types=(),
    )
    found = cited.finding(spec, policy, None)
    assert found.code == "selfcheck", f"{found.message}; fix: make selfcheck-demo"


@pytest.mark.parametrize(("today", "as_of"), [("2027-03-01", None), ("2027-03-02", "2027-03-02T00:00:00+00:00")])
def test_a_self_check_brings_a_date_into_the_plan_only_when_it_has_expired(shipped, monkeypatch, today, as_of):
    cited = read_selfcheck(shipped.folder / "selfcheck.json", "selfcheck.json")
    made = replace(cited, document=cited.document | {"as_of": "2026-12-01T00:00:00+00:00"})
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(parse_time(today).timestamp())))
    assert moment_of_plan(None, read_policy(shipped.folder / "policy.toml"), None, made) == as_of


@pytest.mark.parametrize(("as_of", "code"), [("2026-12-02", "selfcheck"), ("2036-12-01", "selfcheck_expired")])
def test_the_demo_cites_its_self_check_and_an_expired_one_fails_nothing(shipped, as_of, code):
    gated = shipped.replay("gate", "--candidate", "mapping.toml", "--as-of", as_of, "--format", "json")
    predicate = json.loads(gated.stdout)["predicate"]
    assert (gated.exit_code, predicate["decision"]) == (0, "release")
    assert code in {reason["code"] for reason in predicate["reasons"]}


def test_halves_of_a_measured_result_are_gated_against_each_other(empty):
    rows = [{"request_id": f"r{index}", "arrival_s": 0.1 * index, "ttft_s": 1.0 + index % 7} for index in range(300)]
    empty.write("run.jsonl", "".join(json.dumps(row | {"prompt_tokens": 100, "output_tokens": 2, "e2e_s": 9.0}) + "\n" for row in rows))
    empty.write("policy.toml", '[blocking]\nttft_s = { p50 = "3 %" }\n')
    asked = "selfcheck", "--run", "run.jsonl", "--splits", "4", "--policy", "policy.toml"
    made = empty.replay(*asked, "--format", "json")
    assert made.exit_code == 0, made.stderr
    [found] = json.loads(made.stdout)["runs"]
    assert (found["run"], found["splits"], found["shares"]["invalid_evidence"]["rate"]) == ("run.jsonl", 4, 0.0)
    assert "run.jsonl: 4 splits into halves" in empty.replay(*asked).stdout
    assert "leave the others out" in empty.replay(*asked, "--out", "selfcheck.json").stderr
