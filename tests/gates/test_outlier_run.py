"""One run of an arm that is unlike the others: named, kept, and rarely seen where there is none."""

import numpy as np
import pytest

from gates.checks.measured_outliers import OUTLIER_Z
from tests.measured import P95, codes, gate_runs, measured_run_of
from tests.runs import lognormal_s

VALUES = lognormal_s(400)


def arm(levels, tag):
    """Runs of the same requests, each slower or faster as a whole."""
    return [measured_run_of(level * VALUES, digest=f"{tag}{place}", file_name=f"{tag}{place}.jsonl") for place, level in enumerate(levels)]


def message(result):
    return next((reason["message"] for reason in result.verdict.worst.reasons if reason["code"] == "outlier_run"), None)


STEADY = (0.995, 1.0, 1.005, 1.01)


@pytest.mark.parametrize("level", [0.8, 1.25])
def test_a_run_far_from_the_others_of_its_arm_is_named_in_both_directions_and_kept(level):
    result = gate_runs(arm(STEADY, "b"), arm((1.0, level, 1.0, 1.01), "c"))
    assert "run 2 of the candidate (c1.jsonl) is an outlier" in message(result)
    claim = result.verdict.worst.claims[0]
    assert claim.candidate != pytest.approx(claim.baseline, rel=0.03)


def test_runs_that_spread_evenly_or_less_than_the_assumed_run_effect_hold_no_outlier():
    assert message(gate_runs(arm(STEADY, "b"), arm((0.8, 0.9, 1.1, 1.25), "c"))) is None
    close = arm((1.0, 1.0, 1.0, 1.07), "c")
    assert message(gate_runs(arm(STEADY, "b"), close)) is None
    assert message(gate_runs(arm(STEADY, "b"), close, 'run_effect_sd = "0.5 %"\n' + P95)) is not None


def test_equal_runs_hold_none_and_one_that_differs_from_equals_is_one_even_without_an_assumed_effect():
    text = "run_effect_sd = 0.0\n" + P95
    assert message(gate_runs(arm((1.0,) * 4, "b"), arm((1.0,) * 4, "c"), text)) is None
    assert message(gate_runs(arm((1.0,) * 4, "b"), arm((1.0, 1.0, 1.0, 1.001), "c"), text)) is not None


def test_three_runs_are_too_few_to_call_one_an_outlier():
    assert "outlier_run" not in codes(gate_runs(arm((1.0, 1.0, 3.0), "b"), arm((1.0, 1.0, 3.0), "c")))


@pytest.mark.parametrize("runs", [4, 5, 8])
def test_of_normal_runs_the_farthest_is_beyond_the_limit_in_at_most_one_of_twenty(runs):
    draws = np.random.default_rng(3).standard_normal((20_000, runs))
    distances = np.abs(draws - np.median(draws, axis=1, keepdims=True))
    z = distances.max(axis=1) / (1.4826 * np.median(distances, axis=1))
    assert (z > OUTLIER_Z).mean() <= 0.05
