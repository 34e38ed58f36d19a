"""Every format family on real files and on small hand-made ones: row counts, exactness, units, clocks, labels."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replay.ingress.native import write_trace
from replay.ingress.reader import known_readers, read_trace
from replay.ingress.summary import summarize
from replay.ingress.trace import Trace

REAL = [
    # file, rows read, rows kept, kind, reasons
    ("traces/azure_llm_2023/AzureLLMInferenceTrace_conv.csv", 19366, 19366, "recorded", {}),
    ("traces/vidur_processed/splitwise_conv.csv", 19366, 19366, "recorded", {}),
    ("traces/vidur_processed/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", 28257, 28257, "reconstructed", {}),
    ("traces/mooncake/conversation_trace.jsonl", 12031, 12031, "recorded", {}),
    ("traces/burstgpt/BurstGPT_1_rows1-250.csv", 250, 240, "recorded", {"failed_zero_tokens": 10}),
    ("traces/burstgpt/BurstGPT_3_rows1-60.csv", 60, 60, "recorded", {}),
    ("traces/aibrix_workload/8min_up_and_down.noprompt.jsonl", 2026, 2024, "reconstructed", {"zero_output_tokens": 2}),
    ("traces/vllm_request_logs/RTX4090_Llama-3.1-8B_requests.jsonl", 300, 300, "recorded", {}),
    ("traces/vllm_request_logs/RTXPRO6000_Llama-3.1-8B_requests.jsonl", 300, 300, "recorded", {}),
    ("traces/vllm_request_logs/RTXPRO6000_Qwen3-32B_requests.jsonl", 300, 300, "recorded", {}),
    ("formats/azure_llm_csv/AzureLLMInferenceTrace_conv.head5000.csv", 5000, 5000, "recorded", {}),
    ("formats/mooncake_trace/conversation_trace.head800.jsonl", 800, 800, "recorded", {}),
    ("formats/vllm_engine_requests/RTX4090_Llama-3.1-8B.requests.jsonl", 300, 300, "recorded", {}),
]


def write(folder: Path, text: str | bytes, name: str = "trace.dat") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def column(trace: Trace, name: str) -> list:
    return trace.requests[name].to_pylist()


@pytest.mark.parametrize(("file", "rows_read", "rows_kept", "kind", "reasons"), REAL)
def test_real_files_import_with_their_published_row_counts(shared, file, rows_read, rows_kept, kind, reasons):
    provenance = (trace := read_trace(shared / "data" / file)).provenance
    assert (provenance.rows_read, provenance.rows_kept, provenance.kind) == (rows_read, rows_kept, kind)
    assert dict(provenance.set_aside) == reasons
    assert trace.requests.num_rows == rows_kept
    arrivals = trace.requests["arrival_s"]
    if trace.has_arrivals:
        assert arrivals[0].as_py() == 0.0
        assert (np.diff(arrivals.to_numpy()) >= 0).all()
    else:
        assert arrivals.null_count == rows_kept
        assert any("arrivals must be generated" in note for note in provenance.notes)


def test_azure_and_vidur_forms_of_the_same_requests_are_equal_after_rounding_arrivals_to_100_ns(shared):
    azure = read_trace(shared / "data/traces/azure_llm_2023/AzureLLMInferenceTrace_conv.csv")
    vidur = read_trace(shared / "data/traces/vidur_processed/splitwise_conv.csv")
    for name in ("request_id", "prompt_tokens", "output_tokens"):
        assert azure.requests[name] == vidur.requests[name]
    azure_ticks, vidur_ticks = (np.rint(trace.requests["arrival_s"].to_numpy() * 1e7) for trace in (azure, vidur))
    assert (azure_ticks == vidur_ticks).all()


def test_azure_times_equal_exact_decimal_arithmetic_on_every_real_row(shared):
    path = shared / "data/traces/azure_llm_2023/AzureLLMInferenceTrace_conv.csv"
    with path.open(newline="") as file:
        clocks = [row["TIMESTAMP"].split(" ")[1].split(":") for row in csv.DictReader(file)]
    ticks = [(int(h) * 3600 + int(m) * 60) * 10**7 + int(s.replace(".", "")) for h, m, s in clocks]
    trace = read_trace(path)
    assert column(trace, "arrival_s") == [(tick - ticks[0]) / 10**7 for tick in ticks]
    assert trace.provenance.recorded_at == "2023-11-16T18:15:46.68059"


def test_seven_digit_fractions_crlf_and_a_missing_last_newline_are_read_exactly(tmp_path):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9999999,7,1\r\n2023-11-17 00:00:00.0000001,8,2"
    trace = read_trace(write(tmp_path, text))
    assert column(trace, "arrival_s") == [0.0, 2e-7]
    assert column(trace, "output_tokens") == [1, 2]


def test_zone_offsets_are_converted_to_utc(tmp_path):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,10,1\n"
        "2024-05-10 02:00:01.009930+02:00,11,1\n2024-05-09T19:30:02.009930-0430,12,1\n2024-05-10 00:00:03Z,13,1\n"
    )
    trace = read_trace(write(tmp_path, text))
    assert column(trace, "arrival_s") == [0.0, 1.0, 2.0, 2.99007]
    assert trace.provenance.recorded_at == "2024-05-10T00:00:00.00993Z"


def test_burstgpt_columns_are_found_by_name_and_session_may_be_empty(tmp_path):
    text = (
        "Log Type,Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens\n"
        "API log,19440110.0,,0,GPT-4,5,6,11\nConversation log,19440110.5,s1,3,ChatGPT,7,8,16\n"
    )
    trace = read_trace(write(tmp_path, text))
    assert column(trace, "arrival_s") == [0.0, 0.5]
    assert column(trace, "session_id") == [None, "s1"]
    assert column(trace, "model") == ["GPT-4", "ChatGPT"]
    assert "in 1 rows 'Total tokens' is not the sum of its parts; the parts were used" in trace.provenance.notes
    assert "arrivals rebased by 19440110.0 s to the first kept request" in trace.provenance.notes


def test_whole_second_ties_keep_file_order_and_are_noted(tmp_path):
    text = "Timestamp,Model,Request tokens,Response tokens\n5,m,1,1\n7,m,2,1\n7,m,3,1\n7,m,4,1\n9,m,5,1\n"
    trace = read_trace(write(tmp_path, text))
    assert column(trace, "prompt_tokens") == [1, 2, 3, 4, 5]
    assert "2 rows share the arrival of the row before; ties keep file order" in trace.provenance.notes


def test_unsorted_rows_are_sorted_stably_and_noted(tmp_path):
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n3,1,1\n2.5,2,1\n3,3,1\n2.5,4,1\n"
    trace = read_trace(write(tmp_path, text))
    assert column(trace, "prompt_tokens") == [2, 4, 1, 3]
    assert "2 rows arrived before the row above them; the rows were sorted by arrival" in trace.provenance.notes


def test_zero_token_rows_are_set_aside_by_reason_and_counted(tmp_path):
    text = "Timestamp,Model,Request tokens,Response tokens\n0,m,0,5\n1,m,3,1\n2,m,0,0\n3,m,0,0\n4,m,9,0\n"
    trace = read_trace(write(tmp_path, text))
    assert trace.provenance.set_aside == (("zero_prompt_tokens", 1), ("failed_zero_tokens", 2), ("zero_output_tokens", 1))
    assert (trace.provenance.rows_read, trace.provenance.rows_kept) == (5, 1)
    assert column(trace, "arrival_s") == [0.0]


def test_mooncake_hashes_become_prefix_blocks_with_64_bit_integers_kept_exact(tmp_path):
    large = 2**63 - 1
    lines = [
        {"timestamp": 27000, "input_length": 513, "output_length": 5, "hash_ids": [large - 1, large]},
        {"timestamp": 30000, "input_length": 512, "output_length": 6, "hash_ids": [-1]},
        {"timestamp": 30001, "input_length": 3, "output_length": 7},
    ]
    trace = read_trace(write(tmp_path, "\n".join(map(json.dumps, lines))))
    assert column(trace, "prefix_blocks") == [[large - 1, large], [-1], None]
    assert column(trace, "arrival_s") == [0.0, 3.0, 3.001]
    assert trace.provenance.prefix_block_tokens == 512


def test_mooncake_blocks_equal_the_file_on_every_real_row(shared):
    path = shared / "data/traces/mooncake/conversation_trace.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    trace = read_trace(path)
    assert column(trace, "prefix_blocks") == [record["hash_ids"] for record in records]
    assert column(trace, "arrival_s") == [record["timestamp"] / 1000 for record in records]


def test_aibrix_lines_hold_lists_of_requests(tmp_path):
    lines = [
        {
            "timestamp": 6011,
            "requests": [{"Prompt Length": 3, "Output Length": 4}, {"Prompt Length": 5, "Output Length": 6, "prompt": "text"}],
        },
        {"timestamp": 6911, "requests": []},
        {"timestamp": 7011, "requests": [{"Prompt Length": 7, "Output Length": 8}]},
    ]
    trace = read_trace(write(tmp_path, "\n".join(map(json.dumps, lines))))
    assert column(trace, "prompt_tokens") == [3, 5, 7]
    assert column(trace, "arrival_s") == [0.0, 0.0, 1.0]
    assert "not carried over: prompt" in trace.provenance.notes


def test_vllm_arrivals_come_from_the_epoch_clock_alone(tmp_path):
    lines = [
        '{"request_id": "b", "input_toks": 3, "output_toks": 4, "arrival_time": 1787267981.0827404, "queued_ts": 1.0}',
        '{"request_id": "a", "input_toks": 5, "output_toks": 6, "arrival_time": 1787267980.0827403, "queued_ts": 99.0}',
    ]
    trace = read_trace(write(tmp_path, "\n".join(lines)))
    assert column(trace, "request_id") == ["a", "b"]
    assert column(trace, "arrival_s") == [0.0, 1.0000001]  # a difference of float64 epoch seconds is off by up to 2.4e-7
    assert trace.provenance.recorded_at == "2026-08-20T23:19:40.0827403Z"


def test_finer_digits_than_a_nanosecond_are_rounded_and_noted(tmp_path):
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,1,1\n5.8926549999999995,1,1\n8.5e-05,2,1\n"
    trace = read_trace(write(tmp_path, text))
    assert column(trace, "arrival_s") == [0.0, 0.000085, 5.892655]
    assert "1 arrivals had digits beyond 1 ns and were rounded to it" in trace.provenance.notes


def test_lengths_only_files_have_no_arrivals_and_are_labelled_reconstructed(tmp_path):
    trace = read_trace(write(tmp_path, "num_prefill_tokens,num_decode_tokens,pd_ratio\n5,6,0.8\n7,8,0.9\n"))
    assert column(trace, "arrival_s") == [None, None]
    assert trace.provenance.kind == "reconstructed"
    assert (trace.has_arrivals, trace.span_s) == (False, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        "request_id,arrival_s,prompt_tokens,output_tokens,session_id,model,priority\na,0.5,3,4,,m,\nb,1.25,5,6,s,,-2\n",
        '{"request_id": "a", "arrival_s": 0.5, "prompt_tokens": 3, "output_tokens": 4, "model": "m"}\n'
        '{"request_id": "b", "arrival_s": 1.25, "prompt_tokens": 5, "output_tokens": 6, "session_id": "s", "priority": -2}\n',
    ],
    ids=["csv", "jsonl"],
)
def test_native_text_without_provenance_is_labelled_reconstructed_of_unstated_origin(tmp_path, text):
    trace = read_trace(write(tmp_path, text))
    assert column(trace, "arrival_s") == [0.0, 0.75]
    assert column(trace, "session_id") == [None, "s"]
    assert column(trace, "model") == ["m", None]
    assert column(trace, "priority") == [None, -2]
    assert summarize(trace)["priorities"] == 1
    assert trace.provenance.kind == "reconstructed"
    assert "the file does not state where its rows come from" in trace.provenance.notes


def test_native_parquet_without_provenance_is_labelled_reconstructed_and_narrow_types_are_widened(tmp_path):
    table = pa.table({"prompt_tokens": pa.array([3, 4], pa.int32()), "output_tokens": pa.array([5, 6], pa.uint16())})
    pq.write_table(table, tmp_path / "x")
    trace = read_trace(tmp_path / "x")
    assert (column(trace, "prompt_tokens"), column(trace, "output_tokens")) == ([3, 4], [5, 6])
    assert trace.provenance.kind == "reconstructed"


def test_hand_written_json_lines_may_state_provenance_in_the_first_line(tmp_path):
    stated = {"kind": "recorded", "origin": "our gateway", "source_digest": "sha256:" + "0" * 64, "rows_read": 3, "rows_kept": 2}
    stated["set_aside"] = [{"reason": "canary", "rows": 1}]
    lines = [
        {"replay_gate_trace": stated, "name": "gateway"},
        {"arrival_s": 4, "prompt_tokens": 3, "output_tokens": 0},
        {"arrival_s": 5, "prompt_tokens": 3, "output_tokens": 1},
    ]
    trace = read_trace(write(tmp_path, "\n".join(map(json.dumps, lines))))
    assert (trace.name, trace.provenance.kind, trace.provenance.origin) == ("gateway", "recorded", "our gateway")
    assert dict(trace.provenance.set_aside) == {"canary": 1, "zero_output_tokens": 1}
    assert (trace.provenance.rows_read, trace.provenance.rows_kept) == (3, 1)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".gz", ""])
@pytest.mark.parametrize(
    "file",
    [
        "azure_llm_csv/AzureLLMInferenceTrace_conv.head5000.csv",
        "mooncake_trace/conversation_trace.head800.jsonl",
        "vllm_engine_requests/RTX4090_Llama-3.1-8B.requests.jsonl",
    ],
)
def test_the_content_decides_the_format_under_any_suffix_gzipped_or_not(shared, tmp_path, file, suffix):
    original = read_trace(shared / "data/formats" / file)
    content = (shared / "data/formats" / file).read_bytes()
    assert read_trace(write(tmp_path, content, "plain" + suffix)).digest == original.digest
    packed = gzip.compress(content[: len(content) // 2]) + gzip.compress(content[len(content) // 2 :])
    assert read_trace(write(tmp_path, packed, "packed" + suffix)).digest == original.digest


def test_a_parquet_trace_is_read_under_a_csv_suffix(tmp_path):
    trace = read_trace(write(tmp_path, "prompt_tokens,output_tokens\n3,4\n"))
    write_trace(trace, tmp_path / "x.parquet")
    assert read_trace((tmp_path / "x.parquet").rename(tmp_path / "x.csv")) == trace


def test_a_byte_order_mark_leading_blank_lines_quotes_and_blank_rows_do_not_disturb(tmp_path):
    text = '\ufeff\n\nTimestamp,Model,Request tokens,Response tokens\n\n0,"a, b",3,4\n\n1,"c ""d""",5,6.0\n\n'
    trace = read_trace(write(tmp_path, text))
    assert column(trace, "model") == ["a, b", 'c "d"']
    assert column(trace, "output_tokens") == [4, 6]


@pytest.mark.parametrize(
    ("file_name", "name"),
    [("chat.csv.gz", "chat"), ("chat.jsonl", "chat"), ("conv.head5000.csv", "conv.head5000"), (".csv", "csv"), ("a\n::b c.csv", "a_b c")],
)
def test_a_trace_is_named_after_its_file_unless_told_otherwise(tmp_path, file_name, name):
    path = write(tmp_path, "prompt_tokens,output_tokens\n3,4\n", file_name)
    assert read_trace(path).name == name
    assert read_trace(path, name="mine").name == "mine"


def test_every_reader_requires_columns_that_no_other_reader_of_the_same_encoding_includes():
    readers = known_readers()
    for reader in readers:
        for other in readers:
            if reader is not other and set(reader.encodings) & set(other.encodings):
                assert not set(reader.required) <= set(other.required)
