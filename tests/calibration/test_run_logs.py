"""Request logs of servers: what is read, what is refused, and that a replayed run read back has its own metrics."""

import gzip
import json

import numpy as np
import pytest

from replay.calibration.runs.log import read_run_log
from replay.calibration.runs.predict import LogReplay, observed_latencies
from replay.calibration.runs.server import meta_path
from replay.errors import InputError, TraceError
from tests.calibration.run_logs import META, PARAMETERS, random_trace, served
from tests.step_tables import make_trace

FIRST = {"request_id": "r0", "input_toks": 10, "output_toks": 5, "arrival_time": 1.7e9, "queued_ts": 5.0, "first_token_ts": 6.0}


@pytest.mark.parametrize("seed", range(4))
def test_a_run_read_back_as_a_measured_log_has_the_metrics_of_the_run(tmp_path, seed):
    path, done = served(tmp_path, random_trace(seed))
    log = read_run_log(path)
    found, rows = observed_latencies(log), done.requests
    assert found.ttft_s == pytest.approx(rows["first_token_s"].to_numpy() - rows["arrival_s"].to_numpy(), abs=3e-9)
    assert found.e2e_s == pytest.approx(rows["finish_s"].to_numpy() - rows["arrival_s"].to_numpy(), abs=3e-9)
    single = rows["output_tokens"].to_numpy() == 1
    assert np.isnan(found.tpot_s).tolist() == single.tolist()
    gaps = (rows["finish_s"].to_numpy() - rows["first_token_s"].to_numpy())[~single] / (rows["output_tokens"].to_numpy()[~single] - 1)
    assert found.tpot_s[~single] == pytest.approx(gaps, abs=3e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_replay_of_the_log_under_the_parameters_it_was_made_with_is_the_log(tmp_path, seed):
    log = read_run_log(served(tmp_path, random_trace(seed))[0])
    found, observed = LogReplay(log).latencies(PARAMETERS), observed_latencies(log)
    assert found.ttft_s == pytest.approx(observed.ttft_s, abs=1e-7)
    assert found.e2e_s == pytest.approx(observed.e2e_s, abs=1e-7)


def test_clocks_are_aligned_by_the_request_that_was_queued_at_once(tmp_path):
    path, _ = served(tmp_path, random_trace())
    before = observed_latencies(read_run_log(path)).ttft_s
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for index, line in enumerate(lines):
        if index != 7:
            line["queued_ts"] += 1e-3 * (index % 5)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert observed_latencies(read_run_log(path)).ttft_s == pytest.approx(before, abs=1e-6)


def test_a_gzipped_log_is_the_same_log_and_finds_the_same_meta_file(tmp_path):
    path, _ = served(tmp_path, random_trace())
    packed = tmp_path / "run.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_run_log(packed).trace.digest == read_run_log(path).trace.digest
    assert read_run_log(packed).server == read_run_log(path).server


@pytest.mark.parametrize(
    ("log", "meta"),
    [
        ("a_requests.jsonl", "a_meta.json"),
        ("a.requests.jsonl.gz", "a.meta.json"),
        ("requests.jsonl", "meta.json"),
        ("a.jsonl", "meta.json"),
    ],
)
def test_the_meta_file_is_looked_for_beside_the_log(tmp_path, log, meta):
    assert meta_path(tmp_path / log) == tmp_path / meta


def test_rows_without_output_are_set_aside_and_that_is_noted(tmp_path):
    path, _ = served(tmp_path, random_trace())
    path.write_text(path.read_text() + json.dumps(FIRST | {"request_id": "x", "output_toks": 0}) + "\n")
    log = read_run_log(path)
    assert log.origin.requests_count == 60
    assert any("1 rows set aside" in note for note in log.notes)


def test_prefixes_of_a_trace_of_the_same_requests_are_found_in_the_cache(tmp_path):
    bare = random_trace()
    prompts = bare.requests["prompt_tokens"].to_pylist()
    columns = [bare.requests[name].to_numpy() for name in ("arrival_s", "prompt_tokens", "output_tokens")]
    shared = make_trace(*columns, prefix_blocks=[[1] * (tokens // 32) for tokens in prompts], prefix_block_tokens=32)
    path, done = served(tmp_path, shared)
    assert sum(done.requests["prefix_hit_tokens"].to_pylist()) > 0
    known, unknown = read_run_log(path, prefixes=shared), read_run_log(path)
    assert LogReplay(known).latencies(PARAMETERS).e2e_s == pytest.approx(observed_latencies(known).e2e_s, abs=1e-7)
    assert LogReplay(unknown).latencies(PARAMETERS).e2e_s.sum() > observed_latencies(unknown).e2e_s.sum()
    assert any("prompts are not in the log" in note for note in unknown.notes)
    assert known.notes == ()


def test_prefixes_of_other_requests_are_refused(tmp_path):
    path, _ = served(tmp_path, random_trace())
    with pytest.raises(TraceError, match="no request 'r0' of"):
        read_run_log(path, prefixes=random_trace(seed=1))


BAD_ROWS = {
    "no stamp": ({"queued_ts": None}, "queued_ts"),
    "text for a stamp": ({"first_token_ts": "soon"}, "first_token_ts"),
    "a first token before the request was queued": ({"first_token_ts": 1.0}, "a time after queued_ts"),
    "a last token before the first": ({"last_token_ts": 1.0}, "a time after first_token_ts"),
    "five tokens at once": ({"last_token_ts": 6.0}, "a time after first_token_ts"),
    "no arrival": ({"arrival_time": None}, "arrival_time"),
    "an arrival in milliseconds": ({"arrival_time": 1.7e12}, "arrival_time"),
    "a negative prompt": ({"input_toks": -1}, "input_toks"),
    "an id twice": ({"request_id": "r1"}, "r1"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_one_sentence_that_names_the_place(tmp_path, case):
    changes, says = BAD_ROWS[case]
    path, _ = served(tmp_path, random_trace())
    row = FIRST | {"request_id": "bad", "last_token_ts": 7.0} | changes
    path.write_text(path.read_text() + json.dumps({key: value for key, value in row.items() if value is not None}) + "\n")
    with pytest.raises(InputError) as caught:
        read_run_log(path)
    assert "run.jsonl" in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_short_log_another_format_and_no_file_are_refused(tmp_path):
    path, _ = served(tmp_path, random_trace(count=19))
    with pytest.raises(TraceError, match="19 completed requests"):
        read_run_log(path)
    (tmp_path / "run.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n")
    with pytest.raises(TraceError, match="no JSON Lines file"):
        read_run_log(tmp_path / "run.csv")
    with pytest.raises(InputError, match="nothing"):
        read_run_log(tmp_path / "nothing.jsonl")


def test_a_request_that_could_not_have_run_means_another_server(tmp_path):
    path, _ = served(tmp_path, random_trace())
    (tmp_path / "meta.json").write_text(json.dumps(META | {"kv_cache": {"num_gpu_blocks": 20}}))
    with pytest.raises(InputError, match="too long for the server it describes"):
        LogReplay(read_run_log(path)).latencies(PARAMETERS)
