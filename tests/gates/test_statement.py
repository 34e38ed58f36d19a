"""The verdict document: every name others read, against its schema, strict and reproducible."""

import json

import jsonschema
import pytest

from gates.attribution.cause import CellCause
from gates.checks import Evidence, run_checks
from gates.judge import judge
from gates.plan import cell_of, make_plan
from gates.statement import InputRecord, to_document
from gates.sustained import FIGURES, sustained_figures
from gates.verdict import cell_verdict, combine
from replay import documents
from replay.assembly.assemble import summary
from replay.provenance import TraceProvenance, canonical_json, digest_document
from tests.runs import lognormal_s, make_run, policy_of, slower

EXAMPLES = documents.shipped_path("schemas") / "examples"
SCHEMA = documents.load_schema("verdict.v1")
PREDICATE_NAMES = [
    "schema_version", "tool", "decision", "basis", "reasons", "first_failing_stage", "bottleneck_class", "claims", "improved",
    "stages", "bottleneck", "knobs", "attribution", "cohorts", "mitigation", "owners", "per_trace", "guardrails", "inputs", "plan",
    "evidence", "fidelity", "sustained",
]  # fmt: skip
INPUTS = [
    InputRecord(role="policy", name="policy.toml", digest="sha256:" + "05" * 32),
    InputRecord(role="trace", name="chat.jsonl", digest="sha256:" + "ab" * 32, rows=3000, dropped=2, provenance={"kind": "recorded"}),
    InputRecord(role="baseline_mapping", name="mapping.toml", digest="sha256:" + "03" * 32),
    InputRecord(role="candidate_mapping", name="mapping.toml", digest="sha256:" + "04" * 32),
]


KNOB = "gemm.tile@decode[rows<=16]"


CAUSE = CellCause(
    first_failing_stage="tiling",
    bottleneck_class="compute",
    knobs=(
        {
            "knob": KNOB, "baseline": "auto", "candidate": [8, 8, 64], "requested": [8, 8, 64], "effective": [8, 8, 64],
            "fallback_reason": None, "owner": "kernels", "revert_cost": "hot", "line": 4,
        },
    ),
    attribution=({"knob": KNOB, "metric": "tpot_s.p95", "effect": 0.4, "share": 1.0, "interval": None, "method": "replay"},),
    mitigation={
        "revert": [KNOB], "patch": "--- a\n+++ b\n", "verified": True, "decision_after": "release", "owner": "kernels",
        "revert_cost": "hot", "rollback_boundary": "known good on this trace",
    },
    owners=({"finding": KNOB, "owner": "kernels", "contact": None, "source": "owners.toml:3"},),
    reasons=({"code": "first_failing_stage", "message": "tiling: padding"},),
)  # fmt: skip


def gate(pairs, text="", cause=None, seed=7):
    """Return the document of a gate over (baseline, candidate) cells."""
    policy = policy_of(text)
    plan = make_plan(policy, [cell_of(baseline) for baseline, _ in pairs], seed)
    origin = TraceProvenance(kind="recorded", origin="jsonl", source_digest="sha256:0", rows_read=1, rows_kept=1)
    cells = []
    for planned, (baseline, candidate) in zip(plan.cells, pairs, strict=True):
        findings = run_checks(Evidence(baseline=baseline, candidate=candidate, provenance=origin, policy=policy))
        claims = judge(planned, baseline, candidate)
        cells.append(cell_verdict(planned.spec, claims, findings, cause=cause, sustained=sustained_figures(baseline, candidate)))
    return to_document(combine(cells), plan=plan, inputs=INPUTS, tool_version="0.1.0")


BASELINE = make_run(lognormal_s(3000))


