"""The page of a verdict: its charts hold the verdict's figures, its text is data, what is absent is a sentence, and it stays small."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from gates.attribution.severity import worsening
from gates.packet.packet import Packet
from gates.render.figures import bounds, change, subject
from gates.render.story import tell
from gates.report.elements import element, page
from gates.report.figure import drawing
from gates.report.layers import layers_section, split
from gates.report.report import MOST_CELLS, read_verdict, render_report
from gates.report.shift import FEWEST_BEYOND, LARGEST, shift, shift_section
from gates.report.source import ARMS, CellTables
from gates.report.tails import MOST_POINTS, curve, tails_section
from gates.report.windows import MOST, windows_section
from replay.errors import SpecError
from tests.render.verdict_documents import inconclusive, invalid, regression, release
from tests.report.pages import read_page

LIMIT_BYTES = 1_500_000
EVERY = [regression, release, inconclusive, invalid]
NOTHING = Packet(where="verdict.json", names=frozenset(("verdict.json",)), read=lambda name: b"")


def rendered(document):
    return read_page(render_report(document, NOTHING))


def section(make, *arguments):
    with drawing():
        return read_page(page("test", make(*arguments)))


def requests(n, *, factor=1.0, seed=1):
    values = np.random.default_rng(seed).lognormal(0.0, 1.0, n) * factor
    lengths = np.arange(n, dtype=float) % 1000 + 1
    names = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
    return {**dict.fromkeys(names, values), "arrival_s": np.arange(n) * 0.1, "prompt_tokens": lengths, "output_tokens": lengths}


def pair_of(n, factor=1.1):
    return CellTables(requests={"baseline": requests(n), "candidate": requests(n, factor=factor)}, paired=True)


@pytest.mark.parametrize("make", EVERY)
def test_a_page_of_a_verdict_says_first_what_was_decided_and_whose_it_is(make):
    document = make()
    found = rendered(document)
    predicate, story = document["predicate"], tell(document)
    first = found.one("header")
    assert first.one("h1").text == f"{predicate['decision']} - {story.headline}"
    assert first.attributes["class"] == f"verdict {predicate['decision']} {predicate['basis']}"
    text = found.one("dl", class_="facts").text if not predicate["evidence"] else found.all("dl", class_="facts")[0].text
    for owner in predicate["owners"]:
        assert owner["owner"] in text
    for name in ("first_failing_stage", "bottleneck_class"):
        assert predicate[name] is None or predicate[name].replace("_", " ") in text


def test_what_to_undo_stands_with_its_patch():
    found = rendered(regression()).one("section", id="undo")
    assert found.one("pre").text == regression()["predicate"]["mitigation"]["patch"]
    assert "gemm.tile: [256, 128, 64] -> [128, 128, 64]" in found.text


@pytest.mark.parametrize("make", EVERY)
def test_the_forest_plot_holds_the_verdicts_own_figures_and_stands_in_their_order(make):
    claims = {f"{subject(claim)} on {claim['trace']} / {claim['hardware']}": claim for claim in make()["predicate"]["claims"]}
    chart = rendered(make()).one("section", id="claims").all("figure", id="forest")
    if not any(claim["interval"] for claim in claims.values()):
        assert chart == []
        return
    places = {}
    for mark in chart[0].all("circle", class_="hit"):
        name, _, said = mark.text.partition(": ")
        claim = claims[name]
        assert f"{change(claim)}, bounds {bounds(claim)}" in said
        assert claim["outcome"] in said
        places[float(mark.attributes["cx"])] = worsening(claim) / claim["margin"]
    ordered = [places[x] for x in sorted(places)]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize("make", EVERY)
def test_the_table_has_every_claim(make):
    predicate = make()["predicate"]
    heads = [row[0] for row in rendered(make()).one("section", id="claims").rows]
    assert {subject(claim) for claim in predicate["claims"]} <= set(heads)


def test_where_no_claim_has_bounds_a_sentence_stands_instead_of_a_chart():
    document = copy.deepcopy(inconclusive())
    for claim in document["predicate"]["claims"]:
        claim["interval"] = None
    found = rendered(document).one("section", id="claims")
    assert not found.all("svg")
    assert "No claim has bounds" in found.text


@pytest.mark.parametrize("make", EVERY)
def test_without_evidence_every_section_is_a_sentence_and_no_chart_is_empty(make):
    found = rendered(make())
    for key in ("shift", "tails", "windows", "layers", "roofline", "cohorts"):
        part = found.one("section", id=key)
        assert not part.all("svg"), key
        assert part.all("p"), key
    for figure in found.all("figure"):
        assert figure.marks
        assert figure.all("table")


def test_attribution_holds_every_row_and_columns_that_a_later_verdict_may_have():
    document = copy.deepcopy(regression())
    rows = document["predicate"]["attribution"]
    rows[0]["cohort"] = "long prompts"
    rows.append({**rows[0], "knob": "batching.max_running", "effect": -0.02, "share": -0.08, "interval": {"lower": -0.03, "upper": 0.0}})
    found = rendered(document).one("section", id="attribution")
    table = found.all("table")[-1].rows
    assert table[0][-1] == "cohort"
    assert [row[0] for row in table[1:]] == ["gemm.tile", "batching.max_running"]
    assert table[2][6] == "-3.0 % .. 0 %"
    assert any("gemm.tile: +24.0 %, 100 % of the change" in mark for mark in found.one("figure").marks)
    assert any("+8 % of the change" in mark for mark in found.one("figure").marks)


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></script><script src=//evil.example></script>",
    "</svg><iframe src=javascript:alert(1)>",
    "$x_{\\frac",
    "a\u202eb\x00\x1bc\ud800",
    "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 40,
    "{{constructor}} ${7*7} &lt;b&gt; ]]> --> <!--",
]


def hostile(value, name):
    """Return a document in which every text that people write is a hostile name."""
    written = {"trace", "hardware", "model", "owner", "contact", "knob", "name", "patch", "message", "finding", "reason", "revert_cost"}
    if isinstance(value, dict):
        return {key: name if key in written and isinstance(own, str) else hostile(own, name) for key, own in value.items()}
    return [hostile(one, name) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_shown_and_never_read_as_markup(name):
    document = hostile(regression(), name)
    clean = rendered(regression())
    found = rendered(document)
    assert [node.tag for node in found.all("script")] == ["script"]
    assert found.one("script").text == clean.one("script").text
    assert {node.tag for node in found.all()} <= {node.tag for node in clean.all()}
    events = {key for node in found.all() for key in node.attributes if key.startswith("on")}
    assert events == set()
    assert all(node.attributes["href"].startswith("#") for node in found.all() if "href" in node.attributes)
    plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    assert plain in found.one("main").text


def test_a_page_loads_and_sends_nothing_and_allows_its_own_script_alone():
    data = render_report(regression(), NOTHING)
    found = read_page(data)
    [policy] = [node.attributes["content"] for node in found.all("meta") if node.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    assert not found.all("link")
    assert not [node for node in found.all() if "src" in node.attributes]
    assert b"http://" not in data.replace(b"http://www.w3.org/", b"")
    assert b"https://" not in data


def test_the_same_verdict_gives_the_same_page():
    assert render_report(regression(), NOTHING) == render_report(regression(), NOTHING)


def test_no_two_elements_have_one_name_and_every_reference_is_met():
    with drawing():
        cells = [tails_section(pair_of(500), str(place)) + shift_section(pair_of(500), (), PLAN, str(place)) for place in range(2)]
        found = read_page(page("test", [part for cell in cells for part in cell]))
    names = [node.attributes["id"] for node in found.all() if "id" in node.attributes]
    assert len(names) == len(set(names))
    uses = {node.attributes["href"][1:] for node in found.all("use")}
    clips = {node.attributes["clip-path"][5:-1] for node in found.all() if "clip-path" in node.attributes}
    assert uses
    assert uses | clips <= set(names)


PLAN = {"blocks": 25, "seed": "7"}


@pytest.mark.parametrize("n", [1, 2, 99, 5000])
def test_a_tail_is_the_share_of_requests_that_took_at_least_so_long(n):
    ascending = np.sort(np.random.default_rng(n).lognormal(size=n))
    values, shares = curve(ascending)
    assert len(values) <= MOST_POINTS
    assert values[-1] == ascending[-1]
    np.testing.assert_allclose(shares, [(ascending >= value).mean() for value in values])


def test_a_shift_is_the_ratio_of_quantiles_and_its_band_holds_a_constant_factor():
    found = shift(pair_of(3000, 1.25), "e2e_s", blocks=25, seed=1)
    np.testing.assert_allclose(found.ratios, 1.25)
    np.testing.assert_allclose(found.band, 1.25)
    assert found.percents[-1] == 99.5  # 3 of 3000 lie beyond p99.9


def test_the_band_of_a_shift_contains_it_and_needs_requests_beyond_each_quantile():
    cell = CellTables(requests={"baseline": requests(2000), "candidate": requests(1500, seed=2)})
    found = shift(cell, "e2e_s", blocks=25, seed=1)
    assert (found.band[0] <= found.ratios).all()
    assert (found.ratios <= found.band[1]).all()
    assert (found.band[0] < found.band[1]).all()
    assert shift(pair_of(2 * FEWEST_BEYOND - 2), "e2e_s", blocks=25, seed=1) is None


def test_the_shift_marks_the_verdicts_claims_with_their_own_bounds():
    claims = [claim for claim in regression()["predicate"]["claims"] if claim["metric"] == "ttft_s"]
    found = section(shift_section, pair_of(2000), claims, PLAN, "0")
    marks = found.one("figure", id="shift-ttft-0").marks
    for claim in claims:
        if claim["stratum"] == "all":
            assert f"TTFT p{claim['percentile']:g}, claim: {change(claim)}, bounds {bounds(claim)}, {claim['outcome']}" in marks


def test_the_parts_of_a_layers_time_add_up_to_it():
    figures = {"time_s": 10.0, "compute_s": 7.0, "memory_stall_s": 3.0, "launch_s": 1.0, "sync_s": 0.5}
    assert split(figures) == (5.5, 3.0, 1.0, 0.5)
    cell = CellTables(layers={arm: [("mlp", figures), ("idle", dict.fromkeys(figures, 0.0))] for arm in ARMS})
    found = section(layers_section, cell, "0")
    assert [row[:3] for row in found.rows[1:]] == [["mlp", "baseline", "10 s"], ["mlp", "candidate", "10 s"]]
    assert "mlp, candidate: memory stall 3 s of 10 s" in found.marks


def windows(n):
    columns = {
        "start_s": np.arange(n) * 60.0,
        "length_s": np.full(n, 60.0),
        "mean_sequences": np.arange(n) * 1.0,
        "mean_waiting": np.ones(n),
    }
    return columns | {"clock_hz": np.full(n, 1.4e9), "power_w": np.full(n, 300.0), "temperature_c": np.arange(n) * 0.01 + 40}


def test_windows_of_a_long_run_are_joined_by_their_mean_and_by_the_highest_temperature():
    found = section(windows_section, CellTables(windows={arm: windows(1000) for arm in ARMS}), "0")
    rows = found.one("figure", id="time-batch-0").rows[1:]
    assert len(rows) <= MOST
    assert float(rows[0][1]) == pytest.approx(np.arange(17).mean())
    assert float(found.one("figure", id="time-temperature-0").rows[1][2]) == pytest.approx(40.16)
    assert {figure.attributes["id"] for figure in found.all("figure")} >= {"time-clock-0", "time-power-0"}


def test_figures_of_the_device_that_nobody_knows_are_named_in_a_sentence():
    unknown = {**windows(30), **{name: np.full(30, np.nan) for name in ("clock_hz", "power_w", "temperature_c")}}
    found = section(windows_section, CellTables(windows=dict.fromkeys(ARMS, unknown)), "0")
    assert "Not known here: clock, power, temperature" in found.text
    assert not found.all("figure", id="time-power-0")


def test_one_request_gives_sentences():
    cell = pair_of(1)
    for make in (lambda: shift_section(cell, (), PLAN, "0"), lambda: windows_section(cell, "0")):
        found = section(make)
        assert not found.all("svg")
        assert found.all("p")
    assert section(tails_section, cell, "0").all("figure")


def test_an_arm_that_never_waits_is_no_fault_of_a_tail():
    idle = {**requests(500), "queue_s": np.zeros(500)}
    found = section(tails_section, CellTables(requests={"baseline": requests(500), "candidate": idle}, paired=True), "0")
    chart = found.one("figure", id="tail-queue-0")
    assert {mark.split(",")[1].split(":")[0].strip() for mark in chart.marks} == {"baseline"}
    assert all(row[2] == "0 s" for row in chart.rows[1:])


def test_requests_that_were_all_refused_give_sentences():
    nothing = {name: np.full(50, np.nan) if name.endswith("_s") and name != "arrival_s" else own for name, own in requests(50).items()}
    cell = CellTables(requests={"baseline": nothing, "candidate": nothing}, paired=True)
    for make in (lambda: shift_section(cell, (), PLAN, "0"), lambda: windows_section(cell, "0"), lambda: tails_section(cell, "0")):
        found = section(make)
        assert not found.all("svg")
        assert found.all("p")


def test_many_cells_with_many_requests_stay_small(monkeypatch):
    document = copy.deepcopy(regression())
    predicate = document["predicate"]
    predicate["per_trace"] = [dict(predicate["per_trace"][0], trace=f"trace {place}") for place in range(12)]
    predicate["claims"] = [dict(claim, trace=f"trace {place}") for place in range(12) for claim in predicate["claims"]]
    parts = {"compute_s": 1.0, "memory_stall_s": 1.0, "launch_s": 1.0, "sync_s": 1.0, "time_s": 5.0}
    layers = [(f"layer{number}", parts) for number in range(14)]
    cell = CellTables(
        requests=pair_of(20_000).requests, paired=True, windows={arm: windows(2000) for arm in ARMS}, layers=dict.fromkeys(ARMS, layers)
    )
    monkeypatch.setattr("gates.report.report.cell_tables", lambda *_: (cell,) * 12)
    data = render_report(document, NOTHING)
    assert len(data) < LIMIT_BYTES
    found = read_page(data)
    assert len(found.one("section", id="tails").all("h3")) == MOST_CELLS
    assert "[1] TTFT p99" in found.one("figure", id="forest").one("svg").text
    assert f"{12 - MOST_CELLS} more cells" in found.one("section", id="tails").text


@pytest.mark.slow
def test_a_million_requests_stay_small(monkeypatch):
    cell = CellTables(requests=pair_of(1_000_000).requests, paired=True, windows={arm: windows(3000) for arm in ARMS})
    assert cell.requests["baseline"]["e2e_s"].size > LARGEST
    monkeypatch.setattr("gates.report.report.cell_tables", lambda *_: (cell,))
    data = render_report(regression(), NOTHING)
    assert len(data) < LIMIT_BYTES
    assert "There is no band" in read_page(data).one("section", id="shift").text


def test_a_verdict_of_another_version_is_refused_in_a_sentence():
    newer = json.dumps({**regression(), "predicateType": "https://replay-gate.dev/gate-verdict/v9"}).encode()
    with pytest.raises(SpecError, match="predicateType"):
        read_verdict(Packet(where="other.json", names=frozenset(), read=lambda _: newer))


def test_text_beside_elements_keeps_its_order():
    assert read_page(page("t", [element("p", "a", element("b", "<i>"), "c\u2028d")])).one("p").text == "a<i>c\N{REPLACEMENT CHARACTER}d"


def test_the_cause_is_told_in_tables_of_stages_cohorts_and_owners():
    document = copy.deepcopy(regression())
    predicate = document["predicate"]
    predicate["stages"] = [
        {"stage": "tiling", "check": "tile_cost", "holds": False, "evidence": "steps take 31 % longer"},
        {"stage": "tiling", "check": "cache_pool", "holds": True, "evidence": None},
    ]
    predicate["cohorts"] = [
        {"dimension": "window", "cohort": "<b>late</b>", "requests": 1200, "traffic_ratio": 0.1, "regression_ratio": 0.75, "carries": True}
    ]
    stages, cohorts, owners = (found.rows for found in rendered(document).one("section", id="cause").all("table"))
    assert stages[1:] == [["tiling", "tile cost", "steps take 31 % longer"], ["tiling", "cache pool", "holds"]]
    assert cohorts[1] == ["window", "<b>late</b>", "1,200", "10.0%", "75.0%", "carries it"]
    assert [row[0] for row in owners[1:]] == [row["owner"] for row in predicate["owners"]]
