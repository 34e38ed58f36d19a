"""`report.html` of `replay gate`, and `replay report`: the charts hold what the evidence holds, and every kind of input has its page."""

import csv
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gates.render.figures import format_value
from replay.ingress.native import write_trace
from replay.ingress.normalize import slice_trace
from replay.ingress.reader import read_trace
from replay.units import format_seconds
from tests.report.pages import read_page
from tests.runs import lognormal_s

OUT = "replay-out"
LABELS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "end-to-end latency"}


@pytest.fixture
def gated(project):
    project.replay("gate")
    return project


def page_of(project, name=f"{OUT}/report.html"):
    return read_page((project.folder / name).read_bytes())


def predicate_of(project):
    return json.loads(project.read(f"{OUT}/verdict.json"))["predicate"]


def rows_of(project, name):
    [path] = (project.folder / OUT / "evidence").glob(f"*/{name}")
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_charts_of_a_gate_hold_the_figures_of_its_verdict(gated):
    found, predicate = page_of(gated), predicate_of(gated)
    assert found.one("header").text.startswith(predicate["decision"])
    checked = 0
    for claim in predicate["claims"]:
        if claim["metric"] in LABELS and claim["percentile"] and claim["stratum"] == "all":
            marks = found.one("figure", id=f"tail-{claim['metric'].removesuffix('_s')}-0").marks
            for arm in ("baseline", "candidate"):
                start = f"{LABELS[claim['metric']]} p{claim['percentile']:g}, {arm}: {format_value(claim[arm], 's')} "
                assert any(mark.startswith(start) for mark in marks), start
                checked += 1
    assert checked >= 6
    for row in rows_of(gated, "layers.csv"):
        if float(row["time_s"]):
            seconds = format_seconds(float(row["time_s"]))
            assert [row["layer_type"], row["arm"], seconds] in [cells[:3] for cells in found.one("figure", id="layers-0").rows]


def test_windows_add_up_to_the_steps(gated):
    totals = {row["arm"]: row for row in rows_of(gated, "steps.csv")}
    for arm, total in totals.items():
        own = [row for row in rows_of(gated, "windows.csv") if row["arm"] == arm]
        assert sum(int(row["steps"]) for row in own) == int(total["steps"])
        assert sum(float(row["time_s"]) for row in own) == pytest.approx(float(total["busy_s"]))


def test_kernels_that_moved_and_knobs_that_differ_are_named(gated):
    found = page_of(gated)
    assert {row[0] for row in found.one("section", id="mapping").rows} >= {"gemm.tile@decode", "decode: gate_up"}
    moved = {row[0] for row in found.one("figure", id="roofline-decode-0").rows if row[-1] == "yes"}
    assert "gate_up" in moved
    sheets = {arm: {row["kernel"]: row for row in rows_of(gated, f"{arm}-mapping-sheet.csv") if row["step"] == "decode"} for arm in ARMS}
    for arm in ARMS:
        row = sheets[arm]["gate_up"]
        rate, intensity = float(row["flops"]) / float(row["time_s"]), float(row["flops"]) / float(row["bytes"])
        start = f"gate_up, {arm}: {intensity:.3g} FLOP/byte, {rate / 1e12:.3g} TFLOP/s"
        assert any(mark.startswith(start) for mark in found.one("figure", id="roofline-decode-0").marks)


ARMS = ("baseline", "candidate")


def test_the_page_is_made_again_from_folder_zip_and_verdict_and_is_part_of_the_packet(gated):
    gated.replay("gate", "--packet", "packet.zip")
    first = gated.folder / OUT / "report.html"
    for place in (OUT, "packet.zip", f"{OUT}/verdict.json"):
        result = gated.replay("report", place, "--out", "again.html")
        assert (result.exit_code, result.stdout) == (0, "again.html\n")
        assert (gated.folder / "again.html").read_bytes() == first.read_bytes(), place
    assert "report.html" in zipfile.ZipFile(gated.folder / "packet.zip").namelist()
    assert gated.replay("verify", OUT).exit_code == 0
    first.write_bytes(first.read_bytes().replace(b"rollback", b"release!", 1))
    assert gated.replay("verify", OUT).exit_code != 0


@pytest.mark.parametrize("name", ["manifest.json", "*/requests.parquet", "*/layers.csv"])
def test_evidence_that_is_not_the_verdicts_own_is_refused(gated, name):
    [path] = (gated.folder / OUT / "evidence").glob(name)
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    result = gated.replay("report", OUT)
    assert result.exit_code == 2
    assert path.name in result.stderr
    assert not (gated.folder / "report.html").exists()