@pytest.mark.parametrize(
    ("candidate", "cause", "basis"),
    [
        (BASELINE, None, "proven_safe"),
        (slower(BASELINE, 1.4), CAUSE, "regression"),
        (slower(BASELINE, 1.4), None, "regression"),
        (make_run(lognormal_s(3000), rejected=[4]), None, "regression"),
        (make_run(lognormal_s(3000, seed=1)), None, "inconclusive"),
        (make_run(lognormal_s(2999)), None, "invalid_evidence"),
        (make_run(lognormal_s(3000), metrics={"tpot_s": [None] * 3000}), None, "inconclusive"),
    ],
)
def test_every_basis_gives_a_document_that_its_schema_accepts(candidate, cause, basis):
    document = gate(
        [(BASELINE, candidate)],
        '[blocking]\ntpot_s = { p95 = "3 %" }' if basis == "inconclusive" else "",
        cause,
    )
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["predicate"]["basis"] == basis


def test_the_statement_names_what_it_is_about_by_digest():
    document = gate([(BASELINE, BASELINE)])
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://replay-gate.dev/gate-verdict/v1"
    assert document["subject"] == [
        {"name": "candidate_mapping:mapping.toml", "digest": {"sha256": "04" * 32}},
        {"name": "baseline_mapping:mapping.toml", "digest": {"sha256": "03" * 32}},
        {"name": "trace:chat.jsonl", "digest": {"sha256": "ab" * 32}},
    ]


def test_every_promised_name_is_there_in_a_fixed_order_and_unbuilt_parts_are_null():
    predicate = gate([(BASELINE, BASELINE)])["predicate"]
    assert list(predicate) == PREDICATE_NAMES
    assert (predicate["evidence"], predicate["fidelity"], predicate["mitigation"]) == (None, None, None)


def test_the_same_inputs_give_the_same_bytes_of_strict_json():
    texts = [json.dumps(gate([(BASELINE, slower(BASELINE, 1.1))]), allow_nan=False) for _ in range(2)]
    assert texts[0] == texts[1]
    assert json.loads(texts[0]) == gate([(BASELINE, slower(BASELINE, 1.1))])


def test_integers_that_other_readers_would_round_are_written_as_text():
    document = gate([(BASELINE, BASELINE)], seed=2**63)
    assert document["predicate"]["plan"]["seed"] == str(2**63)
    long_rows = [InputRecord(role="trace", name="t", digest="sha256:" + "ab" * 32, provenance={"first_ns": 2**60, "small": 5})]
    plan = make_plan(policy_of(), [cell_of(BASELINE)], 1)
    verdict = combine([cell_verdict(plan.cells[0].spec, judge(plan.cells[0], BASELINE, BASELINE), [])])
    written = to_document(verdict, plan=plan, inputs=long_rows, tool_version="0.1.0")["predicate"]["inputs"][0]["provenance"]
    assert written == {"first_ns": str(2**60), "small": 5}


def test_the_plan_in_the_document_has_the_digest_it_states():
    plan = dict(gate([(BASELINE, BASELINE)])["predicate"]["plan"])
    digest = plan.pop("digest")
    assert digest == digest_document(plan)
    assert canonical_json(plan)


def test_whole_percentiles_are_written_as_whole_numbers():
    text = '[blocking]\nttft_s = { p95 = 0.03, "p99.9" = 0.03 }'
    written = [json.dumps(claim["percentile"]) for claim in gate([(BASELINE, BASELINE)], text)["predicate"]["claims"]]
    assert written == ["95", "99.9"]


def test_what_got_better_is_named_and_never_pays_for_what_got_worse():
    candidate = slower(slower(BASELINE, 0.5, ["ttft_s"]), 1.5, ["tpot_s"])
    predicate = gate([(BASELINE, candidate)])["predicate"]
    assert predicate["decision"] == "rollback"
    improved = {(row["metric"], row["percentile"]): row for row in predicate["improved"] if row["stratum"] == "all"}
    assert set(improved) == {("ttft_s", 95.0), ("ttft_s", 99.0)}
    assert "never buys" in improved["ttft_s", 95.0]["why_not_enough"]
    released = gate([(BASELINE, slower(BASELINE, 0.5))])["predicate"]
    assert released["decision"] == "release"
    assert {row["why_not_enough"] for row in released["improved"]} == {None}


