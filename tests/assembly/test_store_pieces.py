"""A run written piece by piece is the run of the whole, and is there whole or not at all."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.assembly.assemble import Assembly, assemble, summary
from replay.assembly.busy import busy_seconds
from replay.assembly.store import read_run, write_run
from replay.assembly.store_pieces import write_pieces
from replay.errors import SpecError
from replay.execution.engine import replay
from replay.execution.stream import replay_pieces
from replay.tiling.step_table import ROUTING_NAMES
from tests.assembly.test_store import FILES, manifest, names
from tests.execution.replay_cases import replay_cases
from tests.execution.test_fleet import with_limits
from tests.execution.test_loop_equals_twin import distribution
from tests.execution.test_pipelined_steps import pipelined
from tests.models import round_hardware
from tests.step_tables import constant_table, linear_table, make_limits, make_trace

MANIFEST = manifest()
MANIFEST["cells"][0]["hardware"] = round_hardware().to_document()  # without the megabyte of a calibration
ABOUT = {"model": "m", "hardware": "h", "mapping_digest": "sha256:0", "seed": 1}
ROUNDING = 1e-9
"""Relative; sums of a piece are added in another order."""


def in_pieces(trace, table, rows):
    requests = trace.requests
    return replay_pieces([requests.slice(first, rows) for first in range(0, requests.num_rows, rows)], table, None)


def streamed(trace, table, rows, folder):
    return write_pieces(Assembly(trace=trace, table=table, **ABOUT), in_pieces(trace, table, rows), folder, MANIFEST)


def whole(trace, table):
    return assemble(trace=trace, table=table, replayed=replay(trace, table), **ABOUT)


def in_order(steps):
    return sorted(steps.to_pylist(), key=lambda step: (step["start_s"], step["replica"]))


def assert_close(found, wanted, where=""):
    """Assert that two documents are equal, numbers that are not whole to rounding."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for key, value in wanted.items():
            assert_close(found[key], value, f"{where}.{key}")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=ROUNDING, abs=1e-12), where
    else:
        assert found == wanted, where


@settings(max_examples=30, deadline=None)
@given(
    st.booleans().flatmap(lambda powered: replay_cases(compiles=True, powered=powered)),
    st.integers(1, 12),
    st.integers(1, 3),
    st.sampled_from(ROUTING_NAMES),
)
def test_a_run_in_pieces_is_the_run_of_the_whole(case, rows, replicas, routing):
    trace, table = case
    table = with_limits(table, prefix_cache=False, replicas_count=replicas, routing=routing)
    run = whole(trace, table)
    with tempfile.TemporaryDirectory() as place:
        document = streamed(trace, table, rows, Path(place) / "run")
        found, kept = read_run(Path(place) / "run")
    assert kept == MANIFEST
    assert found.requests.to_pylist() == run.requests.to_pylist()
    assert in_order(found.steps) == in_order(run.steps)
    assert distribution(found) == distribution(run)
    for name in ("layers", "windows"):
        for row, wanted in zip(getattr(found, name).to_pylist(), getattr(run, name).to_pylist(), strict=True):
            assert_close(row, wanted, name)
    assert_close(document["summary"], summary(run))
    assert document["summary"]["percentiles"] == summary(run)["percentiles"]
    assert found.rejected == run.rejected


def test_a_trace_that_is_one_piece_gives_the_same_bytes(tmp_path):
    trace = make_trace(np.arange(400) * 0.2, [4 + index % 90 for index in range(400)], [1 + index % 7 for index in range(400)])
    table = constant_table(0.5, limits=make_limits(max_running=3, max_context_tokens=80))
    assert streamed(trace, table, 400, tmp_path / "pieces") == write_run(whole(trace, table), tmp_path / "whole", MANIFEST)
    for name in FILES:
        assert (tmp_path / "pieces" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError, OSError])
def test_an_interrupted_run_leaves_what_was_there_and_nothing_else(tmp_path, stop):
    trace, table = make_trace(np.arange(40.0), [4] * 40, [3] * 40), constant_table(0.25)
    before = streamed(trace, table, 8, tmp_path / "old")

    def stopping():
        for number, piece in enumerate(in_pieces(trace, table, 8)):
            if number == 3:
                raise stop
            yield piece

    for name in ("old", "new"):
        with pytest.raises(SpecError if stop is OSError else stop):
            write_pieces(Assembly(trace=trace, table=table, **ABOUT), stopping(), tmp_path / name, MANIFEST)
    assert names(tmp_path) == {"old"}
    assert summary(read_run(tmp_path / "old")[0]) == before["summary"]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    trace, table = make_trace([0.0, 1.0], [4, 4], [3, 3]), constant_table(0.25)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SpecError, match="a folder with other content"):
        streamed(trace, table, 1, tmp_path)
    assert names(tmp_path) == {"notes.txt"}


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_that_overlaps_one_of_the_piece_before_is_busy_once(replicas):
    limits = make_limits(max_running=2, max_batched_tokens=1, replicas_count=replicas)
    table = pipelined(linear_table(step_s=1.0, limits=limits), 1, 1, inflight=2)
    steps = replay(make_trace([0.0] * 4, [1] * 4, [9] * 4), table).steps
    wanted, ended_s = busy_seconds(steps), np.zeros(replicas)
    found = [busy_seconds(steps.slice(first, 3), ended_s) for first in range(0, steps.num_rows, 3)]
    assert wanted.sum() < (steps["end_s"].to_numpy() - steps["start_s"].to_numpy()).sum()
    assert np.concatenate(found).tolist() == wanted.tolist()
