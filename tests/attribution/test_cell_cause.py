"""The whole cause of a cell: what is named, what is not claimed, and that all of it is JSON."""

from __future__ import annotations

import json
import re

import pytest

from gates.attribution.cause import CauseQuestion, CellCause, find_cause
from gates.attribution.patch import MappingFile
from gates.finding import Finding
from gates.owners import parse_owners
from replay.lowering.kernel_plan import Decision
from replay.specs.mapping import parse_mapping
from tests.attribution.attribution_cells import Cell, Cost, mapping

OWNERS = parse_owners(
    '[[rules]]\nmatch = "gemm.*"\nteam = "kernels"\ncontact = "kernels@example.org"\n[[rules]]\nmatch = "stage:ingress"\nteam = "traces"\n',
    "owners.toml",
)
TEXT = 'name = "c"\n\n[gemm]\nsplit_k = 4  # more parts\n\n[kv]\nblock_tokens = 32\n'


def question(cost, candidate_text=TEXT, *, findings=(), basis=None, judgeable=True):
    baseline, candidate = mapping(), parse_mapping(candidate_text, "mapping.toml")
    cell = Cell(baseline, lambda spec: cost({setting.knob: setting.value for setting in spec.settings}), judgeable=judgeable)
    judgement = cell.judge(candidate, cell.run(candidate))
    if basis is not None:
        judgement = type(judgement)(decision="rollback", basis=basis, claims=judgement.claims)
    return CauseQuestion(
        replayer=cell,
        baseline=baseline,
        candidate=candidate,
        judgement=judgement,
        findings=tuple(findings),
        judge=cell.judge,
        owners=OWNERS,
        mapping_file=MappingFile(name="mapping.toml", text=candidate_text),
    )


def slow_split(values):
    return Cost().grown("decode", "mlp", "compute_s", 1.5) if "gemm.split_k" in values else Cost()


def fields(cause: CellCause):
    document = {name: getattr(cause, name) for name in cause.__slots__}
    json.dumps(document, allow_nan=False)
    return document


def test_a_regression_names_stage_class_knob_owner_and_a_verified_revert():
    cause = find_cause(question(slow_split))
    found = fields(cause)
    assert (found["first_failing_stage"], found["bottleneck_class"]) == ("tiling", "compute")
    mitigation = found["mitigation"]
    assert mitigation["revert"] == ["gemm.split_k"]
    assert (mitigation["verified"], mitigation["decision_after"]) == (True, "release")
    assert (mitigation["owner"], mitigation["revert_cost"]) == ("kernels", "hot")
    assert "-split_k = 4  # more parts\n" in mitigation["patch"]
    assert mitigation["rollback_boundary"] == (
        "the baseline's values are known good for trace test on chip: 3 requests at 0.75 requests/s on average over 4 s, "
        "prompts up to 30 and outputs up to 5 tokens; beyond that they were not replayed"
    )
    assert [row["knob"] for row in found["attribution"]] == ["gemm.split_k", "kv.block_tokens"]
    assert found["attribution"][0]["share"] == pytest.approx(1.0)
    assert found["attribution"][1]["effect"] == pytest.approx(0.0)
    knob, stage = found["owners"]
    named = ("gemm.split_k", "kernels", "kernels@example.org", "owners.toml:1")
    assert (knob["finding"], knob["owner"], knob["contact"], knob["source"]) == named
    assert (knob["risk"], knob["mitigation"]) == ("breaks ttft_s.p99", "undo it (hot)")
    assert re.fullmatch(r"ttft_s\.p99 \+\d+\.\d%, 100% of the change", knob["effect"])
    assert (stage["finding"], stage["owner"], stage["risk"], stage["mitigation"]) == ("tiling", "unowned", "compute", None)
    assert (found["bottleneck"]["layer_type"], found["bottleneck"]["phase"], found["bottleneck"]["term"]) == ("mlp", "decode", "compute")
    assert found["bottleneck"]["after_s"] == pytest.approx(1.5 * found["bottleneck"]["before_s"], rel=0.2)
    assert [reason["code"] for reason in found["reasons"]] == ["first_failing_stage", "bottleneck"]


def test_a_release_names_its_knobs_and_owners_and_nothing_else():
    cause = find_cause(question(lambda values: Cost()))
    assert [(row["knob"], row["owner"], row["line"]) for row in cause.knobs] == [
        ("gemm.split_k", "kernels", 4),
        ("kv.block_tokens", "unowned", 7),
    ]
    assert cause == CellCause(knobs=cause.knobs)