def test_guardrails_are_the_boundaries_of_the_blocking_claims_in_numbers():
    predicate = gate([(BASELINE, BASELINE)])["predicate"]
    blocking = {claim["id"]: claim for claim in predicate["claims"] if claim["blocking"]}
    rows = {row["claim"]: row for row in predicate["guardrails"]}
    assert set(rows) == set(blocking)
    tail, flops = rows["chat/h100-sxm/ttft_s.p99"], rows["chat/h100-sxm/sustained_flops_per_s"]
    assert tail["limit"] == pytest.approx(1.03 * blocking["chat/h100-sxm/ttft_s.p99"]["baseline"])
    assert (tail["breached_when"], tail["action"]) == ("above", "roll back")
    assert tail["window"].startswith("any 10000 consecutive requests")
    assert flops["limit"] == pytest.approx(0.97 * blocking["chat/h100-sxm/sustained_flops_per_s"]["baseline"])
    assert flops["breached_when"] == "below"


def test_cells_keep_their_own_verdicts_and_the_top_copies_the_worst():
    other = make_run(lognormal_s(3000), trace="code")
    predicate = gate([(BASELINE, BASELINE), (other, slower(other, 2.0))], cause=None)["predicate"]
    assert [(cell["trace"], cell["basis"]) for cell in predicate["per_trace"]] == [("chat", "proven_safe"), ("code", "regression")]
    assert (predicate["decision"], predicate["basis"]) == ("rollback", "regression")
    assert predicate["reasons"] == predicate["per_trace"][1]["reasons"]
    assert predicate["sustained"]["trace"] == "code"
    assert predicate["claims"] == [claim for cell in predicate["per_trace"] for claim in cell["claims"]]


def test_sustained_figures_are_flops_over_busy_time_and_over_the_clock():
    figures = sustained_figures(BASELINE, make_run(lognormal_s(3000), flops_scale=2.0, stall_ratio=0.1))
    windows = BASELINE.windows.filter([layer == "all" for layer in BASELINE.windows["layer_type"].to_pylist()])
    flops = sum(windows["flops"].to_pylist())
    assert figures["mfu_ratio"]["baseline"] == pytest.approx(flops / (50 * 8.0) / 1e15)
    assert figures["wall_clock_mfu_ratio"]["baseline"] == pytest.approx(flops / 498.0 / 1e15)
    assert figures["mfu_ratio"]["candidate"] == pytest.approx(2 * figures["mfu_ratio"]["baseline"])
    assert figures["memory_stall_ratio"]["mlp"] == {"baseline": 0.3, "candidate": 0.1}


@pytest.mark.parametrize("windows_count", [0, 50])
def test_every_sustained_figure_is_that_of_the_runs_own_summary_under_the_same_name(windows_count):
    arms = {"baseline": make_run(lognormal_s(300), windows_count=windows_count), "candidate": make_run(lognormal_s(300), flops_scale=2.0)}
    figures = sustained_figures(*arms.values())
    names = set(figures) - {"trace", "hardware", "memory_stall_ratio"}
    assert names == set(FIGURES)
    for side, run in arms.items():
        shown = summary(run)
        assert {name: figures[name][side] for name in names} == {name: shown[name] for name in names}
        assert {layer: pair[side] for layer, pair in figures["memory_stall_ratio"].items()} == {
            layer: shown["memory_stall_ratio"][layer] for layer in ("attention", "mlp")
        }


def test_the_valid_example_is_accepted_and_the_invalid_one_is_not():
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.validate(documents.read_json_object(EXAMPLES / "verdict.v1.valid.json", "a verdict"))
    invalid = documents.read_json_object(EXAMPLES / "verdict.v1.invalid.json", "a verdict")
    assert [error.json_path for error in validator.iter_errors(invalid)] == ["$.predicate.basis"]


def test_the_schema_refuses_names_it_does_not_know_inside_the_predicate():
    document = gate([(BASELINE, BASELINE)])
    document["predicate"]["claims"][0]["surprise"] = 1
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(document)
