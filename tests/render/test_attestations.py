"""SARIF for code scanning, and in-toto's test-result for policy engines: nothing bad ever reads as a pass."""

import json

import pytest

from gates.render.attestation import render_test_result
from gates.render.sarif import VERDICT_RULE, render_sarif
from tests.render.verdict_documents import inconclusive, invalid, regression, release

LEVELS = {"error", "warning"}


def sarif(document, **more):
    log = json.loads(render_sarif(document, **more))
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    [run] = log["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} == rules
    for result in run["results"]:
        assert result["level"] in LEVELS
        assert result["message"]["text"]
        assert len(result["partialFingerprints"]) == 1
    return run["results"]


def test_a_release_has_no_results():
    assert sarif(release()) == []


def test_a_disproved_claim_is_an_error_at_the_line_of_the_knob_to_undo():
    result = sarif(regression(), prefix="deploy/")[0]
    assert result["level"] == "error"
    assert result["ruleId"] == "ttft_s.p99"
    assert "TTFT p99 on chat / h100-sxm is disproved: 250 ms -> 310 ms" in result["message"]["text"]
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("deploy/mapping.toml", 3)


def test_an_undecided_claim_is_a_warning_and_invalid_evidence_is_one_error_about_the_verdict():
    assert {one["level"] for one in sarif(inconclusive())} == {"warning"}
    [result] = sarif(invalid())
    assert (result["ruleId"], result["level"]) == (VERDICT_RULE, "error")


def test_control_characters_of_a_hostile_name_do_not_get_through():
    [place] = sarif(regression(name="a\x1b[31m.toml"))[0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "a%1B%5B31m.toml"


@pytest.mark.parametrize(("make", "result"), [(release, "PASSED"), (regression, "FAILED"), (inconclusive, "FAILED"), (invalid, "FAILED")])
def test_the_test_result_passes_on_a_release_alone_and_every_claim_is_a_test(make, result):
    document = make()
    statement = json.loads(render_test_result(document))
    found = statement["predicate"]
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == document["subject"]
    assert found["result"] == result
    assert found["configuration"][-1]["digest"]["sha256"] == document["predicate"]["plan"]["digest"].removeprefix("sha256:")
    claims = document["predicate"]["claims"]
    if make is not invalid:
        tests = [*found["passedTests"], *found["warnedTests"], *found["failedTests"]]
        assert sorted(tests) == sorted(claim["id"] for claim in claims)
    assert bool(found["failedTests"]) == (result == "FAILED")