def test_a_release_replays_no_hybrid():
    asked = question(lambda values: Cost())
    before = len(asked.replayer.judged)
    find_cause(asked)
    assert len(asked.replayer.judged) == before


def test_invalid_evidence_takes_stage_and_class_from_the_findings_and_reverts_nothing():
    findings = (
        Finding(code="late", message="x", effect="invalidates", stage="release_decision"),
        Finding(code="cache_state", message="y", effect="invalidates", stage="ingress", bottleneck_class="measurement"),
        Finding(code="noise", message="z", effect="informs", stage="lowering"),
    )
    cause = find_cause(question(slow_split, findings=findings, basis="invalid_evidence"))
    assert (cause.first_failing_stage, cause.bottleneck_class, cause.mitigation, cause.attribution) == ("ingress", "measurement", None, ())
    assert [(row["finding"], row["owner"]) for row in cause.owners] == [("cache_state", "traces"), ("late", "unowned")]


def test_inconclusive_evidence_fails_at_the_decision_and_claims_no_revert_where_the_baseline_is_undecided_too():
    cause = find_cause(question(slow_split, judgeable=False))
    assert (cause.first_failing_stage, cause.bottleneck_class, cause.mitigation) == ("release_decision", "measurement", None)
    assert [reason["code"] for reason in cause.reasons] == ["no_revert_verified"]
    assert len(cause.attribution) == 2


def test_it_says_so_when_nothing_short_of_everything_helps():
    cause = find_cause(question(lambda values: Cost(queueing=1.5 if values else 1.0)))
    assert cause.mitigation is not None
    assert cause.mitigation["revert"] == ["gemm.split_k", "kv.block_tokens"]
    assert cause.mitigation["owner"] == "kernels, unowned"
    assert cause.mitigation["revert_cost"] == "restart"
    assert "revert_everything" in [reason["code"] for reason in cause.reasons]
    assert cause.first_failing_stage == "quality_sla"


def test_equal_mappings_that_are_inconclusive_have_nothing_to_undo():
    cause = find_cause(question(lambda values: Cost(), 'name = "c"', judgeable=False))
    assert (cause.knobs, cause.attribution, cause.mitigation) == ((), (), None)
    assert [reason["code"] for reason in cause.reasons] == ["no_knob_differs"]


def test_without_the_mapping_text_there_is_a_revert_but_no_patch():
    asked = question(slow_split)
    bare = CauseQuestion(**{name: getattr(asked, name) for name in asked.__slots__} | {"mapping_file": None})
    cause = find_cause(bare)
    assert cause.mitigation is not None
    assert cause.mitigation["patch"] is None
    assert cause.mitigation["revert"] == ["gemm.split_k"]


def test_requested_and_effective_come_from_the_decisions_within_the_knobs_scope():
    def decided(knob, requested, effective, reason=None):
        return Decision(knob=knob, requested=requested, effective=effective, reason=reason, stage="lowering")

    decisions = (
        decided("formats.activations@mlp", "fp8", "bf16", "the weights are bf16"),
        decided("formats.activations@qkv", "bf16", "bf16"),
        decided("gemm.backend@mlp.decode[rows 1-16]", "vector", "vector"),
        decided("gemm.backend@mlp.decode[rows 17-64]", "matrix", "matrix"),
        decided("gemm.backend@mlp.prefill", "matrix", "matrix"),
    )
    text = 'name = "c"\n[formats]\nactivations = "fp8"\n[gemm]\n"backend@mlp.decode[rows<=16]" = "vector"\nsplit_k = 2\n'
    rows = {row["knob"]: row for row in find_cause(question(lambda values: Cost(decisions=decisions), text)).knobs}
    activations = rows["formats.activations"]
    assert (activations["requested"], activations["effective"]) == ("fp8; bf16", "bf16")
    assert activations["fallback_reason"] == "the weights are bf16"
    backend = rows["gemm.backend@mlp.decode[rows<=16]"]
    assert (backend["baseline"], backend["candidate"], backend["effective"], backend["fallback_reason"]) == (None, "vector", "vector", None)
    assert (rows["gemm.split_k"]["requested"], rows["gemm.split_k"]["effective"]) == (2, 2)


def test_the_class_of_a_finding_counts_where_only_findings_speak_against_the_candidate():
    finding = Finding(code="requests_rejected", message="m", effect="disproves", stage="tiling", bottleneck_class="memory_capacity")
    cause = find_cause(question(lambda values: Cost(), findings=(finding,), basis="regression"))
    assert (cause.first_failing_stage, cause.bottleneck_class) == ("tiling", "memory_capacity")
