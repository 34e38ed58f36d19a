"""A replay in pieces is the replay of the whole."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.errors import InputError
from replay.execution import fleet
from replay.execution.engine import replay
from replay.execution.stream import replay_pieces
from replay.ingress.native import write_trace
from replay.ingress.streamed import open_streamed
from replay.provenance import Load
from replay.tiling.step_table import ROUTING_NAMES
from tests.execution.replay_cases import replay_cases
from tests.execution.test_fleet import with_limits
from tests.execution.test_loop_equals_twin import distribution, quiet_case
from tests.step_tables import constant_table, make_limits, make_trace


def in_pieces(trace, table, rows):
    requests = trace.requests
    pieces = [requests.slice(first, rows) for first in range(0, requests.num_rows, rows)]
    return list(replay_pieces(pieces, table, None))


@settings(max_examples=100, deadline=None)
@given(
    st.booleans().flatmap(lambda powered: replay_cases(compiles=True, powered=powered)),
    st.integers(1, 12),
    st.sampled_from([1, 3, 4096]),
    st.integers(1, 3),
    st.sampled_from(ROUTING_NAMES),
)
def test_pieces_joined_are_the_replay_of_the_whole(case, rows, held, replicas, routing):
    trace, table = case
    table = with_limits(table, prefix_cache=False, replicas_count=replicas, routing=routing)
    was, fleet.SEQUENCES_HELD = fleet.SEQUENCES_HELD, held
    try:
        pieces = in_pieces(trace, table, rows)
    finally:
        fleet.SEQUENCES_HELD = was
    whole = replay(trace, table)
    assert pa.concat_tables([piece.requests for piece in pieces]).to_pylist() == whole.requests.to_pylist()
    steps = pa.concat_tables([piece.steps for piece in pieces]).to_pylist()
    assert sorted(steps, key=lambda step: step["start_s"]) == whole.steps.to_pylist()
    gaps = [distribution(piece) for piece in pieces]
    assert sum(gaps[1:], gaps[0]) == distribution(whole)


def test_memory_holds_what_is_under_way_only():
    """Ten thousand requests of which two overlap at most: a replica never has room for more than it began with."""
    trace = make_trace(np.arange(10_000.0), [4] * 10_000, [3] * 10_000)
    table = constant_table(0.5, limits=make_limits())
    made = []

    class Watched(fleet.Replicas):
        def run(self, arrays):
            made.append(self._sequences.shape[1])
            super().run(arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replay.execution.stream.Replicas", Watched)
        patch.setattr(fleet, "SEQUENCES_HELD", 64)
        pieces = in_pieces(trace, table, 500)
    assert set(made) == {65}
    assert sum(piece.requests.num_rows for piece in pieces) == 10_000


def test_a_trace_is_read_in_pieces_as_it_is_whole(tmp_path):
    trace, _ = quiet_case()
    write_trace(trace, tmp_path / "x.parquet")
    streamed = open_streamed(tmp_path / "x.parquet")
    assert (streamed.name, streamed.digest, streamed.provenance) == (trace.name, trace.digest, trace.provenance)
    assert (streamed.requests_count, streamed.span_s) == (trace.requests.num_rows, trace.span_s)
    pieces = list(streamed.pieces(4))
    assert [piece.num_rows for piece in pieces] == [4, 2]
    assert pa.concat_tables(pieces).combine_chunks() == trace.requests.combine_chunks()


def test_what_cannot_be_read_in_pieces_is_refused(tmp_path):
    trace, table = quiet_case()
    write_trace(trace, tmp_path / "x.jsonl")
    with pytest.raises(InputError, match="no native Parquet trace"):
        open_streamed(tmp_path / "x.jsonl")
    write_trace(replace(trace, digest="sha256:" + "1" * 64), tmp_path / "changed.parquet")
    with pytest.raises(InputError, match="rows that differ from the digest"):
        open_streamed(tmp_path / "changed.parquet")
    with pytest.raises(InputError, match="prefix_cache"):
        list(replay_pieces([trace.requests], with_limits(table, prefix_cache=True), None))
    with pytest.raises(InputError, match="replay trace load"):
        list(replay_pieces([trace.requests], table, Load(concurrency=1)))
    with pytest.raises(InputError, match="before that of the row above"):
        list(replay_pieces([trace.requests.slice(3), trace.requests.slice(0, 3)], table, None))
    assert list(replay_pieces([], table, None)) == []
