"""`replay fit`: its forms agree, cells that cannot run say why, and bad input is one sentence."""

import csv
import json

import pytest

from replay import documents

LIMITS = ("--limit", "ttft_s=1", "--attainment", "0.9", "--mapping", "mapping.toml")


def test_text_json_and_csv_say_the_same_and_a_mapping_that_cannot_run_says_why(project):
    project.replay("trace", "slice", "trace.parquet", "--max-requests", "200", "--out", "small.parquet")
    project.write("split.toml", 'name = "split"\n[parallelism]\ntensor = 7\n')
    arguments = (
        "fit",
        *LIMITS,
        "--mapping",
        "split.toml",
        "--trace",
        "small.parquet",
        "--hardware",
        "a100-sxm-80gb",
        "--hardware",
        "b200-sxm",
    )
    arguments = (*arguments, "--price", "b200-sxm=5", "--device-watts", "1200", "--out", "fitted")
    result = project.replay(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    documents.check(document, "fit.v1", "the fit matrix")
    assert project.read("fitted/fit.json") == result.stdout
    rows = list(csv.DictReader(project.read("fitted/fit.csv").splitlines()))
    assert [row["hardware"] for row in rows] == [cell["hardware"] for cell in document["cells"]]
    assert [cell["problem"] is None for cell in document["cells"]] == [True, False, True, False]
    assert document["cells"][1]["e2e_p99_s"] is None
    assert [row["hardware"] for row in document["shortlist"] if row["fit"]] == ["b200-sxm"]
    text = project.replay(*arguments).stdout
    assert "dollars per million output tokens" in text
    assert document["cells"][1]["problem"] in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--hardware", "b200-sxm", "--device-watts", "1", *LIMITS), "when idle"),
        (("--price", "x", *LIMITS), "NAME=DOLLARS"),
        (("--price", "h100-sxm=-1", *LIMITS), "NAME=DOLLARS"),
        (("--model", "absent-model", *LIMITS), "absent-model"),
        ((), "no [slo]"),
    ],
)
def test_bad_input_is_one_sentence(project, arguments, says):
    result = project.replay("fit", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr
