"""`--measurements`: a user's timings in the replay, in the sheet, in bundles and in the evidence of a gate."""

import csv
import json

import pytest

from replay.provenance import digest_bytes

HEADER = "attn_dtype,kv_dtype,batch_size,num_heads,num_kv_heads,head_dim,kv_len,ms\n"


@pytest.fixture
def small(project):
    """The demo on 600 requests with timings of its decode attention: 40 us, and twice what a rate of 1.3 TB/s would give."""
    assert project.replay("trace", "slice", "trace.parquet", "--out", "trace.parquet", "--max-requests", "600").exit_code == 0
    rows = [(batch, length) for batch in (1, 4, 16, 64, 256) for length in (1, 128, 512, 2048, 8192)]
    lines = [f"bfloat16,bfloat16,{batch},32,8,128,{length},{0.04 + batch * length * 4096 / 0.65e9:.6g}\n" for batch, length in rows]
    project.write("attention_generation_a100.csv", HEADER + "".join(lines))
    return project


MEASURED = ("--measurements", "attention_generation_a100.csv")


def sheet(project, *arguments):
    result = project.replay("map", "--format", "json", *arguments)
    assert result.exit_code == 0, result.stderr
    return {(row["step"], row["kernel"]): row for row in json.loads(result.stdout)["kernels"]}, result.stderr


def artifacts(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_sheet_shows_measured_costs_beside_modelled_ones(small):
    free, _ = sheet(small)
    known, said = sheet(small, *MEASURED, "--sequences", "16", "--context", "2048")
    assert said == ""
    assert free["decode", "attention_decode"]["source"] != "measured"
    assert (known["decode", "attention_decode"]["source"], known["decode", "attention_decode"]["error_ratio"]) == (
        "measured",
        pytest.approx(0.02),
    )
    took_s = 32 * (40e-6 + 16 * 2048 * 4096 / 0.65e12)  # beyond the cache, so that its state does not count
    assert known["decode", "attention_decode"]["time_s"] == pytest.approx(took_s, rel=0.02)
    assert known["decode", "gate_up"]["source"] == free["decode", "gate_up"]["source"] != "measured"
    assert "measured" in small.replay("map", *MEASURED).output


def test_a_gate_with_measurements_is_reproducible_and_carries_them(small):
    found = []
    for folder in ("one", "two"):
        result = small.replay("gate", "--candidate", "mapping.toml", *MEASURED, "--out", folder, "--format", "json")
        assert result.exit_code in (0, 20), result.stderr
        found.append((result.stdout, artifacts(small.folder / folder)))
    assert found[0] == found[1]
    predicate = json.loads(found[0][0])["predicate"]
    [record] = [record for record in predicate["inputs"] if record["role"] == "measurements"]
    table = (small.folder / MEASURED[1]).read_bytes()
    assert (record["name"], record["digest"], record["rows"], record["dropped"]) == (MEASURED[1], digest_bytes(table), 25, 0)
    [hardware] = [json.loads(data) for name, data in found[0][1].items() if name.endswith("/hardware.json")]
    rows = list(csv.DictReader(hardware["measured"][0]["table"].splitlines()))
    assert len(rows) == 25
    assert float(rows[0]["seconds"]) == pytest.approx(40e-6, rel=1e-3)
    assert {claim["ratio"] for claim in predicate["claims"] if claim["ratio"] is not None} == {1.0}
    assert not any(reason["code"] == "measurements_unused" for reason in predicate["reasons"])


def test_a_run_slows_down_with_its_measured_kernels_and_a_bundle_remembers_them(small):
    for more, out in (((), "free"), (MEASURED, "known")):
        assert small.replay("run", "--out", out, *more).exit_code == 0
    means = [json.loads(path.read_text())["summary"]["percentiles"]["tpot_s"] for path in sorted(small.folder.glob("*/*/run.json"))]
    assert means[1]["p50"] > means[0]["p50"]
    assert small.replay("baseline", "--out", "b.json", *MEASURED).exit_code == 0
    on = ("gate", "--baseline", "b.json", "--candidate", "mapping.toml", "--format", "json")
    alone, again = (json.loads(small.replay(*on, *more).stdout)["predicate"] for more in ((), MEASURED))
    assert alone == again
    assert [record["name"] for record in alone["inputs"] if record["role"] == "measurements"] == [MEASURED[1]]


def test_a_bundle_made_without_the_measurements_does_not_speak_for_a_gate_with_them(small):
    assert small.replay("baseline", "--out", "b.json").exit_code == 0
    result = small.replay("gate", "--baseline", "b.json", "--candidate", "mapping.toml", "--format", "json", *MEASURED)
    assert result.exit_code == 30
    assert json.loads(result.stdout)["predicate"]["reasons"][0]["code"] == "hardware_changed"


@pytest.mark.parametrize("verb", [("map",), ("run",), ("gate",), ("baseline", "--out", "b.json")])
def test_measurements_of_another_accelerator_are_a_usage_error(small, verb):
    (small.folder / MEASURED[1]).rename(small.folder / "attention_generation_l40s.csv")
    result = small.replay(*verb, "--measurements", "attention_generation_l40s.csv")
    assert result.exit_code == 2
    assert "kernels of l40s and none of a100-sxm-80gb; want kernels of an accelerator that is replayed" in result.stderr


def test_measurements_that_decide_nothing_are_said(small):
    small.write("attention_generation_a100.csv", HEADER + "bfloat16,bfloat16,1,24,8,128,1024,0.05\n")
    _, said = sheet(small, *MEASURED)
    assert "no kernel on a100-sxm-80gb has the shape, format and stack of one that attention_generation_a100.csv measures" in said
    result = small.replay("gate", "--candidate", "mapping.toml", "--format", "json", *MEASURED)
    assert "measurements_unused" in [reason["code"] for reason in json.loads(result.stdout)["predicate"]["reasons"]]