def test_a_verdict_alone_says_what_is_missing(gated):
    gated.write("alone.json", gated.read(f"{OUT}/verdict.json"))
    assert gated.replay("report", "alone.json").exit_code == 0
    found = page_of(gated, "report.html")
    assert found.one("section", id="claims").all("svg")
    assert "No roofline" in found.one("section", id="roofline").text


def test_a_run_has_a_page_of_its_own(project):
    assert project.replay("run", "--out", "runs").exit_code == 0
    [folder] = (project.folder / "runs").iterdir()
    assert project.replay("report", folder, "--out", "run.html").exit_code == 0
    found = page_of(project, "run.html")
    figures = json.loads((folder / "run.json").read_text())["summary"]["percentiles"]["ttft_s"]
    assert any(
        mark.startswith(f"TTFT p99, run: {format_seconds(figures['p99'])} ") for mark in found.one("figure", id="tail-ttft-run").marks
    )
    assert "candidate" not in found.one("main").text


def test_a_trace_of_one_request_and_invalid_evidence_have_pages_without_empty_charts(project):
    trace = slice_trace(read_trace(project.folder / "trace.parquet"), max_requests=1)
    write_trace(trace, project.folder / "trace.parquet")
    assert project.replay("gate").exit_code in (10, 20, 30)
    found = page_of(project)
    assert all(figure.marks for figure in found.all("figure"))
    assert not found.one("section", id="shift").all("svg")
    assert project.replay("gate", "--baseline", "mapping.toml", "--candidate", measured(project, "a.parquet", 1.0)).exit_code == 30
    invalid = page_of(project)
    assert "invalid_evidence" in invalid.one("header").attributes["class"]
    assert not invalid.all("svg")
    assert "There is no evidence" in invalid.one("section", id="evidence").text


def test_runs_of_which_every_request_failed_have_a_page_without_charts(empty):
    arms = (measured(empty, name, 1.0, status=["failed"] * 3000) for name in ("a.parquet", "b.parquet"))
    assert empty.replay("gate", "--baseline", next(arms), "--candidate", next(arms), "--out", OUT).exit_code == 30
    found = page_of(empty)
    assert not found.all("svg")
    assert "No latencies of single requests" in found.one("section", id="tails").text


def measured(project, name, factor, **more):
    values = [factor * value for value in lognormal_s(3000).tolist()]
    columns = {"request_id": [f"r{i}" for i in range(3000)], "arrival_s": [0.1 * i for i in range(3000)]}
    columns |= {"prompt_tokens": [100] * 3000, "output_tokens": [11] * 3000, "ttft_s": values, "e2e_s": [2 * value for value in values]}
    pq.write_table(pa.table(columns | more), project.folder / name)
    return name


def test_measured_runs_show_tails_and_say_what_they_do_not_bring(empty):
    arms = measured(empty, "a.parquet", 1.0), measured(empty, "b.parquet", 1.3)
    assert empty.replay("gate", "--baseline", arms[0], "--candidate", arms[1], "--out", OUT).exit_code == 10
    found, predicate = page_of(empty), predicate_of(empty)
    claim = next(claim for claim in predicate["claims"] if claim["metric"] == "ttft_s" and claim["percentile"] == 99)
    marks = found.one("figure", id="tail-ttft-0").marks
    assert any(mark.startswith(f"TTFT p99, candidate: {format_value(claim['candidate'], 's')} ") for mark in marks)
    assert "Measured runs do not say" in found.one("section", id="layers").text
    assert found.one("section", id="shift").all("svg")


def test_a_file_that_is_no_page_of_ours_stays(gated):
    gated.write("mine.html", "<p>mine")
    result = gated.replay("report", OUT, "--out", "mine.html")
    assert result.exit_code == 2
    assert "no page of this tool" in result.stderr
    assert gated.read("mine.html") == "<p>mine"
    gated.write(f"{OUT}/report.html", "<p>mine")
    assert gated.replay("gate").exit_code == 2


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("verdict.txt", "{}", "verdict"),
        ("cut.json", '{"_type"', "cut.json"),
        ("notes.json", "[]", "notes.json"),
        ("gone.json", None, "gone.json"),
    ],
)
def test_what_is_neither_verdict_nor_packet_nor_run_is_one_sentence(project, name, text, says):
    if text is not None:
        project.write(name, text)
    result = project.replay("report", name)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (project.folder / "report.html").exists()
