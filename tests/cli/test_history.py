"""`replay gate --history` and `replay history`: verdicts are kept, drift is judged, and a broken ledger takes no verdict away."""

import json
import sqlite3
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gates.cli.history import _anchor
from gates.policy import DriftBudget
from replay import documents
from replay.errors import SpecError
from replay.provenance import digest_bytes
from replay.specs.mapping import parse_mapping
from tests.report.pages import read_page
from tests.runs import lognormal_s

POLICY = 'run_effect_sd = 0\n[blocking]\nttft_s = { p95 = "3 %" }\n'
DRIFT = '[drift]\nbudget = "5 %"\n'
LEVELS = (1.0, 1.02, 1.04, 1.061)


@pytest.fixture
def measured(empty):
    """Four measured builds, each 2 % slower than the one before, each with the mapping that ran."""
    values = lognormal_s(3000)
    for number, level in enumerate(LEVELS):
        folder = empty.folder / f"v{number}"
        folder.mkdir()
        columns = {"request_id": [f"r{i}" for i in range(len(values))], "arrival_s": [0.1 * i for i in range(len(values))]}
        columns |= {"prompt_tokens": [100] * len(values), "output_tokens": [11] * len(values), "ttft_s": level * values}
        pq.write_table(pa.table({**columns, "e2e_s": 2 * level * values}), folder / "chat.parquet")
        (folder / "mapping.toml").write_text(f'name = "v{number}"\n[batching]\nmax_running = {256 - number}\n')
    empty.write("policy.toml", POLICY)
    return empty


def gate(project, baseline, candidate, *options, code=0, history="h.db"):
    arms = ("--baseline", f"v{baseline}", "--candidate", f"v{candidate}")
    result = project.replay("gate", *arms, "--policy", "policy.toml", "--history", history, *options, "--out", "out", "--format", "json")
    assert result.exit_code == code, result.stderr + result.stdout[:3000]
    document = json.loads(result.stdout)
    documents.check(document, "verdict.v1", "verdict.json")
    return result, document["predicate"]


def report(project, *options, code=0):
    result = project.replay("history", "h.db", *options, "--format", "json")
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


def test_a_verdict_is_kept_once_by_the_digest_of_its_file(measured):
    gate(measured, 0, 1)
    gate(measured, 0, 1)
    digest = digest_bytes((measured.folder / "out/verdict.json").read_bytes())
    with sqlite3.connect(measured.folder / "h.db") as connection:
        assert connection.execute("SELECT digest, decision FROM replay_verdicts").fetchall() == [(digest, "release")]
    connection.close()
    assert "appended_at" not in measured.read("out/verdict.json")


@pytest.mark.parametrize(("arms", "code"), [((0, 1), 0), ((0, 3), 10)])
def test_a_history_that_cannot_be_written_takes_no_verdict_away(measured, arms, code):
    measured.write("h.db", "no database at all, but somebody's notes\n" * 40)
    result, predicate = gate(measured, *arms, code=code)
    assert predicate["decision"] == ("release" if code == 0 else "rollback")
    (line,) = result.stderr.splitlines()
    assert line.startswith("replay: the verdict is not in the history: h.db: the history cannot be used: file is not a database")
    assert (measured.folder / "out/verdict.json").is_file()


def test_three_small_steps_pass_one_by_one_and_the_third_is_beyond_the_budget(measured):
    gate(measured, 0, 1)
    gate(measured, 1, 2)
    assert gate(measured, 2, 3, history="elsewhere.db")[1]["basis"] == "proven_safe"
    measured.write("policy.toml", POLICY + DRIFT)
    _, predicate = gate(measured, 2, 3, "--as-of", "2026-06-01", code=10)
    assert (predicate["basis"], predicate["first_failing_stage"]) == ("regression", "quality_sla")
    assert predicate["reasons"][0]["code"] == "drift_budget_exceeded"
    (record,) = [one for one in predicate["inputs"] if one["role"] == "history"]
    assert (record["name"], record["rows"]) == ("h.db", 2)
    assert len(predicate["plan"]["cells"][0]["drift"]["carried"][0]["verdicts"]) == 2


def test_a_budget_with_no_history_or_one_that_cannot_be_read_is_no_evidence(measured):
    measured.write("policy.toml", POLICY + DRIFT)
    arms = ("--baseline", "v0", "--candidate", "v0", "--policy", "policy.toml", "--out", "out")
    assert measured.replay("gate", *arms).exit_code == 30
    measured.write("broken.db", "not a database, and long enough to be looked at\n" * 40)
    _, predicate = gate(measured, 0, 1, history="broken.db", code=30)
    assert "file is not a database" in predicate["reasons"][0]["message"]


