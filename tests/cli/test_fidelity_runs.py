"""`replay calibrate --from-run` and `replay fidelity --run` on a made-up server's request log."""

import json

import pytest

from replay import documents
from tests.calibration.run_logs import META, random_trace, served


@pytest.fixture
def run(empty):
    """Return the empty project with a log and its meta file in it."""
    served(empty.folder, random_trace())
    return empty


def calibration(path="fits/run.json", **changes):
    """Write a calibration of another server than the log's, so that no test but one waits for a fit."""
    document = documents.read_json_object(documents.shipped_path("schemas") / "examples" / "run-calibration.v1.valid.json", "an example")
    return json.dumps(document | changes)


@pytest.mark.slow
def test_a_log_is_fitted_twice_alike_and_then_judged_on_its_other_half(run):
    done = run.replay("calibrate", "--from-run", "run.jsonl", "--out", "fits")
    assert done.exit_code == 0, done.stderr
    assert "wrote fits/run.json: fitted on 30 of 60 requests" in done.stdout
    documents.check(json.loads(run.read("fits/run.json")), "run-calibration.v1", "run.json")
    assert run.replay("calibrate", "--from-run", "run.jsonl", "--out", "again").exit_code == 0
    assert run.read("again/run.json") == run.read("fits/run.json")
    judged = run.replay("fidelity", "--run", "run.jsonl", "--calibration", "fits/run.json")
    assert judged.exit_code == 0, judged.stderr
    assert "fitted on its own first half; judged on requests 31 to 60 of 60" in judged.stdout
    table = done.stdout.splitlines()[1:]
    assert judged.stdout.splitlines()[2 : 2 + len(table)] == table


def test_a_calibration_of_another_log_is_judged_on_all_requests(run):
    run.write("other.json", calibration())
    result = run.replay("fidelity", "--run", "run.jsonl", "--calibration", "other.json", "--startup-s", "0.06", "--format", "json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["first_judged"] == 0
    assert [error["metric"] for error in document["errors"]] == ["ttft_s", "tpot_s", "e2e_s"]
    # The example holds the parameters of the made-up server: nothing is left over, in any percentile or step.
    assert max(abs(place["error_ratio"]) for error in document["errors"] for place in error["percentiles"]) < 1e-6
    assert document["grouping"]["alike_count"] == document["grouping"]["steps_count"]


FIDELITY, CALIBRATE = ("fidelity", "--run", "run.jsonl"), ("calibrate", "--from-run", "run.jsonl", "--out", "fits")
BAD = {
    "no log": (("fidelity", "--run", "none.jsonl"), "none.jsonl"),
    "no such calibration": ((*FIDELITY, "--calibration", "none.json"), "none.json"),
    "a calibration of kernels": ((*FIDELITY, "--calibration", "kernels.json"), "kernels.json"),
    "a calibration without a base": ((*FIDELITY, "--calibration", "broken.json"), "base_s"),
    "no meta file": ((*FIDELITY, "--meta", "none.json"), "none.json"),
    "another engine": ((*CALIBRATE, "--meta", "v0.json"), "V1 engine"),
    "no prefixes": ((*CALIBRATE, "--prefixes", "none.parquet"), "none.parquet"),
    "a short log": (("calibrate", "--from-run", "short.jsonl", "--out", "fits"), "at least 20"),
    "a csv": (("calibrate", "--from-run", "a.csv", "--out", "fits"), "no JSON Lines file"),
    "a log of another server": ((*CALIBRATE, "--meta", "small.json"), "too long for the server"),
    "a folder in the way": (("calibrate", "--from-run", "run.jsonl", "--out", "a.csv"), "a.csv"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_input_is_one_sentence(run, case):
    arguments, says = BAD[case]
    run.write("kernels.json", json.dumps({"schema_version": "1", "hardware": "h100-sxm", "families": []}))
    run.write("broken.json", calibration().replace('"base_s": 0.01', '"base_s": -0.01'))
    run.write("v0.json", json.dumps(META | {"vllm_version": "0.6.0"}))
    run.write("small.json", json.dumps(META | {"kv_cache": {"num_gpu_blocks": 20}}))
    run.write("short.jsonl", "\n".join(run.read("run.jsonl").splitlines()[:19]))
    run.write("a.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n")
    result = run.replay(*arguments)
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert len([line for line in result.stderr.splitlines() if not line.startswith(("reading", "fitting"))]) == 1


TOGETHER = [
    ("fidelity",),
    ("fidelity", "--run", "run.jsonl", "--measurements", "k.csv"),
    ("fidelity", "--run", "run.jsonl", "--hardware", "h100-sxm"),
    ("fidelity", "--measurements", "k.csv", "--startup-s", "0"),
    ("fidelity", "--measurements", "k.csv", "--meta", "meta.json"),
    ("calibrate", "--out", "fits"),
    ("calibrate", "--out", "fits", "--from-run", "run.jsonl", "--measurements", "k.csv"),
    ("calibrate", "--out", "fits", "--from-run", "run.jsonl", "--stack", "vllm"),
    ("calibrate", "--out", "fits", "--from-run", "run.jsonl", "--update"),
    ("calibrate", "--out", "fits", "--measurements", "k.csv", "--prefixes", "t.parquet"),
]


@pytest.mark.parametrize("arguments", TOGETHER, ids=" ".join)
def test_options_that_have_no_meaning_together_are_refused(run, arguments):
    result = run.replay(*arguments)
    assert result.exit_code == 2
    assert "either" in result.stderr or "no meaning" in result.stderr
