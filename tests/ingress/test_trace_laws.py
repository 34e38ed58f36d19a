"""Laws of ingress: write and read are inverse, row order and physical layout do not matter, no row vanishes."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay import documents
from replay.errors import SchemaError, SpecError, TraceError
from replay.ingress.clock import format_ns, times_ns
from replay.ingress.native import write_trace
from replay.ingress.normalize import slice_trace, with_poisson_arrivals
from replay.ingress.reader import read_trace
from replay.ingress.streamed import open_streamed
from replay.ingress.trace import TRACE_SCHEMA, Trace, build_trace, digest_rows, with_expert_load
from replay.names import safe_name
from replay.provenance import TRACE_KINDS, TraceProvenance
from replay.specs.routing import ExpertLoad
from tests.step_tables import make_trace

LENGTHS = st.integers(1, 2**31 - 1)
NAMES = st.text(st.sampled_from("aZ9_. -é"), min_size=1, max_size=8).map(safe_name)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def traces(draw: st.DrawFn, *, arrivals: bool | None = None) -> Trace:
    """Return a valid trace of 1 to 12 requests with awkward values."""
    rows = draw(st.integers(1, 12))
    timed = draw(st.booleans()) if arrivals is None else arrivals
    gaps = draw(st.lists(st.floats(0, 1e6, allow_nan=False), min_size=rows, max_size=rows))
    blocks = st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)
    priorities = draw(st.sampled_from([st.none(), st.none() | st.integers(-(2**63), 2**63 - 2)]))
    requests = pa.table(
        {
            "request_id": draw(st.lists(TEXTS, min_size=rows, max_size=rows, unique=True)),
            "arrival_s": pa.array((np.cumsum(gaps) - gaps[0]).tolist() if timed else [None] * rows, pa.float64()),
            "prompt_tokens": draw(st.lists(LENGTHS, min_size=rows, max_size=rows)),
            "output_tokens": draw(st.lists(LENGTHS, min_size=rows, max_size=rows)),
            "prefix_blocks": pa.array(draw(st.lists(blocks, min_size=rows, max_size=rows)), pa.list_(pa.int64())),
            "session_id": pa.array(draw(st.lists(st.none() | TEXTS, min_size=rows, max_size=rows)), pa.string()),
            "model": pa.array(draw(st.lists(st.none() | TEXTS, min_size=rows, max_size=rows)), pa.string()),
            "priority": pa.array(draw(st.lists(priorities, min_size=rows, max_size=rows)), pa.int64()),
        }
    )
    aside = draw(st.integers(0, 5))
    provenance = TraceProvenance(
        kind=draw(st.sampled_from(TRACE_KINDS)),
        origin=draw(TEXTS),
        source_digest="sha256:" + "a" * 64,
        rows_read=rows + aside,
        rows_kept=rows,
        set_aside=(("failed_zero_tokens", aside),) if aside else (),
        recorded_at=draw(st.none() | st.just("2023-11-16T18:15:46.68059") | st.just("2024-05-10T00:00:00Z")),
        notes=tuple(draw(st.lists(TEXTS, max_size=2))) + (() if timed else ("the file has lengths only: arrivals must be generated",)),
    )
    return build_trace(name=draw(NAMES), requests=requests, provenance=provenance, expert_load=draw(st.none() | loads()))


@st.composite
def loads(draw: st.DrawFn) -> ExpertLoad:
    """Return a load of up to three layers, or the statement that routing is uniform."""
    experts = draw(st.integers(1, 4))
    row = st.lists(st.floats(0, 1e12), min_size=experts, max_size=experts).filter(any).map(tuple)
    return ExpertLoad(origin=draw(TEXTS), layers=tuple(draw(st.lists(row, max_size=3))))


@settings(max_examples=60, deadline=None)
@given(trace=traces(), suffix=st.sampled_from([".parquet", ".jsonl"]))
def test_reading_what_was_written_gives_an_equal_trace_and_writing_it_again_the_same_bytes(trace, suffix):
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / f"a{suffix}", Path(folder) / f"b{suffix}"
        write_trace(trace, first)
        again = read_trace(first)
        write_trace(again, second)
        assert again == trace
        assert first.read_bytes() == second.read_bytes()


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(st.integers(0, 10**12 - 6), min_size=1, max_size=30, unique=True),
    data=st.data(),
)
def test_shuffling_rows_with_distinct_arrivals_gives_the_same_digest(arrivals, data):
    lines = [
        json.dumps({"timestamp": ms, "input_length": 1 + ms % 500, "output_length": ms % 3, "hash_ids": [ms]})
        for ms in (*arrivals, 10**12 - 5)
    ]
    shuffled = data.draw(st.permutations(lines))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        digests, counts = set(), set()
        for order in (lines, shuffled):
            path.write_text("\n".join(order))
            trace = read_trace(path)
            digests.add(trace.digest)
            counts.add((trace.provenance.rows_read, trace.provenance.rows_kept, frozenset(trace.provenance.set_aside)))
    assert len(digests) == len(counts) == 1


@settings(max_examples=60, deadline=None)
@given(zeros=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
def test_every_row_read_is_kept_or_counted_under_a_reason(zeros):
    rows = [*zeros, (1, 1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_text("prompt_tokens,output_tokens\n" + "".join(f"{prompt},{output}\n" for prompt, output in rows))
        trace = read_trace(path)
    provenance = trace.provenance
    assert provenance.rows_read == len(rows) == provenance.rows_kept + sum(count for _, count in provenance.set_aside)
    assert provenance.rows_kept == trace.requests.num_rows == rows.count((1, 1))


@settings(max_examples=40, deadline=None)
@given(trace=traces())
def test_the_digest_ignores_chunks_offsets_and_compression_and_sees_every_column(trace):
    trace = replace(trace, digest=digest_rows(trace.requests.column))  # without the expert load, which is digested with them
    rows = trace.requests
    padded = pa.concat_tables([rows.slice(0, 1), rows, rows.slice(0, 1)])
    assert digest_rows(padded.slice(1, rows.num_rows).column) == trace.digest
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(rows, Path(folder) / "x", row_group_size=1, compression="none", use_dictionary=False)
        assert digest_rows(pq.read_table(Path(folder) / "x").column) == trace.digest
    for position, field in enumerate(TRACE_SCHEMA):
        first = rows[field.name][0].as_py()
        extra = [7] if field.name == "prefix_blocks" else "x" if field.type == pa.string() else 1
        value = extra if first is None else first + extra
        column = pa.array([value, *rows[field.name].to_pylist()[1:]], field.type)
        assert digest_rows(rows.set_column(position, field, column).column) != trace.digest


def test_a_trace_without_priorities_has_the_digest_and_the_columns_of_before_there_were_any(tmp_path):
    trace = make_trace([0.0, 1.5], [3, 4], [1, 2], prefix_blocks=[[1], None], prefix_block_tokens=4)
    assert trace.digest == "sha256:ea8d2371f2767be483c02cda490d33e86302019fd9888f22d2153faa4b76fed1"
    write_trace(trace, tmp_path / "x.parquet")
    assert "priority" not in pq.read_schema(tmp_path / "x.parquet").names
    assert open_streamed(tmp_path / "x.parquet").digest == trace.digest
    urgent = make_trace([0.0, 1.5], [3, 4], [1, 2], prefix_blocks=[[1], None], prefix_block_tokens=4, priority=[None, -1])
    assert urgent.digest != trace.digest
    write_trace(urgent, tmp_path / "y.parquet")
    [piece] = open_streamed(tmp_path / "y.parquet").pieces(9)
    assert piece["priority"].to_pylist() == [None, -1]


@settings(max_examples=30, deadline=None)
@given(trace=traces(), load=loads(), other=loads())
def test_the_routing_is_part_of_a_trace_and_of_its_digest(trace, load, other):
    routed, otherwise = with_expert_load(trace, load), with_expert_load(trace, other)
    assert routed.digest != digest_rows(trace.requests.column)
    assert (routed.digest == otherwise.digest) == (load.layers == other.layers)
    if trace.requests.num_rows > 1:
        cut = slice_trace(routed, max_requests=1)
        assert cut.expert_load == load
        assert cut.provenance.notes[-1] == "the expert load is that of the whole trace"


@pytest.mark.parametrize(
    ("load", "says"),
    [
        ({"routing": "recorded", "origin": "x"}, "has no 'layers'"),
        ({"routing": "recorded", "origin": "x", "layers": [[1, 2], [1]]}, "layer 1 has 1 experts with 1 choices"),
        ("uniform", "the document is"),
    ],
)
def test_a_malformed_expert_load_is_refused_with_its_place(tmp_path, load, says):
    trace, path = small_trace(tmp_path), tmp_path / "x.jsonl"
    write_trace(with_expert_load(trace, ExpertLoad(origin="x")), path)
    head, *rows = path.read_text().splitlines()
    stated = json.loads(head)
    assert stated["expert_load"] == {"routing": "uniform", "origin": "x"}
    path.write_text("\n".join([json.dumps(stated | {"expert_load": load}), *rows]))
    with pytest.raises(SpecError, match=says) as refusal:
        read_trace(path)
    assert refusal.value.where.endswith("x.jsonl: expert_load")


def test_the_digest_tells_null_from_empty_and_where_texts_divide():
    def digest(sessions: list) -> str:
        rows = {"request_id": ["a", "b"], "prompt_tokens": [1, 1], "output_tokens": [1, 1], "session_id": pa.array(sessions, pa.string())}
        provenance = TraceProvenance(kind="synthetic", origin="x", source_digest="sha256:" + "0" * 64, rows_read=2, rows_kept=2)
        return build_trace(name="x", requests=pa.table(rows), provenance=provenance).digest

    assert len({digest(sessions) for sessions in (["ab", "c"], ["a", "bc"], ["", "abc"], [None, "abc"], [None, None])}) == 5


@settings(max_examples=100, deadline=None)
@given(st.integers(-8_900_000_000 * 10**9, 8_900_000_000 * 10**9), st.booleans())
def test_times_survive_formatting_and_reading_to_the_nanosecond(time_ns, utc):
    values, zoned = times_ns(pa.array([format_ns(time_ns, utc=utc)]))
    assert (values[0].as_py(), zoned) == (time_ns, utc)


@settings(max_examples=60, deadline=None)
@given(trace=traces(arrivals=True), cut=st.data())
def test_two_slices_that_meet_hold_every_request_once(trace, cut):
    if trace.span_s == 0:
        return
    middle = cut.draw(st.floats(0, trace.span_s, exclude_min=True))
    head, tail = slice_trace(trace, end_s=middle), slice_trace(trace, start_s=middle)
    assert head.requests["request_id"].to_pylist() + tail.requests["request_id"].to_pylist() == trace.requests["request_id"].to_pylist()
    for part in (head, tail):
        provenance = part.provenance
        assert provenance.rows_read == provenance.rows_kept + sum(count for _, count in provenance.set_aside)
        assert part.requests["arrival_s"][0].as_py() == 0.0


def small_trace(tmp_path: Path) -> Trace:
    path = tmp_path / "azure.csv"
    rows = "".join(f"2023-11-16 18:15:{46 + n}.5000000,{n + 1},4\n" for n in range(5))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    return read_trace(path)


def test_a_slice_records_its_bounds_moves_recorded_at_and_counts_what_is_outside(tmp_path):
    part = slice_trace(small_trace(tmp_path), start_s=1.0, end_s=4.0, max_requests=2)
    assert part.requests["prompt_tokens"].to_pylist() == [2, 3]
    assert part.requests["arrival_s"].to_pylist() == [0.0, 1.0]
    assert part.provenance.recorded_at == "2023-11-16T18:15:47.5"
    assert part.provenance.set_aside == (("outside_slice", 3),)
    assert "slice: arrivals in [1.0, 4.0) s, the first 2 requests; arrivals rebased by 1.0 s" in part.provenance.notes
    write_trace(part, tmp_path / "part.jsonl")
    assert read_trace(tmp_path / "part.jsonl") == part


@pytest.mark.parametrize(
    ("bounds", "finding"),
    [
        ({}, "no bound"),
        ({"start_s": float("nan")}, "nan"),
        ({"end_s": float("inf")}, "inf"),
        ({"start_s": 3.0, "end_s": 3.0}, "start 3.0 s and end 3.0 s"),
        ({"start_s": 100.0}, "no request in arrivals"),
        ({"max_requests": 0}, "0 requests"),
    ],
)
def test_a_slice_without_sense_is_an_error(tmp_path, bounds, finding):
    with pytest.raises(SpecError, match=finding):
        slice_trace(small_trace(tmp_path), **bounds)


def lengths_only(tmp_path: Path, rows: int = 4000) -> Trace:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n" + "5,6\n" * rows)
    return read_trace(path)


def test_poisson_arrivals_have_the_rate_are_labelled_and_repeat_with_the_seed(tmp_path):
    trace = with_poisson_arrivals(lengths_only(tmp_path), rate_per_s=8.0, seed=3)
    gaps = np.diff(trace.requests["arrival_s"].to_numpy())
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.08)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.08)
    assert trace.requests["arrival_s"][0].as_py() == 0.0
    assert trace.provenance.kind == "reconstructed"
    assert "arrivals generated: Poisson, 8.0 requests per second, seed 3" in trace.provenance.notes
    assert with_poisson_arrivals(lengths_only(tmp_path), rate_per_s=8.0, seed=3) == trace
    assert with_poisson_arrivals(lengths_only(tmp_path), rate_per_s=8.0, seed=4).digest != trace.digest


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_a_rate_without_sense_is_an_error(tmp_path, rate):
    with pytest.raises(SpecError, match="rate_per_s"):
        with_poisson_arrivals(lengths_only(tmp_path, 5), rate_per_s=rate, seed=0)


def test_recorded_arrivals_are_never_replaced_and_time_bounds_need_arrivals(tmp_path):
    with pytest.raises(TraceError, match="has arrivals"):
        with_poisson_arrivals(small_trace(tmp_path), rate_per_s=1.0, seed=0)
    with pytest.raises(TraceError, match="without arrivals"):
        slice_trace(lengths_only(tmp_path, 5), start_s=0.0)
    assert slice_trace(lengths_only(tmp_path, 5), max_requests=2).requests.num_rows == 2


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl.gz", "x"])
def test_only_formats_that_carry_provenance_are_written(tmp_path, name):
    with pytest.raises(TraceError, match=r"want a name in \.parquet or \.jsonl"):
        write_trace(small_trace(tmp_path), tmp_path / name)
    assert not (tmp_path / name).exists()


def test_an_unwritable_place_is_an_error_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(small_trace(tmp_path), tmp_path / "file" / "x.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["azure.csv", "file"]


def test_the_schema_examples_are_valid_and_invalid_and_the_record_round_trips():
    folder = documents.shipped_path("schemas") / "examples"
    valid = documents.read_json_object(folder / "trace-provenance.v1.valid.json", "provenance")
    documents.check(valid, "trace-provenance.v1", "valid")
    assert TraceProvenance.from_document(valid).to_document() == valid
    invalid = documents.read_json_object(folder / "trace-provenance.v1.invalid.json", "provenance")
    with pytest.raises(SchemaError, match="kind is"):
        documents.check(invalid, "trace-provenance.v1", "invalid")