def test_the_project_names_the_history_and_drift_is_shown_against_the_budget(measured):
    measured.write("replay.toml", 'history = "kept/h.db"\npolicy = "policy.toml"\n')
    for step in ((0, 1), (1, 2)):
        arms = ("--baseline", f"v{step[0]}", "--candidate", f"v{step[1]}")
        assert measured.replay("gate", *arms, "--out", "out").exit_code == 0
    measured.write("policy.toml", POLICY + DRIFT)
    result = measured.replay("history", "--as-of", "2030-01-01")
    assert result.exit_code == 0
    assert "2 verdicts (2 proven_safe); 0 % rollbacks" in result.stdout
    (row,) = [line for line in result.stdout.splitlines() if line.strip().startswith("ttft_s.p95")]
    assert row.split()[-4:] == ["+4.00", "%", "80", "%"]


def test_the_report_counts_rollbacks_ages_and_gaps_and_names_what_is_undeclared(measured):
    measured.write("policy.toml", POLICY + 'e2e_s = { p90 = "3 %" }\n')
    gate(measured, 0, 1, "--as-of", "2026-01-01")
    measured.write("policy.toml", POLICY)
    gate(measured, 1, 3, "--as-of", "2026-01-31", code=10)
    found = report(measured, "--as-of", "2026-02-10")
    assert found["verdicts"]["bases"] == {"proven_safe": 1, "regression": 1}
    assert found["verdicts"]["rollback_ratio"] == 0.5
    (cell,) = found["cells"]
    assert cell["undeclared"] == ["e2e_s.p90"]
    (claim,) = cell["claims"]
    assert (claim["claim"], len(claim["releases"]), claim["newest_outcome"]) == ("ttft_s.p95", 1, "disproved")
    assert report(measured, "--claim", "absent.p99")["cells"] == []
    assert report(measured, "--hardware", "absent")["verdicts"]["count"] == 0
    assert len(report(measured, "--trace", cell["trace"])["cells"]) == 1


@pytest.mark.parametrize("arguments", [("history",), ("history", "absent.db"), ("history", "absent.db", "--as-of", "later")])
def test_a_history_that_is_not_there_is_one_sentence(empty, arguments):
    result = empty.replay(*arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert not (empty.folder / "absent.db").exists()


def test_an_anchor_named_by_commit_is_the_mapping_at_that_commit(empty):
    path = empty.write("mapping.toml", 'name = "old"\n')
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for arguments in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "in service")):
        subprocess.run(["git", *identity, *arguments], cwd=empty.folder, check=True)
    path.write_text('name = "new"\n[batching]\nmax_running = 7\n')
    budget = DriftBudget(budget=0.05, anchor="git:main")
    assert _anchor(budget, path) == parse_mapping('name = "old"\n', "mapping.toml").digest
    with pytest.raises(SpecError, match="no mapping file"):
        _anchor(budget, None)


def test_a_replayed_change_inside_every_margin_is_refused_beyond_the_budget(project):
    project.write("strict.toml", project.read("policy.toml") + '\n[drift]\nbudget = "0.01 %"\n')
    project.write("smaller.toml", project.read("mapping.toml").replace("max_batched_tokens = 2048", "max_batched_tokens = 2032"))
    arms = ("--candidate", "smaller.toml", "--policy", "strict.toml", "--history", "h.db", "--as-of", "2030-01-01")
    result = project.replay("gate", *arms, "--format", "json")
    assert result.exit_code == 10, result.stderr
    predicate = json.loads(result.stdout)["predicate"]
    documents.check(json.loads(result.stdout), "verdict.v1", "verdict.json")
    assert "disproved" not in {claim["outcome"] for claim in predicate["claims"] if claim["blocking"]}
    assert predicate["reasons"][0]["code"] == "drift_budget_exceeded"
    assert predicate["mitigation"]["revert"] == ["batching.max_batched_tokens"]


def test_a_measured_arm_against_a_mapping_is_kept_as_the_rollback_it_is(measured):
    arms = ("--baseline", "v0", "--candidate", "v1/mapping.toml", "--policy", "policy.toml")
    assert measured.replay("gate", *arms, "--history", "h.db", "--out", "out").exit_code == 30
    assert report(measured)["verdicts"]["bases"] == {"invalid_evidence": 1}


def test_a_history_has_a_page(measured):
    gate(measured, 0, 1)
    gate(measured, 1, 2)
    result = measured.replay("history", "h.db", "--format", "html")
    assert result.exit_code == 0
    found = read_page(result.stdout.encode())
    assert "2 verdicts" in found.one("header").text
    assert any("ttft_s.p95, release 2" in mark for figure in found.all("figure") for mark in figure.marks)
