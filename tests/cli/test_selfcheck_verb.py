"""`replay selfcheck`, and the gate that cites it."""

import json

import gates.selfcheck.check
import gates.selfcheck.pool
from replay import documents


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
