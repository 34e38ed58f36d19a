"""The verdict as text and Markdown: golden pages, and what must hold for any verdict."""

from __future__ import annotations

import re

import pytest

from gates.finding import Finding
from gates.render.figures import accepted, bounds, change, format_value, knob_value, subject
from gates.render.markdown import LIMIT_BYTES, render_markdown
from gates.render.text import render_text
from replay.documents import check
from tests.render.verdict_documents import (
    BETTER,
    CAUSE,
    SYNTHETIC,
    UNSURE,
    WORSE,
    claims,
    document,
    inconclusive,
    invalid,
    regression,
    release,
)

EVERY = [regression, release, inconclusive, invalid]

REGRESSION = """\
ROLLBACK  regression  -  TTFT p99 on chat / h100-sxm is 24.0 % worse (250 ms -> 310 ms; +3 % accepted)

  metric                  baseline     candidate    change   95 % bounds       accepted  outcome
  TTFT p99                250 ms       310 ms       +24.0 %  +18.0 .. +30.0 %  +3 %      disproved
  TTFT p95                250 ms       310 ms       +10.0 %  +18.0 .. +30.0 %  +3 %      disproved
  TPOT p95                250 ms       250 ms       0 %      0 .. 0 %          +3 %      holds
  end-to-end latency p95  250 ms       250 ms       0 %      0 .. 0 %          +3 %      holds
  end-to-end latency p99  250 ms       250 ms       0 %      0 .. 0 %          +3 %      holds
  sustained FLOP/s        0.25 FLOP/s  0.25 FLOP/s  0 %      0 .. 0 %          -3 %      holds
  ... and 24 more in verdict.json

  sustained MFU 40.4 % -> 32.4 % of 989 TFLOP/s
            memory stall: attention 41 % -> 41 %
  improved  TPOT p99 -20.0 % (250 ms -> 200 ms)
            better, but another blocking claim or limit is broken, and a gain in one figure never buys a loss in
              another
  fails at  tiling (compute)
            tiling: the baseline's recorded steps (all steps) take 31.0% longer (2 s -> 2.62 s)
            compute of mlp in decode steps grows from 1 s to 1.6 s on the baseline's steps
  effects   gemm.tile: TTFT p99 +24.0 % (100 % of the change)
  owner     kernels <kernels@example.org> for gemm.tile, tiling
  undo      gemm.tile: [256, 128, 64] -> [128, 128, 64]
            verified by replay: release; cost to revert: hot
            the baseline's values are known good for trace chat on h100-sxm: 1000 requests

    --- a/mapping.toml
    +++ b/mapping.toml
    @@ -2,2 +2,2 @@
     [gemm]
    -tile = [256, 128, 64]  # new
    +tile = [128, 128, 64]  # new

    (mitigation.patch of verdict.json; it applies with git apply)

  note      every claim here is about the synthetic trace chat, not about production
  files     replay-out/verdict.json, report.html, summary.md, evidence/
"""

MARKDOWN_TOP = """\
## ROLLBACK - regression

**TTFT p99 on chat / h100-sxm is 24.0 % worse (250 ms -&gt; 310 ms; +3 % accepted)**

| metric | baseline | candidate | change | 95 % bounds | accepted | outcome |
| --- | --- | --- | --- | --- | --- | --- |
| TTFT p99 | 250 ms | 310 ms | +24.0 % | +18.0 .. +30.0 % | +3 % | disproved |
"""


def test_golden_text_of_a_regression():
    assert render_text(regression(), folder="replay-out") == REGRESSION


def test_golden_top_of_the_markdown():
    assert render_markdown(regression()).startswith(MARKDOWN_TOP)


@pytest.mark.parametrize("make", EVERY)
def test_the_documents_of_these_tests_are_valid(make):
    check(make(), "verdict.v1", "document")


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (release, "RELEASE  proven_safe  -  all 7 blocking claims hold; nearest to its limit: end-to-end latency p99"),
        (inconclusive, "ROLLBACK  inconclusive  -  2 of 7 blocking claims are undecided; TTFT p99 on chat / h100-sxm: the interval"),
        (invalid, "ROLLBACK  invalid_evidence  -  the arms replayed different traces: a and b"),
    ],
)
def test_the_first_line_is_the_decision_and_what_decides(make, first):
    assert render_text(make()).startswith(first)


def test_invalid_evidence_says_that_its_figures_support_nothing():
    assert "These figures support no decision." in render_text(invalid())
    assert "24.0 % worse" not in render_text(invalid())


REFUSED = Finding(code="requests_rejected", message="the candidate rejects 244 of 6000 requests", effect="disproves", stage="execution")


@pytest.mark.parametrize("cells", [1, 3])
@pytest.mark.parametrize("changes", [{}, {"sustained_flops_per_s": WORSE}])
def test_refused_requests_are_the_headline_before_any_claim_and_are_said_once(changes, cells):
    made = document(claims(**changes), findings=(REFUSED, SYNTHETIC), cells=cells)
    text = render_text(made)
    assert text.startswith("ROLLBACK  regression  -  chat / h100-sxm: the candidate rejects 244 of 6000 requests\n")
    assert text.count(REFUSED.message) == 1
    assert SYNTHETIC.message in text
    assert "rejects 244 of 6000 requests" in render_markdown(made).splitlines()[2]


