"""How claims and findings become a decision: the worst counts, and nothing missing ever releases."""

import itertools

import pytest

from gates.attribution.cause import CellCause
from gates.claim import Claim
from gates.finding import Finding
from gates.plan import CellSpec
from gates.verdict import EXIT_CODES, cell_verdict, combine, decide_cell
from replay.errors import InvariantError

CELL = CellSpec(trace="chat", trace_digest="sha256:0", hardware="h100-sxm", model="tiny", layer_types=())


def claim(outcome, blocking=True):
    return Claim(
        id=f"chat/h100-sxm/{outcome}", metric="ttft_s", layer_type=None, percentile=95.0, trace="chat", hardware="h100-sxm", stratum="all",
        direction="lower", unit="s", baseline=1.0, candidate=1.0, scale="ratio", ratio=1.0, difference=0.0, interval=None, margin=0.03,
        method="m", n=1000, n_beyond=50, replicates=1000, minimum_detectable_effect=0.0, disproof_criterion="d", rollback_boundary="r",
        outcome=outcome, blocking=blocking, adjusted_p=None, reason_code="margin_not_shown" if outcome == "undecided" else None,
    )  # fmt: skip


def finding(effect, stage="tiling", bottleneck_class="memory_capacity"):
    return Finding(code=f"{effect}_code", message="m", effect=effect, stage=stage, bottleneck_class=bottleneck_class)


CAUSE = CellCause(first_failing_stage="execution", bottleneck_class="queueing", reasons=({"code": "bottleneck", "message": "m"},))


@pytest.mark.parametrize("outcomes", [c for size in range(4) for c in itertools.product(["holds", "disproved", "undecided"], repeat=size)])
@pytest.mark.parametrize("effects", [(), ("informs",), ("disproves",), ("invalidates",), ("invalidates", "disproves")])
def test_within_a_cell_invalid_beats_regression_beats_inconclusive_beats_safe(outcomes, effects):
    decision, basis = decide_cell([claim(outcome) for outcome in outcomes], [finding(effect) for effect in effects])
    if not outcomes or "invalidates" in effects:
        expected = "invalid_evidence"
    elif "disproved" in outcomes or "disproves" in effects:
        expected = "regression"
    elif "undecided" in outcomes:
        expected = "inconclusive"
    else:
        expected = "proven_safe"
    assert basis == expected
    assert (decision == "release") == (expected == "proven_safe")


@pytest.mark.parametrize("outcome", ["holds", "disproved", "undecided"])
def test_advisory_claims_decide_nothing(outcome):
    assert decide_cell([claim("holds"), claim(outcome, blocking=False)], []) == ("release", "proven_safe")
    assert decide_cell([claim(outcome, blocking=False)], []) == ("rollback", "invalid_evidence")


def cell_with(basis):
    claims = {"proven_safe": ["holds"], "regression": ["disproved"], "inconclusive": ["undecided"], "invalid_evidence": []}[basis]
    return cell_verdict(CELL, [claim(outcome) for outcome in claims], [])


@pytest.mark.parametrize("bases", [c for size in (1, 2, 3) for c in itertools.product(EXIT_CODES, repeat=size)])
def test_across_cells_the_worst_counts_and_regression_beats_invalid(bases):
    verdict = combine(cell_with(basis) for basis in bases)
    order = ["regression", "invalid_evidence", "inconclusive", "proven_safe"]
    worst = min(bases, key=order.index)
    assert verdict.basis == worst
    assert verdict.worst is verdict.cells[bases.index(worst)]
    assert verdict.exit_code() == {"proven_safe": 0, "regression": 10, "inconclusive": 20, "invalid_evidence": 30}[worst]
    assert (verdict.decision == "release") == (set(bases) == {"proven_safe"})


def test_a_tolerated_basis_exits_zero_and_hides_no_other():
    assert combine([cell_with("inconclusive")]).exit_code(["regression"]) == 0
    verdict = combine([cell_with("regression"), cell_with("inconclusive")])
    assert verdict.exit_code(["inconclusive"]) == 20
    assert verdict.exit_code(["regression", "inconclusive"]) == 10


def test_no_cell_is_no_verdict():
    with pytest.raises(InvariantError):
        combine([])


@pytest.mark.parametrize(
    ("outcomes", "findings", "where"),
    [
        (["holds"], [], (None, None)),
        (["undecided"], [], ("release_decision", "measurement")),
        ([], [], ("release_decision", "measurement")),
        (["disproved"], [], (None, None)),
        (["holds"], [finding("disproves")], ("tiling", "memory_capacity")),
        (
            ["holds"],
            [finding("invalidates", "execution", None), finding("invalidates", "ingress", "measurement")],
            ("ingress", "measurement"),
        ),
        (["disproved"], [finding("invalidates", "ingress", "measurement")], ("ingress", "measurement")),
    ],
)
def test_without_a_cause_the_findings_say_where_it_fails(outcomes, findings, where):
    verdict = cell_verdict(CELL, [claim(outcome) for outcome in outcomes], findings)
    assert (verdict.first_failing_stage, verdict.bottleneck_class) == where


def test_a_cause_says_where_it_fails_and_adds_its_reasons_and_a_release_fails_nowhere():
    worse = cell_verdict(CELL, [claim("disproved")], [finding("disproves")], cause=CAUSE)
    assert (worse.first_failing_stage, worse.bottleneck_class) == ("execution", "queueing")
    assert worse.reasons[-1]["code"] == "bottleneck"
    safe = cell_verdict(CELL, [claim("holds")], [], cause=CAUSE)
    assert (safe.first_failing_stage, safe.bottleneck_class) == (None, None)


def test_reasons_say_what_decides_first():
    claims = [claim("holds"), claim("undecided"), claim("disproved"), claim("disproved", blocking=False)]
    verdict = cell_verdict(CELL, claims, [finding("informs"), finding("disproves"), finding("invalidates")])
    assert [reason["code"] for reason in verdict.reasons] == [
        "invalidates_code", "disproves_code", "claim_disproved", "margin_not_shown", "advisory_claim_disproved", "informs_code",
    ]  # fmt: skip
    assert cell_verdict(CELL, [claim("holds")], []).reasons[0]["code"] == "blocking_claims_hold"
    assert cell_verdict(CELL, [], []).reasons[0]["code"] == "no_blocking_claim"
