"""Result files of every known tool are read in base units, whatever unit and layout they have."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replay.ingress.measured.measured_run import COMPLETED, FAILED, MEASURED_SCHEMA, TRUNCATED, ZERO_TOKENS
from replay.ingress.measured.reader import read_measured


@pytest.fixture
def written(tmp_path):
    def write(content, name="result"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_measured(path)

    return write


VLLM = {
    "date": "20260301-101500", "backend": "openai", "model_id": "org/m-8b",
    "num_prompts": 3, "request_rate": "inf", "max_concurrency": None,
    "duration": 1.9, "completed": 3,
    "total_input_tokens": 60, "total_output_tokens": 5, "request_goodput:": None, "input_lens": [20, 40, 7],
    "output_lens": [3, 1, 0], "ttfts": [0.11, 0.14, 0.0], "itls": [[0.02, 0.03], [], []], "errors": ["", "", ""], "median_ttft_ms": 125.0,
    "p99_ttft_ms": 139.7, "p99.9_tpot_ms": 40.0, "median_e2el": 0.15,
}  # fmt: skip


def test_a_vllm_file_mixes_seconds_in_arrays_and_milliseconds_in_figures(written):
    (run,) = written(json.dumps(VLLM))
    assert run.requests.schema == MEASURED_SCHEMA
    first, single, empty = run.requests.to_pylist()
    assert (first["ttft_s"], first["itl_s"], first["e2e_s"]) == (0.11, 0.03, pytest.approx(0.16))
    assert first["tpot_s"] == pytest.approx(0.025)
    assert (single["e2e_s"], single["tpot_s"], single["itl_s"]) == (0.14, None, None)
    assert (empty["status"], empty["ttft_s"]) == (ZERO_TOKENS, None)
    stated = {(one.metric, one.percentile): one.value_s for one in run.reported}
    assert stated == {("ttft_s", 50.0): 0.125, ("ttft_s", 99.0): 0.1397, ("tpot_s", 99.9): 0.04, ("e2e_s", 50.0): 0.15}
    assert run.facts.offered_rate_per_s == math.inf
    assert (run.facts.started_at, run.facts.arrivals, run.facts.identity) == ("2026-03-01T10:15:00", "none", "order")
    assert run.token_gaps.to_pylist() == [{"row": 0, "gap_s": 0.02}, {"row": 0, "gap_s": 0.03}]
    assert run.facts.to_document()["offered_rate_per_s"] == "inf"


def test_runs_appended_to_one_file_are_runs_and_a_bare_infinity_is_a_rate(written):
    lines = [json.dumps({"backend": "sglang", **VLLM, "request_rate": rate}) for rate in (1.0, math.inf)]
    assert [run.facts.offered_rate_per_s for run in written("\n".join(lines))] == [1.0, math.inf]


def test_an_aiperf_record_is_read_by_the_unit_beside_each_figure_and_warm_up_is_left_out(written):
    def record(number, phase="profiling", unit="ms", cancelled=False, error=None):
        metrics = {
            "time_to_first_token": {"value": 24.0, "unit": unit}, "request_latency": {"value": 44.0, "unit": unit},
            "inter_chunk_latency": {"value": [10.0, 10.5], "unit": unit}, "input_sequence_length": {"value": 58, "unit": "tokens"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
        }  # fmt: skip
        metadata = {
            "conversation_id": f"c{number}", "turn_index": 0, "request_start_ns": str(1796042847718815648 + number),
            "benchmark_phase": phase, "was_cancelled": cancelled,
        }  # fmt: skip
        return json.dumps({"metadata": metadata, "metrics": {} if error else metrics, "error": error})

    lines = [record(9, "warmup"), record(2, unit="us"), record(1), record(3, cancelled=True), record(4, error={"code": 500})]
    (run,) = written("\n".join(lines))
    rows = run.requests.to_pylist()
    assert [row["request_id"] for row in rows] == ["c2/0", "c1/0", "c3/0", "c4/0"]
    assert [row["status"] for row in rows] == [COMPLETED, COMPLETED, TRUNCATED, FAILED]
    assert (rows[1]["ttft_s"], rows[1]["itl_s"], rows[1]["tpot_s"]) == (0.024, 0.0105, pytest.approx(0.010))
    assert rows[0]["ttft_s"] == pytest.approx(24e-6)
    assert [row["arrival_s"] for row in rows] == pytest.approx([1e-9, 0.0, 2e-9, 3e-9], abs=1e-15)
    assert run.facts.notes == ("1 warm-up requests left out",)


@pytest.mark.parametrize(("unit", "scale"), [("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
@pytest.mark.parametrize("spelling", ["{}_{}", "{} ({})", "{}[{}]"])
def test_a_column_of_a_table_is_in_the_unit_that_its_name_declares(written, unit, scale, spelling):
    header = ",".join(["request_id", "output_tokens", spelling.format("TTFT", unit), spelling.format("e2e", unit)])
    (run,) = written(f"{header}\nx,3,{0.25 * scale},{1.25 * scale}\ny,1,{0.25 * scale},\n")
    first, second = run.requests.to_pylist()
    assert (first["ttft_s"], first["e2e_s"], first["tpot_s"]) == (pytest.approx(0.25), pytest.approx(1.25), pytest.approx(0.5))
    assert second["e2e_s"] is None


def test_a_table_means_the_same_as_csv_json_lines_and_parquet(written, tmp_path):
    rows = [{"request_id": f"r{i}", "arrival_s": 5.0 + i, "prompt_tokens": 10, "output_tokens": 4, "ttft_ms": 20.0 + i} for i in range(3)]
    csv = ",".join(rows[0]) + "\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t")
    tables = [written(csv)[0], written("\n".join(map(json.dumps, rows)))[0], read_measured(tmp_path / "t")[0]]
    assert tables[0].requests.equals(tables[1].requests)
    assert tables[0].requests.equals(tables[2].requests)
    assert tables[0].requests["arrival_s"].to_pylist() == [0.0, 1.0, 2.0]


def test_gzip_and_a_byte_order_mark_change_nothing(written):
    import gzip

    text = "request_id,ttft_ms\na,1\nb,2\n"
    plain = written(text)[0].requests
    assert written(gzip.compress(text.encode()))[0].requests.equals(plain)
    assert written("\ufeff" + text)[0].requests.equals(plain)


def test_statuses_of_a_table_are_told_apart(written):
    (run,) = written("ttft_s,status\n1,ok\n1,error\n1,cancelled\n1,\n1,never_fits\n")
    assert run.requests["status"].to_pylist() == [COMPLETED, FAILED, TRUNCATED, COMPLETED, FAILED]
    assert run.requests["ttft_s"].to_pylist() == [1, None, None, 1, None]


REAL = {
    "formats/vllm_bench/*.json": ("vLLM bench serve", [150]),
    "formats/vllm_bench_summary/*conc4.json": ("vLLM bench serve", [0]),
    "formats/sglang_bench/*.jsonl": ("SGLang bench_serving", [0] * 7),
    "formats/aiperf/baseline*.jsonl": ("AIPerf profile export", [100]),
    "formats/aiperf/baseline*.json": ("AIPerf summary", [0]),
    "formats/guidellm/*.json": ("GuideLLM report", [0, 0]),
    "formats/inference_perf/vllm.stage_5*": ("inference-perf stage report", [0]),
    "formats/llmperf/*.json": ("llmperf requests", [150]),
    "formats/mlperf_loadgen/*summary.txt": ("MLPerf LoadGen log", [0]),
    "formats/mlperf_loadgen/*detail.txt": ("MLPerf LoadGen log", [0]),
    "formats/vllm_engine_requests/*.jsonl": ("vLLM request log", [300]),
    "traces/aibrix_regression/v0.3.0/naive_output_4.1.csv": ("AIBrix regression CSV", [404]),
}


@pytest.mark.parametrize("pattern", REAL)
def test_a_real_file_is_recognised_by_its_content(shared, pattern):
    (path,) = (shared / "data").glob(pattern)
    runs = read_measured(path)
    name, rows = REAL[pattern]
    assert {run.facts.format for run in runs} == {name}
    assert [run.requests.num_rows for run in runs] == rows
    assert all(run.is_summary == (run.requests.num_rows == 0) for run in runs)
    assert all(run.reported for run in runs if run.is_summary)


def test_the_two_logs_of_an_mlperf_run_report_the_same_percentiles(shared):
    folder = shared / "data/traces/mlperf_loadgen/mixtral-8x7b_Server_8xMI325X"
    summary, detail = (read_measured(folder / f"mlperf_log_{kind}.txt")[0] for kind in ("summary", "detail"))
    assert set(summary.reported) == set(detail.reported)
    assert summary.facts.offered_rate_per_s == detail.facts.offered_rate_per_s == 420.0
    assert summary.facts.is_valid is detail.facts.is_valid is True
    assert {one.value_s for one in summary.reported if (one.metric, one.percentile) == ("ttft_s", 99.0)} == {1.96062033}


def test_aiperf_requests_and_its_own_summary_agree(shared):
    folder = shared / "data/formats/aiperf"
    (run,) = read_measured(folder / "baseline.profile_export.jsonl")
    (summary,) = read_measured(folder / "baseline.profile_export_aiperf.json")
    stated = {(one.metric, one.percentile): one.value_s for one in summary.reported}
    values = sorted(run.requests["ttft_s"].to_pylist())
    assert values[49] <= stated["ttft_s", 50.0] <= values[50]
    assert summary.facts.is_synthetic


def test_a_vllm_log_takes_its_facts_from_the_meta_file_beside_it(shared):
    (run,) = read_measured(shared / "data/traces/vllm_request_logs/RTX4090_Llama-3.1-8B_requests.jsonl")
    facts = run.facts
    assert (facts.model, facts.hardware) == ("meta-llama/Llama-3.1-8B", "NVIDIA GeForce RTX 4090")
    assert (facts.tool_version, facts.prefix_cache) == ("0.19.0", True)
    assert dict(facts.settings)["max_num_seqs"] == "256"
    # Percentiles stated in the data set's own description of the file (linear, so between two order statistics).
    values = sorted(run.requests["ttft_s"].to_pylist())
    assert values[149] <= 60.11 + 0.01
    assert values[150] >= 60.11 - 0.01


def test_a_conversation_that_an_aiperf_run_uses_again_is_another_request(written):
    def line(start_ns):
        metadata = {"conversation_id": "c", "turn_index": 0, "request_start_ns": start_ns}
        return json.dumps({"metadata": metadata, "metrics": {"request_latency": {"value": 1.0, "unit": "s"}}})

    (run,) = written("\n".join(map(line, (30, 10, 20))))
    assert run.requests["request_id"].to_pylist() == ["c/0#3", "c/0", "c/0#2"]


def test_a_parquet_table_is_read_as_the_same_rows_of_json_lines_are(written, tmp_path):
    rows = [
        {"ttft_ms": 20.0, "e2e_ms": 120.0, "output_tokens": 6, "status": "ok", "arrival_s": 7.5},
        {"ttft_ms": None, "e2e_ms": 120.0, "output_tokens": 6, "status": None, "arrival_s": 9.0},
        {"ttft_ms": 20.0, "e2e_ms": 20.0, "output_tokens": 1, "status": "completed", "arrival_s": 8.0},
        {"ttft_ms": 20.0, "e2e_ms": 10.0, "output_tokens": 3, "status": "", "arrival_s": 8.0},
        {"ttft_ms": 0.0, "e2e_ms": 0.0, "output_tokens": 0, "status": "200", "arrival_s": 8.0},
        {"ttft_ms": 5.0, "e2e_ms": 6.0, "output_tokens": 4, "status": "cancelled", "arrival_s": 8.0},
        {"ttft_ms": 5.0, "e2e_ms": 6.0, "output_tokens": None, "status": "timeout", "arrival_s": 8.0},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t")
    (parquet,) = read_measured(tmp_path / "t")
    (lines,) = written("\n".join(map(json.dumps, rows)))
    assert parquet.requests.to_pylist() == lines.requests.to_pylist()
    assert parquet.requests["status"].to_pylist() == [COMPLETED, COMPLETED, COMPLETED, COMPLETED, ZERO_TOKENS, TRUNCATED, FAILED]


def test_waiting_at_a_capped_client_counts_from_the_schedule(written):
    # A public report: 8 requests 0.1 s apart to a server of 0.5 s, one at a time; sent late by 0, 0.4, ... 2.8 s.
    waits = [0.4 * index for index in range(8)]
    starts = [100.0 + 0.5 * index for index in range(8)]
    fields = {**VLLM, "num_prompts": 8, "request_rate": 10.0, "max_concurrency": 1, "completed": 8}
    arrays = {"input_lens": [5] * 8, "output_lens": [2] * 8, "ttfts": [0.4] * 8, "itls": [[0.1]] * 8, "errors": [""] * 8}
    (counted,) = written(json.dumps({**fields, **arrays, "start_times": starts, "queue_times": waits}))
    assert sum(counted.requests["e2e_s"].to_pylist()) / 8 == pytest.approx(1.9)
    assert max(counted.requests["e2e_s"].to_pylist()) == pytest.approx(3.3)
    assert counted.requests["arrival_s"].to_pylist() == pytest.approx([0.1 * index for index in range(8)])
    assert counted.requests["tpot_s"].to_pylist() == pytest.approx([0.1] * 8)
    assert counted.facts.arrivals == "scheduled"
    (hidden,) = written(json.dumps({**fields, **arrays, "start_times": starts}))
    assert max(hidden.requests["e2e_s"].to_pylist()) == pytest.approx(0.5)
    assert hidden.facts.arrivals == "sent"


def test_the_artifact_folder_of_aiperf_is_read_whole(shared, tmp_path):
    folder = shared / "data/formats/aiperf"
    for kind in ("profile_export.jsonl", "profile_export_aiperf.json", "profile_export_aiperf.csv"):
        (tmp_path / kind).write_bytes((folder / f"baseline.{kind}").read_bytes())
    (run,) = read_measured(tmp_path)
    facts = run.facts
    assert (run.requests.num_rows, facts.file_name, facts.format) == (100, "profile_export.jsonl", "AIPerf profile export")
    assert (facts.model, facts.tool_version, facts.is_synthetic, facts.expected_count) == ("mock-model", "0.13.0", True, 100)


def test_a_key_may_first_come_in_a_later_object(written):
    (run,) = written(
        '{"ttft_s": 1, "request_id": "a"}\n{"ttft_s": 2, "request_id": "b", "status": "error"}\n{"ttft_s": 3, "request_id": "c"}\n'
    )
    assert run.requests["status"].to_pylist() == [COMPLETED, FAILED, COMPLETED]
