"""Measured results and replays speak one language."""

import csv
import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from replay.assembly.metrics import request_metrics
from replay.execution.engine import replay as replayed
from replay.ingress.measured.measured_run import COMPLETED, FAILED, METRICS
from replay.ingress.measured.reader import read_measured
from tests.execution.replay_cases import replay_cases


def write_parquet(table, path):
    pq.write_table(table, path)


def write_json_lines(table, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_csv(table, path):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=table.column_names)
        writer.writeheader()
        writer.writerows(table.to_pylist())


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("write", [write_parquet, write_json_lines, write_csv])
@given(replay_cases())
def test_a_replay_read_back_as_a_measured_result_has_the_same_metrics(tmp_path_factory, write, case):
    """Invariant 13."""
    trace, table = case
    metrics = request_metrics(replayed(trace, table))
    path = tmp_path_factory.mktemp("measured") / "requests"
    write(metrics, path)
    (run,) = read_measured(path)
    for name in ("request_id", "prompt_tokens", "output_tokens", "preemptions_per_request", "prefix_hit_tokens", *METRICS):
        assert run.requests[name].to_pylist() == metrics[name].to_pylist(), name
    served = [status == COMPLETED for status in metrics["status"].to_pylist()]
    assert run.requests["status"].to_pylist() == [COMPLETED if done else FAILED for done in served]
    assert (run.facts.arrivals, run.facts.identity) == ("scheduled", "ids")
