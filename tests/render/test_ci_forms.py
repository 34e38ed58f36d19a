"""Forms for CI: GitHub workflow commands and JUnit; nothing bad ever reads as a pass."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from gates.attribution.cause import CellCause
from gates.render.github import MAX_ANNOTATIONS, render_github, workflow_commands
from gates.render.junit import render_junit
from tests.render.verdict_documents import CAUSE, KNOB, WORSE, claims, document, inconclusive, invalid, regression, release


def caused(**changes):
    fields = {name: getattr(CAUSE, name) for name in CAUSE.__slots__}
    return CellCause(**(fields | changes))


def test_golden_annotation_at_the_changed_line():
    assert workflow_commands(regression()) == [
        "::error file=mapping.toml,line=3,title=replay gate%3A ROLLBACK (regression)::gemm.tile: [128, 128, 64] -> [256, 128, 64]%0A"
        "TTFT p99 on chat / h100-sxm is 24.0 %25 worse (250 ms -> 310 ms; +3 %25 accepted)%0A"
        "fails at tiling (compute); owner kernels%0Aundoing gemm.tile releases, verified by replay"
    ]


def test_a_release_is_a_notice():
    [command] = workflow_commands(release())
    assert command.startswith("::notice title=replay gate%3A RELEASE (proven_safe)::all 7 blocking claims hold")


@pytest.mark.parametrize("make", [inconclusive, invalid])
def test_a_rollback_without_a_knob_to_blame_is_one_error_without_a_place(make):
    [command] = workflow_commands(make())
    assert command.startswith("::error title=replay gate%3A ROLLBACK")


def test_no_more_annotations_than_github_shows_and_each_on_one_line():
    knobs = tuple(KNOB | {"knob": f"gemm.tile@mlp[rows<={16 * size}]", "line": size} for size in range(1, 30))
    mitigation = CAUSE.mitigation | {"revert": [knob["knob"] for knob in knobs]}
    commands = workflow_commands(document(claims(ttft_s__p99=WORSE), cause=caused(knobs=knobs, mitigation=mitigation)))
    assert len(commands) == MAX_ANNOTATIONS
    assert all(command.startswith("::error file=mapping.toml,line=") and "\n" not in command for command in commands)


def test_only_the_knobs_to_undo_are_annotated_and_a_dropped_line_points_at_the_file():
    knobs = (KNOB | {"knob": "kv.block_tokens", "line": 9}, KNOB | {"line": None, "candidate": None})
    [command] = workflow_commands(document(claims(ttft_s__p99=WORSE), cause=caused(knobs=knobs), name="a,b:c%.toml"))
    assert command.startswith("::error file=a%2Cb%3Ac%25.toml,title=")


def test_a_candidate_at_a_commit_is_annotated_at_its_path():
    assert "file=deploy/m.toml,line=3," in workflow_commands(regression(name="git:HEAD~1:deploy/m.toml"))[0]


def commands_run(page):
    """The commands that GitHub's runner would take from a log: trimmed lines in the new form, the old form anywhere in a line."""
    found, stopped = [], None
    for line in page.split("\n"):
        text = line.strip()
        if stopped is not None:
            stopped = None if text == f"::{stopped}::" else stopped
        elif text.startswith("::stop-commands::"):
            stopped = text.removeprefix("::stop-commands::")
        elif text.startswith("::") or "##[" in text:
            found.append(line)
    assert stopped is None
    return found


HOSTILE = "--- a/m\n+++ b/m\n@@ -1 +1 @@\n-x\n+::error::a\n ::add-mask::b\n \t::set-output name=decision::release\n+##[error]c\n"


@pytest.mark.parametrize("patch", [CAUSE.mitigation["patch"], HOSTILE])
def test_the_summary_follows_the_commands_and_no_line_of_it_is_run_as_one(patch):
    made = document(claims(ttft_s__p99=WORSE), cause=caused(mitigation=CAUSE.mitigation | {"patch": patch}))
    page = render_github(made)
    assert commands_run(page) == workflow_commands(made)
    assert "\n## ROLLBACK - regression\n" in page
    assert all(line in page for line in patch.splitlines())
    assert page == render_github(made)


def test_the_token_that_ends_the_summary_does_not_stand_in_it():
    made = regression()
    token = render_github(made).split("::stop-commands::", 1)[1].split("\n", 1)[0]
    summary = render_github(made).split("\n\n", 1)[1].removesuffix(f"::{token}::\n")
    assert len(token) == 64
    assert token not in summary


def suites(made):
    return ElementTree.fromstring(render_junit(made))


def outcomes(made):
    """Child element of each test case by name: failure, error, or system-out for a pass."""
    return {case.get("name"): case[0].tag for case in suites(made).iter("testcase")}


def test_junit_of_a_regression_fails_the_disproved_claims_and_the_verdict():
    found = outcomes(regression())
    failed = {name for name, outcome in found.items() if outcome == "failure"}
    assert failed == {"verdict", "TTFT p95 [chat/h100-sxm/ttft_s.p95]", "TTFT p99 [chat/h100-sxm/ttft_s.p99]"}
    assert set(found.values()) == {"failure", "system-out"}


def test_junit_of_a_release_passes_every_case():
    assert set(outcomes(release()).values()) == {"system-out"}


def test_junit_of_inconclusive_evidence_holds_errors():
    found = outcomes(inconclusive())
    errors = {name for name, outcome in found.items() if outcome == "error"}
    assert errors == {"verdict", "TTFT p99 [chat/h100-sxm/ttft_s.p99]", "end-to-end latency p99 [chat/h100-sxm/e2e_s.p99]"}


def test_junit_of_invalid_evidence_lets_no_blocking_claim_pass():
    made = invalid()
    found = outcomes(made)
    blocking = [claim["id"] for claim in made["predicate"]["claims"] if claim["blocking"]]
    errors = [name for name, outcome in found.items() if outcome == "error"]
    assert len(errors) == len(blocking) + 1


@pytest.mark.parametrize("make", [regression, release, inconclusive, invalid])
def test_junit_counts_what_it_holds_and_skips_nothing(make):
    root = suites(make(cells=2))
    for node in (root, *root.iter("testsuite")):
        assert int(node.get("tests")) == len(list(node.iter("testcase")))
        assert int(node.get("failures")) == len(list(node.iter("failure")))
        assert int(node.get("errors")) == len(list(node.iter("error")))
    assert not list(root.iter("skipped"))
    assert len(root.findall("testsuite")) == 2
    assert (int(root.get("failures")) + int(root.get("errors")) == 0) == (make is release)


def test_junit_survives_names_that_xml_cannot_hold():
    made = regression()
    for cell in made["predicate"]["per_trace"]:
        cell["trace"] = "a\x00<b>&\x1b"
    assert "a?&lt;b&gt;&amp;?" in render_junit(made)
