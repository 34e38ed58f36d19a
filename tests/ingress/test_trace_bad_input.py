"""Every way a trace file can be wrong gives one TraceError that says where, what was found, what is wanted, and the fix."""

import gzip
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.errors import InputError, SchemaError, TraceError
from replay.ingress.reader import read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,3,4\n"
BURST = "Timestamp,Model,Request tokens,Response tokens\n5,m,3,4\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,3,4\n"
NATIVE = "request_id,arrival_s,prompt_tokens,output_tokens\na,0.0,3,4\n"
MOONCAKE = '{"timestamp": 0, "input_length": 3, "output_length": 4, "hash_ids": [1]}\n'
AIBRIX = '{"timestamp": 0, "requests": [{"Prompt Length": 3, "Output Length": 4}]}\n'
VLLM = '{"request_id": "a", "input_toks": 3, "output_toks": 4, "arrival_time": 1787267980.5}\n'
ROWS = '{"request_id": "a", "arrival_s": 0.0, "prompt_tokens": 3, "output_tokens": 4}\n'


def stated(**changes: object) -> str:
    """Return a first line of native JSON Lines, with fields changed."""
    document = {"kind": "recorded", "origin": "x", "source_digest": "sha256:" + "0" * 64, "rows_read": 1, "rows_kept": 1, **changes}
    beside = {key: document.pop(key) for key in ("digest", "name", "extra") if key in document}
    return json.dumps({"replay_gate_trace": document, **beside}) + "\n"