@pytest.mark.parametrize("make", EVERY)
def test_the_text_holds_no_control_character(make):
    assert all(character.isprintable() for line in render_text(make(), folder="a\x1b[2Jb").split("\n") for character in line)


@pytest.mark.parametrize("make", EVERY)
def test_every_cell_is_named_where_there_are_several(make):
    text = render_text(make(cells=3))
    assert [f"chat / {name} / llama-3.1-8b: " in text for name in ("h100-sxm", "chip-1", "chip-2")] == [True] * 3
    assert "chat / h100-sxm / llama-3.1-8b: " not in render_text(make())


def test_names_with_control_characters_cannot_steer_a_terminal_or_a_page():
    evil = "a\x1b[2J|<b>\n::error::x"
    hostile = document(tuple(c for c in claims(ttft_s__p99=WORSE)), cause=CAUSE, name=evil)
    for cell in [hostile["predicate"], *hostile["predicate"]["per_trace"]]:
        for claim in cell["claims"]:
            claim["trace"] = evil
    assert "\x1b" not in render_text(hostile)
    page = render_markdown(hostile)
    assert "\x1b" not in page
    assert "<b>" not in page
    assert not any(line.startswith("::") for line in page.splitlines())


@pytest.mark.parametrize("cells", [1, 40, 400])
def test_markdown_fits_a_comment_and_counts_what_it_leaves_out(cells):
    page = render_markdown(regression(cells=cells))
    assert len(page.encode()) <= LIMIT_BYTES < 65_536
    assert page.startswith("## ROLLBACK - regression")
    table_rows = len(re.findall(r"^\| .* \| (?:disproved|undecided|holds)", page, re.MULTILINE)) - 6
    left_out = re.search(r"and (\d+) more rows in verdict\.json", page)
    assert table_rows + (int(left_out[1]) if left_out else 0) == 30 * cells


def test_a_patch_that_holds_a_fence_stays_inside_its_own():
    cause = CAUSE.mitigation | {"patch": CAUSE.mitigation["patch"] + "+# ```\n"}
    made = document(claims(ttft_s__p99=WORSE), cause=type(CAUSE)(**{n: getattr(CAUSE, n) for n in CAUSE.__slots__} | {"mitigation": cause}))
    assert "\n````diff\n" in render_markdown(made)


def test_a_gain_beside_a_loss_says_why_it_is_not_enough():
    text = render_text(document(claims(ttft_s__p99=WORSE, tpot_s__p99=BETTER), cause=CAUSE))
    assert "TPOT p99 -20.0 %" in text
    assert "never buys a loss" in text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (None, "s", "-"),
        (0.4123, "fraction", "41.2 %"),
        (4.5e14, "FLOP/s", "450 TFLOP/s"),
        (2.5e-5, "s/token", "25 us/token"),
        (3.0, "count", "3"),
        (1.5, "J/token", "1.5 J/token"),
    ],
)
def test_figures_have_units_that_suit_them(value, unit, text):
    assert format_value(value, unit) == text


def test_changes_carry_the_sign_of_the_scale_and_of_the_bad_direction():
    claim = {"scale": "ratio", "ratio": 0.9, "difference": -1.0, "unit": "FLOP/s", "direction": "higher", "margin": 0.03, "interval": None}
    assert (change(claim), bounds(claim), accepted(claim)) == ("-10.0 %", "-", "-3 %")
    points = claim | {"scale": "difference", "difference": 0.012, "unit": "fraction", "direction": "lower", "margin": 0.01}
    points["interval"] = {"lower": 0.0, "upper": 0.0204, "confidence": 0.9}
    assert (change(points), bounds(points), accepted(points)) == ("+1.2 points", "0 .. +2.0 points", "+1 point")
    assert change(claim | {"ratio": None}) == "-"


def test_changes_of_tenfold_and_more_are_multiples():
    claim = {"scale": "ratio", "ratio": 16162.3, "direction": "lower", "interval": {"lower": 9.5, "upper": 12.34, "confidence": 0.9}}
    assert (change(claim), bounds(claim)) == ("x 16,162", "+850 .. x 12.3")


def test_what_decides_stands_before_what_only_advises():
    made = document(claims(queue_s__p99=UNSURE, mfu_ratio=WORSE, ttft_s__p99=UNSURE, tpot_s__p99=WORSE))
    rows = re.findall(r"^  (\S.*?) {2,}.*?(disproved|undecided|holds)( \(advisory\))?$", render_text(made), re.MULTILINE)
    kinds = [("TPOT p99", "disproved", ""), ("TTFT p99", "undecided", ""), ("MFU", "disproved", " (advisory)"), ("TTFT p95", "holds", "")]
    assert rows[:4] == kinds


def test_knob_values_read_as_the_mapping_file_spells_them():
    assert [knob_value(value) for value in (None, True, [64, 32], "fp8", 0.9)] == ["(not set)", "true", "[64, 32]", "fp8", "0.9"]


def test_a_claim_is_called_the_same_in_tables_and_in_its_own_criterion():
    planned = {claim["id"]: claim for claim in regression()["predicate"]["claims"]}
    assert len(planned) > 20
    for claim in planned.values():
        assert claim["disproof_criterion"].startswith(f"{subject(claim)}, trace chat, h100-sxm: ")
