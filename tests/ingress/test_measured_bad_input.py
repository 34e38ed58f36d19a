"""A result file that cannot be used is one sentence: where, what was found, what is wanted, how to mend it."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replay.errors import TraceError
from replay.ingress.measured import content
from replay.ingress.measured.reader import read_measured

BENCH = {"request_rate": 1.0, "completed": 1, "duration": 1.0, "total_output_tokens": 3}
DETAIL = {**BENCH, "input_lens": [1], "output_lens": [2], "ttfts": [0.1], "itls": [[0.1]], "errors": [""]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        (" \n \n", "the file is empty"),
        ("just words\nand more\n", "no column is a latency: just words"),
        ("\0\0\0", "neither JSON, CSV, Parquet nor an MLPerf log"),
        ("a,b\n1,2\n", "no column is a latency"),
        ('{"a": 1}', "its format is not recognised"),
        ('{"request_id": "x", "ttft_s": 1}\n{"request_id": "y", "ttft_s"', ":2: it is not valid JSON"),
        ('{"request_id": "x", "ttft_s": 1}\n[1]\n', ":2: the line is no JSON object"),
        ('{"request_id": "x", "ttft_s": NaN}', "the value NaN"),
        ('{"request_id": "x", "ttft_s": 1, "ttft_s": 2}', "stands twice"),
        ("request_id,ttft_s\nx,nan\n", ":2: ttft_s is nan"),
        ("request_id,ttft_s\nx,inf\n", "ttft_s is inf"),
        ("request_id,ttft_s\nx,1\ny,-0.5\n", ":3: ttft_s is -0.5"),
        ("request_id,ttft_s\nx,soon\n", "ttft_s is 'soon'"),
        ("request_id,ttft_s\nx,1,2\n", "3 cells where the header has 2"),
        ("request_id,ttft\nx,1\n", "column 'ttft' has no unit"),
        ("TTFT,TPOT (ms)\n1,2\n", "column 'TTFT' has no unit"),
        ("ttft_s,ttft_ms\n1,1000\n", "both mean ttft_s"),
        ("ttft_s,output_tokens\n1,2.5\n", "output_tokens is 2.5"),
        ("ttft_s,output_tokens\n1,99999999999\n", "output_tokens is 99999999999"),
        ("request_id,ttft_s\n,1\n", "request_id is missing"),
        (json.dumps({**DETAIL, "ttfts": [0.1, 0.2]}), "arrays of different lengths"),
        (json.dumps({**DETAIL, "ttfts": ["x"]}), "ttfts is 'x'"),
        (json.dumps({**DETAIL, "request_rate": "fast"}), "request_rate is 'fast'"),
        (json.dumps({**DETAIL, "request_rate": 0}), "request_rate is 0"),
        (json.dumps({**DETAIL, "output_lens": [True]}), "output_lens is True"),
        ("MLPerf Results Summary\nScenario : Server\n", "without a latency percentile"),
        ("MLPerf Results Summary\n99.00 percentile latency (ns) : 1.5\n", "is '1.5'"),
        ("MLPerf Results Summary\n99.00 percentile latency (ns) : 99999999999999999999\n", "whole nanoseconds"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, text, said):
    path = tmp_path / "result"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_measured(path)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(path))
    assert "; want " in message
    assert "Fix: " in message
    assert "\n" not in message


def test_an_aiperf_figure_without_a_known_unit_is_refused(tmp_path):
    record = {"metadata": {"request_start_ns": 1}, "metrics": {"request_latency": {"value": 1.0, "unit": "fortnights"}}}
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(record))
    with pytest.raises(TraceError, match="has the unit 'fortnights'"):
        read_measured(path)


def test_a_line_beyond_the_limit_is_refused_before_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "LARGEST_DOCUMENT_BYTES", 1 << 20)
    path = tmp_path / "long.jsonl"
    path.write_bytes(b'{"request_id": "' + b"x" * (3 << 20) + b'"}\n')
    with pytest.raises(TraceError, match=r":1: the line is longer than 1 MiB"):
        read_measured(path)
    pretty = tmp_path / "long.json"
    pretty.write_bytes(b'{\n"benchmarks": "' + b"x" * (3 << 20) + b'"}\n')
    with pytest.raises(TraceError, match=r"the document is longer than 1 MiB"):
        read_measured(pretty)


@pytest.mark.slow
def test_one_line_of_200_mb_is_refused_in_bounded_memory(tmp_path):
    import tracemalloc

    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(b'{"request_id": "')
        for _ in range(200):
            file.write(b"x" * 10**6)
        file.write(b'"}\n')
    tracemalloc.start()
    with pytest.raises(TraceError, match="longer than 128 MiB"):
        read_measured(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * content.LARGEST_DOCUMENT_BYTES


@pytest.mark.parametrize("cut", [4, 40])
def test_a_cut_parquet_file_is_one_sentence(tmp_path, cut):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"ttft_s": [1.0]}), path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(TraceError, match="damaged or cut off"):
        read_measured(path)


def test_damaged_gzip_is_one_sentence(tmp_path):
    import gzip

    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"request_id": "x", "ttft_s": 1}\n' * 1000)[:-9])
    with pytest.raises(TraceError, match=r"(damaged|cannot be read)"):
        read_measured(path)


def test_a_folder_without_one_result_is_refused(tmp_path):
    with pytest.raises(TraceError, match="0 files that could be results"):
        read_measured(tmp_path)
    for name in "ab":
        (tmp_path / name).write_text("ttft_s\n1\n")
    with pytest.raises(TraceError, match="2 files that could be results"):
        read_measured(tmp_path)


def test_steps_have_to_be_steps(tmp_path):
    (tmp_path / "result.csv").write_text("ttft_s\n1\n")
    columns = {"start_s": [0.0], "end_s": [1.0], "tokens": [1], "sequences": [1], "kv_tokens": [1]}
    pq.write_table(pa.table({name: values for name, values in columns.items() if name != "end_s"}), tmp_path / "steps.parquet")
    with pytest.raises(TraceError, match="lacks a column"):
        read_measured(tmp_path)
    pq.write_table(pa.table({**columns, "end_s": [-1.0]}), tmp_path / "steps.parquet")
    with pytest.raises(TraceError, match="ends before it starts"):
        read_measured(tmp_path)
    pq.write_table(pa.table(columns), tmp_path / "steps.parquet")
    assert read_measured(tmp_path)[0].steps.num_rows == 1


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"ttft_s": [1.0, float("nan")]}, "row 2: ttft_s is nan"),
        ({"ttft_s": [1.0, float("inf")]}, "row 2: ttft_s is inf"),
        ({"ttft_s": [-1.0]}, "row 1: ttft_s is -1.0"),
        ({"ttft_s": ["soon"]}, "ttft_s: it is a column of string"),
        ({"ttft_s": [1.0], "output_tokens": [2.5]}, "output_tokens: "),
        ({"ttft_s": [1.0], "output_tokens": [2**40]}, "row 1: output_tokens is 1099511627776"),
        ({"ttft_s": [1.0, 2.0], "request_id": ["a", None]}, "row 2: request_id is missing"),
    ],
)
def test_a_bad_column_of_a_parquet_table_is_one_sentence(tmp_path, columns, said):
    pq.write_table(pa.table(columns), tmp_path / "t")
    with pytest.raises(TraceError) as caught:
        read_measured(tmp_path / "t")
    assert said in str(caught.value)


def test_what_is_no_result_may_stand_beside_one(tmp_path):
    (tmp_path / "result.csv").write_text("ttft_s\n1\n")
    (tmp_path / "notes.txt").write_text("second run of the day\n")
    (tmp_path / "server.json").write_text('{"max_num_seqs": 256}')
    assert read_measured(tmp_path)[0].facts.file_name == "result.csv"


def test_ids_that_only_later_rows_have_are_refused(tmp_path):
    (tmp_path / "t").write_text('{"ttft_s": 1}\n{"ttft_s": 2, "request_id": "b"}\n')
    with pytest.raises(TraceError, match=":2: request_id, which the rows before it lack"):
        read_measured(tmp_path / "t")