BAD_TEXTS = {
    # name: (text, place after the path, pattern of what was found)
    "empty file": (b"", "", "empty"),
    "blank file": (b"\n \r\n\n", "", "empty"),
    "binary file": (b"\x89PNG\r\n\x1a\n\0\0", "", "not recognised"),
    "UTF-16 file": (AZURE.encode("utf-16"), "", "not recognised"),
    "plain words": ("these are not requests\n", "", "not recognised"),
    "JSON array": ("[" + MOONCAKE.strip() + "]", "", "not recognised"),
    "pretty JSON object": (json.dumps({"timestamp": 1}, indent=1), "", "not recognised"),
    "unknown CSV columns": ("when,in,out\n1,2,3\n", "", "not recognised: header when, in, out"),
    "unknown JSON fields": ('{"when": 1}\n', "", "not recognised: fields when"),
    "CSV without header": ("0,0.5,1.2,Gamma,3,4\n", "", "not recognised"),
    "missing column": ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,3\n", "", "Azure LLM CSV also has GeneratedTokens"),
    "semicolons": (AZURE.replace(",", ";"), "", "not recognised"),
    "two formats at once": (
        "prompt_tokens,output_tokens,num_prefill_tokens,num_decode_tokens\n1,2,3,4\n",
        "",
        "it could be native Parquet, JSON Lines or CSV or Vidur CSV",
    ),
    "header without rows": ("TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "", "header without rows"),
    "repeated column": (
        "TIMESTAMP,ContextTokens,GeneratedTokens,GeneratedTokens\n2023-11-16 18:15:46,3,4,5\n",
        ":1",
        "'GeneratedTokens' twice",
    ),
    "unnamed column": ("TIMESTAMP,ContextTokens,GeneratedTokens,\n2023-11-16 18:15:46,3,4,5\n", ":1", "empty column name"),
    "too few cells": (AZURE + "2023-11-16 18:15:47,3\n", ":3", "2 cells where the header has 3"),
    "too many cells": (AZURE + "\n2023-11-16 18:15:47,3,4,5\n", ":4", "4 cells where the header has 3"),
    "cut off in the last time": (AZURE + "2023-11-16 18:15,3,4", ":3", "TIMESTAMP is '2023-11-16 18:15'"),
    "impossible date": (AZURE + "2023-02-30 18:15:47,3,4\n", ":3", "TIMESTAMP is '2023-02-30"),
    "impossible hour": (AZURE + "2023-11-16 24:00:00,3,4\n", ":3", "TIMESTAMP is '2023-11-16 24"),
    "ten fractional digits": (AZURE + "2023-11-16 18:15:47.0123456789,3,4\n", ":3", "TIMESTAMP is"),
    "year out of range": (AZURE + "1500-01-01 00:00:00,3,4\n", ":3", "TIMESTAMP is '1500"),
    "epoch instead of a calendar time": (AZURE + "1700158546,3,4\n", ":3", "TIMESTAMP is '1700158546'"),
    "zones in some rows": (AZURE + "2023-11-16 18:15:47+00:00,3,4\n", ":3", "rows before lack a zone"),
    "zones in some rows, the first with": (
        AZURE.replace("5900,", "5900Z,") + "\n2023-11-16 18:15:47,3,4\n",
        ":4",
        "rows before have a zone",
    ),
    "header repeated in the middle": (AZURE + AZURE, ":3", "TIMESTAMP is 'TIMESTAMP'"),
    "negative tokens": (AZURE + "2023-11-16 18:15:47,-3,4\n", ":3", "ContextTokens is '-3'"),
    "fractional tokens": (AZURE + "2023-11-16 18:15:47,3.5,4\n", ":3", "ContextTokens is '3.5'"),
    "tokens in scientific notation": (AZURE + "2023-11-16 18:15:47,3,4e2\n", ":3", "GeneratedTokens is '4e2'"),
    "hexadecimal tokens": (AZURE + "2023-11-16 18:15:47,0x1F,4\n", ":3", "ContextTokens is '0x1F'"),
    "NaN tokens": (AZURE + "2023-11-16 18:15:47,NaN,4\n", ":3", "ContextTokens is 'NaN'"),
    "empty tokens": (AZURE + "2023-11-16 18:15:47,,4\n", ":3", "ContextTokens is empty"),
    "overlong tokens": (AZURE + "2023-11-16 18:15:47," + "9" * 400 + ",4\n", ":3", "ContextTokens is '999"),
    "tokens beyond any model": (AZURE + "2023-11-16 18:15:47,2147483648,4\n", ":3", "ContextTokens is '2147483648'"),
    "not UTF-8": (AZURE.encode() + b"2023-11-16 18:15:47,3,\xff\n", ":3", "not UTF-8"),
    "no completed request": (BURST.replace("3,4", "0,0"), "", "no row has both prompt and output tokens"),
    "negative time": (BURST + "-5,m,3,4\n", ":3", "Timestamp is '-5'"),
    "NaN time": (BURST + "nan,m,3,4\n", ":3", "Timestamp is 'nan'"),
    "infinite time": (VIDUR + "inf,3,4\n", ":3", "arrived_at is 'inf'"),
    "grouped digits": (VIDUR + "1_000,3,4\n", ":3", "arrived_at is '1_000'"),
    "time of overlong exponent": (VIDUR + "1e999999999,3,4\n", ":3", "arrived_at is '1e999999999'"),
    "epoch instead of relative seconds": (VIDUR + "1787267980.5,3,4\n", ":3", "arrived_at is '1787267980.5'"),
    "line after a quoted line break": (BURST + '6,"m\n\nm",3,4\n7,m,x,4\n', ":6", "Request tokens is 'x'"),
    "unit in the native column name": (
        NATIVE.replace("arrival_s", "arrival_ms"),
        ":1",
        r"unknown column 'arrival_ms'; did you mean 'arrival_s'\?",
    ),
    "prefix blocks in CSV": ("prompt_tokens,output_tokens,prefix_blocks\n1,1,[1]\n", ":1", "'prefix_blocks' in CSV"),
    "native priority that is no integer": ("prompt_tokens,output_tokens,priority\n1,1,\n1,1,1.5\n", ":3", "priority is '1.5'"),
    "native priority beyond 64 bits": (f"prompt_tokens,output_tokens,priority\n1,1,{2**63}\n", ":2", "priority is '9223372036854775808'"),
    "native JSON priority": ('{"prompt_tokens": 1, "output_tokens": 1, "priority": "high"}\n', ":1", "priority is 'high'"),
    "native NaN arrival": (NATIVE + "b,nan,3,4\n", ":3", "arrival_s is 'nan'"),
    "native negative arrival": (NATIVE + "b,-0.5,3,4\n", ":3", "arrival_s is '-0.5'"),
    "native arrival missing in some rows": (NATIVE + "b,,3,4\n", ":3", "arrival_s is empty"),
    "duplicate id": (NATIVE + "b,1,3,4\na,2,3,4\n", ":4", "request_id 'a' stands in an earlier row"),
    "id missing in some rows": (NATIVE + ",1,3,4\n", ":3", "no request_id"),
    "JSON cut off": (MOONCAKE + '{"timestamp": 3000, "inp', ":2", "not valid JSON"),
    "CSV row after JSON": (MOONCAKE + "3000,3,4\n", ":2", "not valid JSON"),
    "JSON line that is no object": (MOONCAKE + "3000\n", ":2", "the line is 3000"),
    "JSON NaN": (MOONCAKE + MOONCAKE.replace('"timestamp": 0', '"timestamp": NaN'), ":2", "the value NaN"),
    "JSON key twice": (
        MOONCAKE + MOONCAKE.replace('"output_length": 4', '"output_length": 4, "output_length": 5'),
        ":2",
        "a key stands twice",
    ),
    "JSON nested too deeply": (MOONCAKE + '{"a":' * 100_000 + "1" + "}" * 100_000, ":2", "nested too deeply"),
    "JSON integer of thousands of digits": (MOONCAKE + MOONCAKE.replace("3,", "9" * 5000 + ","), ":2", "a number is too long"),
    "JSON exponent beyond decimals": (
        MOONCAKE + MOONCAKE.replace("3,", "1e99999999999999999999,"),
        ":2",
        "not strict JSON|input_length is",
    ),
    "JSON not UTF-8": (MOONCAKE.encode() + b'{"timestamp": "\xff"}\n', ":2", "not UTF-8"),
    "row without a key": (MOONCAKE + '\n{"timestamp": 3000, "input_length": 3}\n', ":3", "no 'output_length'"),
    "row of another format": (MOONCAKE + AIBRIX, ":2", "no 'input_length'"),
    "text where a number was": (MOONCAKE + MOONCAKE.replace('"timestamp": 0', '"timestamp": "0"'), ":2", "timestamp is '0'"),
    "true where a number was": (MOONCAKE + MOONCAKE.replace('"input_length": 3', '"input_length": true'), ":2", "input_length is true"),
    "seconds where milliseconds are": (
        MOONCAKE + MOONCAKE.replace('"timestamp": 0', '"timestamp": 0.5'),
        ":2",
        "timestamp is 0.5; want whole milli",
    ),
    "negative milliseconds": (MOONCAKE.replace('"timestamp": 0', '"timestamp": -1'), ":1", "timestamp is -1"),
    "fractional tokens in JSON": (MOONCAKE.replace('"input_length": 3', '"input_length": 3.5'), ":1", "input_length is 3.5"),
    "too few prefix blocks": (MOONCAKE.replace('"input_length": 3', '"input_length": 513'), ":1", "number of hash_ids is 1; want 2"),
    "hash beyond 64 bits": (MOONCAKE.replace("[1]", "[9223372036854775808]"), ":1", "hash_ids is"),
    "hash that is no integer": (MOONCAKE.replace("[1]", "[1.0]"), ":1", "hash_ids is"),
    "hash list that is no list": (MOONCAKE.replace("[1]", "1"), ":1", "hash_ids is 1"),
    "requests that are no list": (AIBRIX + '{"timestamp": 1, "requests": {}}\n', ":2", "requests is {}"),
    "request without a length": (AIBRIX + '{"timestamp": 1, "requests": [{"Prompt Length": 3}]}\n', ":2", "no 'Output Length'"),
    "monotonic clock in arrival_time": (VLLM.replace("1787267980.5", "27536.6"), ":1", "arrival_time is 27536.6; want seconds since 1970"),
    "epoch milliseconds in arrival_time": (VLLM.replace("1787267980.5", "1787267980500"), ":1", "arrival_time is 1787267980500"),
    "date text in arrival_time": (VLLM.replace("1787267980.5", '"2026-08-20"'), ":1", "arrival_time is '2026-08-20'"),
    "duplicate id in a log": (VLLM + VLLM, ":2", "request_id 'a' stands in an earlier row"),
    "number as an id": (VLLM.replace('"a"', "7"), ":1", "request_id is 7"),
    "half a surrogate pair": (VLLM.replace('"a"', '"\\ud800"'), ":1", "request_id is"),
    "unknown native key": (ROWS.replace("output_tokens", "output_token"), "", "not recognised"),
    "unknown native key in a later row": (
        ROWS + '{"prompt_tokens": 3, "output_tokens": 4, "sesion_id": "x"}\n',
        ":2",
        "did you mean 'session_id'",
    ),
    "native arrival as text": (ROWS.replace("0.0", '"0.0"'), ":1", "arrival_s is '0.0'"),
    "native arrival beyond floats": (ROWS.replace("0.0", "1e400"), ":1", r"arrival_s is 1E\+400"),
    "arrival absent in a later row": (ROWS + '{"request_id": "b", "prompt_tokens": 3, "output_tokens": 4}\n', ":2", "no arrival_s"),
    "rows missing after provenance": (stated(rows_read=2, rows_kept=2) + ROWS, "", "1 rows where the provenance says 2"),
    "no rows after provenance": (stated(), "", "not recognised"),
    "rows other than the digest": (stated(digest="sha256:" + "1" * 64) + ROWS, "", "differ from the digest"),
    "digest that is no text": (stated(digest=5) + ROWS, ": replay_gate_trace", "digest is 5"),
    "counts that do not add up": (stated(rows_read=3) + ROWS, ": replay_gate_trace", "3 rows read"),
    "reason twice": (
        stated(rows_read=3, set_aside=[{"reason": "a", "rows": 1}, {"reason": "a", "rows": 1}]) + ROWS,
        ": replay_gate_trace",
        "a reason twice",
    ),
    "date that does not exist in provenance": (stated(recorded_at="2023-02-30T00:00:00Z") + ROWS, ": replay_gate_trace", "2023-02-30"),
    "stray key beside provenance": (stated(extra=1) + ROWS, ": replay_gate_trace", "the key 'extra'"),
    "half a surrogate pair in provenance": (stated(origin="\ud800") + ROWS, ": replay_gate_trace", "surrogate"),
    "more prefix blocks than tokens": (
        stated(prefix_block_tokens=16) + '{"prompt_tokens": 16, "output_tokens": 1, "prefix_blocks": [1, 2]}\n',
        "",
        "more prefix blocks than the prompt fills",
    ),
    "foreign rows under native provenance": (stated() + MOONCAKE, "", "not recognised"),
    "unknown kind": (stated(kind="production") + ROWS, ": replay_gate_trace", "kind is"),
    "unknown provenance field": (stated(colour="red") + ROWS, ": replay_gate_trace", "unknown key 'colour'"),
    "provenance that is no object": ('{"replay_gate_trace": 1}\n' + ROWS, ": replay_gate_trace", "the document is 1"),
}


def assert_is_one_helpful_sentence(error: InputError, path: Path) -> None:
    text = str(error)
    assert "\n" not in text
    assert text.startswith(str(path))
    assert all((error.got, error.want, error.fix))
    assert "; want " in text
    assert " Fix: " in text


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_malformed_text_names_place_finding_and_fix(tmp_path, case):
    text, place, finding = BAD_TEXTS[case]
    path = tmp_path / "bad.trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((TraceError, SchemaError), match=finding) as caught:
        read_trace(path)
    assert caught.value.where == f"{path}{place}"
    assert isinstance(caught.value, SchemaError) == (case in {"unknown kind", "unknown provenance field", "provenance that is no object"})
    assert_is_one_helpful_sentence(caught.value, path)


def test_an_unknown_format_lists_every_known_one(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("when,what\n1,2\n")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    for label in ("native", "Azure", "BurstGPT", "Mooncake", "Vidur", "AIBrix", "vLLM"):
        assert label in caught.value.want


BAD_COLUMNS = {
    "float tokens": ({"prompt_tokens": pa.array([3.0]), "output_tokens": pa.array([4])}, ": prompt_tokens", "type double"),
    "text tokens": ({"prompt_tokens": pa.array(["3"]), "output_tokens": pa.array([4])}, ": prompt_tokens", "type string"),
    "null tokens": ({"prompt_tokens": pa.array([3, None]), "output_tokens": pa.array([4, 5])}, ": row 2", "prompt_tokens is missing"),
    "negative tokens": ({"prompt_tokens": pa.array([3, -1]), "output_tokens": pa.array([4, 5])}, ": row 2", "prompt_tokens is -1"),
    "tokens beyond 64 bits": (
        {"prompt_tokens": pa.array([2**64 - 1], pa.uint64()), "output_tokens": pa.array([4])},
        ": prompt_tokens",
        "beyond 64 bits",
    ),
    "NaN arrival": (
        {"arrival_s": pa.array([0.0, float("nan")]), "prompt_tokens": pa.array([3, 3]), "output_tokens": pa.array([4, 5])},
        ": row 2",
        "arrival_s is nan",
    ),
    "single-precision arrival": (
        {"arrival_s": pa.array([0.0], pa.float32()), "prompt_tokens": pa.array([3]), "output_tokens": pa.array([4])},
        ": arrival_s",
        "type float",
    ),
    "calendar arrival": (
        {"arrival_s": pa.array([0], pa.timestamp("s")), "prompt_tokens": pa.array([3]), "output_tokens": pa.array([4])},
        ": arrival_s",
        "type timestamp",
    ),
    "null in a prefix list": (
        {"prompt_tokens": pa.array([3]), "output_tokens": pa.array([4]), "prefix_blocks": pa.array([[1, None]], pa.list_(pa.int64()))},
        ": prefix_blocks",
        "a null inside a list",
    ),
    "unknown column": (
        {"prompt_tokens": pa.array([3]), "output_tokens": pa.array([4]), "tier": pa.array([1])},
        "",
        "unknown column 'tier'",
    ),
    "foreign columns": ({"prompt": pa.array([3])}, "", "not recognised"),
    "no rows": ({"prompt_tokens": pa.array([], pa.int64()), "output_tokens": pa.array([], pa.int64())}, "", "no row has both"),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_malformed_parquet_names_place_finding_and_fix(tmp_path, case):
    columns, place, finding = BAD_COLUMNS[case]
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(TraceError, match=finding) as caught:
        read_trace(path)
    assert caught.value.where == f"{path}{place}"
    assert_is_one_helpful_sentence(caught.value, path)


def test_a_parquet_column_twice_is_an_error(tmp_path):
    path = tmp_path / "bad.parquet"
    pq.write_table(
        pa.Table.from_arrays([pa.array([3]), pa.array([4]), pa.array([5])], ["prompt_tokens", "output_tokens", "output_tokens"]), path
    )
    with pytest.raises(TraceError, match="a column name twice"):
        read_trace(path)


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_truncated_parquet_file_is_an_error(tmp_path, kept):
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"prompt_tokens": range(1, 1000), "output_tokens": range(1, 1000)}), path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(TraceError, match="damaged or cut off"):
        read_trace(path)


def test_damaged_parquet_pages_are_an_error(tmp_path):
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"prompt_tokens": range(1, 1000), "output_tokens": range(1, 1000)}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)
    with pytest.raises(TraceError, match="pages are damaged"):
        read_trace(path)


