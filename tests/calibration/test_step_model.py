"""The step model: replayed steps cost what the formula says, whatever is in them."""

import numpy as np
import pytest

from replay.calibration.runs.log import read_run_log
from replay.calibration.runs.predict import LogReplay, warm_trace
from replay.calibration.runs.step_model import captured_tokens
from tests.calibration.run_logs import META, PARAMETERS, random_trace, served
from tests.step_tables import make_trace


@pytest.mark.parametrize("sizes", [None, []], ids=["captured", "eager"])
def test_every_step_takes_what_the_formula_says(tmp_path, sizes):
    compiled = {} if sizes is None else {"resolved_config": {"compilation_config": {"cudagraph_capture_sizes": sizes}}}
    log = read_run_log(served(tmp_path, random_trace(), meta=META | compiled)[0])
    steps = {name: column.to_numpy() for name, column in zip(*_columns(LogReplay(log).replay(PARAMETERS).steps), strict=True)}
    tokens = np.where(steps["captured_tokens"] > 0, steps["captured_tokens"], steps["tokens"])
    expected = np.hypot(PARAMETERS.base_s, PARAMETERS.per_token_s * tokens)
    expected += PARAMETERS.per_sequence_s * steps["sequences"] + PARAMETERS.per_context_token_s * steps["decode_context_tokens"]
    expected += PARAMETERS.per_prefill_token_s * steps["prefill_tokens"] + PARAMETERS.per_pair_s * steps["prefill_pairs"]
    expected += PARAMETERS.per_mixed_step_s * (steps["prefill_tokens"] > 0)
    assert steps["device_s"] == pytest.approx(expected, rel=1e-12)
    assert (steps["captured_tokens"] > 0).any() == (sizes is None)


def _columns(table):
    return table.column_names, table.columns


def test_a_step_replays_the_smallest_captured_graph_that_holds_it_and_none_above_the_largest():
    assert captured_tokens(np.array([0, 1, 3, 4, 5, 9]), (8, 2, 4, 512), 256).tolist() == [0, 2, 4, 4, 8, 0]


def test_a_cold_first_step_delays_everyone_behind_it_by_as_much():
    """Arrivals in the first step stay in it, and the others move forward, whichever come first."""
    trace = make_trace([0.0, 0.02, 0.5, 2.0], [1] * 4, [1] * 4)
    assert warm_trace(trace, 0.5).requests["arrival_s"].to_pylist() == [0.0, 1e-9, 1e-9, 1.5]
    assert warm_trace(trace, 0.0).requests["arrival_s"].to_pylist() == [0.0, 0.02, 0.5, 2.0]
