"""`replay sweep`: its forms agree, its files hold to the schema, and bad input is one sentence."""

import csv
import json

import pytest

from replay import documents

LIMITS = ("--limit", "ttft_s=1", "--limit", "tpot_s=0.05", "--attainment", "0.9")


@pytest.fixture
def small(project):
    project.replay("trace", "slice", "trace.parquet", "--max-requests", "300", "--out", "small.parquet")
    return project


def test_text_json_and_csv_say_the_same(small):
    arguments = ("sweep", "--mapping", "mapping.toml", "--mapping", "mapping.candidate.toml", "--trace", "small.parquet", *LIMITS)
    arguments = (*arguments, "--rates", "0.5,1,2", "--out", "swept")
    result = small.replay(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    documents.check(document, "sweep.v1", "the sweep")
    assert small.read("swept/sweep.json") == result.stdout
    rows = list(csv.DictReader(small.read("swept/sweep.csv").splitlines()))
    points = [point for cell in document["cells"] for curve in cell["curves"] for point in curve["points"]]
    assert [float(row["ttft_s.p95"]) for row in rows] == [point["latency_s"]["ttft_s.p95"] for point in points]
    assert len(points) == 6
    text = small.replay(*arguments).stdout
    for curve in document["cells"][0]["curves"]:
        assert f"highest sustainable rate_ratio: {curve['sustainable']['load']:.4g}" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--rates", "1,x", *LIMITS), "numbers above 0"),
        (("--rates", "0", *LIMITS), "numbers above 0"),
        (("--concurrency", "1.5", *LIMITS), "whole numbers"),
        (("--rates", "1", "--concurrency", "1", *LIMITS), "either --rates or --concurrency"),
        (("--rates", "1"), "no [slo]"),
        (("--rates", "1", "--limit", "ttft=1"), "NAME=SECONDS"),
        (("--rates", "1", "--limit", "ttft_s=-1"), "NAME=SECONDS"),
        (("--mapping", "absent.toml", "--rates", "1", *LIMITS), "no such file"),
    ],
)
def test_bad_input_is_one_sentence(project, arguments, says):
    result = project.replay("sweep", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("verb", ["sweep", "fit"])
def test_a_folder_of_somebody_elses_files_is_not_written_to(small, verb):
    (small.folder / "mine").mkdir()
    small.write("mine/notes.txt", "keep")
    rates = ("--rates", "1") if verb == "sweep" else ()
    result = small.replay(verb, "--mapping", "mapping.toml", "--trace", "small.parquet", *rates, *LIMITS, "--out", "mine")
    assert result.exit_code == 2
    assert "notes.txt" in result.stderr
    assert [path.name for path in (small.folder / "mine").iterdir()] == ["notes.txt"]