def test_parquet_metadata_that_are_no_provenance_are_an_error(tmp_path):
    path = tmp_path / "bad.parquet"
    table = pa.table({"prompt_tokens": [3], "output_tokens": [4]})
    pq.write_table(table.replace_schema_metadata({"replay_gate_trace": "{"}), path)
    with pytest.raises(TraceError, match="not a provenance object"):
        read_trace(path)


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (lambda data: data[:-20], "end too early"),
        (lambda data: data[:40] + b"\xff" * 9 + data[49:], "damaged"),
        (lambda data: data[:3], "end too early|damaged"),
    ],
    ids=["truncated", "corrupt", "header only"],
)
def test_damaged_gzip_is_an_error(tmp_path, damage, finding):
    path = tmp_path / "bad.gz"
    path.write_bytes(damage(gzip.compress("".join(AZURE + f"2023-11-16 18:15:47.{n},{n * n % 977},4\n" for n in range(1, 500)).encode())))
    with pytest.raises(TraceError, match=finding) as caught:
        read_trace(path)
    assert_is_one_helpful_sentence(caught.value, path)


def test_missing_files_and_folders_are_errors(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "absent.csv")
    with pytest.raises(TraceError, match="a folder"):
        read_trace(tmp_path)


def parquet_bytes() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"prompt_tokens": [3, 4], "output_tokens": [5, 6], "session_id": ["a", None]}), sink)
    return sink.getvalue().to_pybytes()


WHOLE = [text.encode() * 2 for text in (AZURE, BURST, VIDUR, NATIVE, MOONCAKE, AIBRIX, VLLM, stated() + ROWS)]
WHOLE += [parquet_bytes(), gzip.compress(MOONCAKE.encode())]
SPLINTERS = st.binary(max_size=4) | st.sampled_from(
    [b"NaN", b"null", b"-1", b"1e999", b'"', b",", b"\r", b"\n", b"{", b"[", b"\0", b"9" * 25, b"\\ud800"]
)


@settings(max_examples=300, deadline=None)
@given(
    content=st.sampled_from(WHOLE),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), SPLINTERS), min_size=1, max_size=4),
)
def test_a_file_damaged_anywhere_gives_a_trace_or_one_sentence_and_nothing_else(content, edits):
    for place, length, splinter in edits:
        start = int(place * len(content))
        content = content[:start] + splinter + content[start + length :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged"
        path.write_bytes(content)
        try:
            trace = read_trace(path)
        except InputError as error:
            assert_is_one_helpful_sentence(error, path)
        else:
            assert trace.provenance.rows_kept == trace.requests.num_rows
