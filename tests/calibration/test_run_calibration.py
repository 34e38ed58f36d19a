"""Fits of step models to request logs: made-up servers are found again, recorded ones predicted within the stated errors."""

from dataclasses import replace

import pytest

from replay.calibration.runs.compare import errors_between
from replay.calibration.runs.fit import calibrate_run
from replay.calibration.runs.grouping import forced_grouping
from replay.calibration.runs.judge import judge_run
from replay.calibration.runs.log import read_run_log
from replay.calibration.runs.predict import observed_latencies
from replay.documents import check
from replay.specs.run_calibration import RunCalibration
from tests.calibration.run_logs import META, PARAMETERS, random_trace, served

LOGS = "data/traces/vllm_request_logs"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A log of a made-up server and the calibration fitted to it."""
    log = read_run_log(served(tmp_path_factory.mktemp("run"), random_trace())[0])
    return log, calibrate_run(log)


def worst_error(errors):
    return max(abs(place.error_ratio) for error in errors for place in error.percentiles)


def test_a_fit_predicts_the_half_that_it_has_not_seen(made):
    log, fitted = made
    assert (log.origin.requests_count, fitted.fitted_requests_count) == (60, 30)
    assert [error.metric for error in fitted.errors] == ["ttft_s", "tpot_s", "e2e_s"]
    assert worst_error(fitted.errors) < 0.03
    assert max(error.median_error_ratio for error in fitted.errors) < 0.03


def test_a_fit_finds_the_cost_of_a_decoding_step_again(made):
    """The parts of a step trade off against each other; what a batch of eight costs does not."""
    seen, true = made[1].parameters, PARAMETERS
    costs = [
        ((one.base_s**2 + (8 * one.per_token_s) ** 2) ** 0.5 + 8 * one.per_sequence_s + 4000 * one.per_context_token_s)
        for one in (seen, true)
    ]
    assert costs[0] == pytest.approx(costs[1], rel=0.06)
    assert seen.startup_s == pytest.approx(true.startup_s, rel=0.5)


def test_a_document_of_a_fit_is_valid_and_reads_back(made):
    document = made[1].to_document()
    check(document, "run-calibration.v1", "run.json")
    assert RunCalibration.from_document(document) == replace(made[1], rules=document["rules"])


def test_the_log_that_was_fitted_is_judged_on_its_second_half_and_another_load_wholly(made, tmp_path):
    log, fitted = made
    own = judge_run(log, fitted)
    assert (own.first_judged, own.errors, own.grouping) == (30, fitted.errors, fitted.grouping)
    other = read_run_log(served(tmp_path, random_trace(seed=5, load=0.5))[0])
    found = judge_run(other, fitted, startup_s=PARAMETERS.startup_s)
    assert found.first_judged == 0
    assert [error.requests_count for error in found.errors][::2] == [60, 60]
    assert worst_error(found.errors) < 0.08


def test_a_run_compared_with_itself_has_no_error(made):
    seen = observed_latencies(made[0])
    errors = errors_between(seen, seen, slice(None))
    assert {place.error_ratio for error in errors for place in error.percentiles} == {0.0}
    assert [(error.median_error_ratio, round(error.correlation, 9)) for error in errors] == [(0.0, 1.0)] * 3


def test_percentiles_are_order_statistics_and_half_too_slow_is_minus_a_third(made):
    seen = observed_latencies(made[0])
    slower = replace(seen, ttft_s=1.5 * seen.ttft_s)
    (ttft, _, _) = errors_between(slower, seen, slice(0, 20))
    ordered = sorted(slower.ttft_s[:20].tolist())
    assert [place.observed_s for place in ttft.percentiles] == [ordered[9], ordered[18], ordered[19]]
    assert [place.error_ratio for place in ttft.percentiles] == pytest.approx([-1 / 3] * 3)


@pytest.mark.parametrize("seed", range(3))
def test_on_the_logs_clock_steps_hold_the_same_requests_even_if_their_prices_are_off(tmp_path, seed):
    log = read_run_log(served(tmp_path, random_trace(seed))[0])
    exact = forced_grouping(log, PARAMETERS, 0)
    assert exact.alike_count == exact.steps_count > 60
    off = replace(PARAMETERS, base_s=1.05 * PARAMETERS.base_s, per_mixed_step_s=0.0)
    assert forced_grouping(log, off, 0).alike_count >= 0.9 * exact.steps_count


@pytest.mark.parametrize("rules", [{"async_scheduling": False}, {"max_num_batched_tokens": 128}, {"max_num_seqs": 8}], ids=str)
def test_on_the_logs_clock_other_rules_put_requests_in_other_steps(tmp_path, rules):
    path, _ = served(tmp_path, random_trace())
    (tmp_path / "other").mkdir()
    served(tmp_path / "other", random_trace(), meta=META | {"engine_kwargs": META["engine_kwargs"] | rules})
    other = read_run_log(path, meta=tmp_path / "other" / "meta.json")
    found = forced_grouping(other, PARAMETERS, 0)
    assert found.alike_count < 0.9 * found.steps_count


RECORDED = {
    "RTX4090_Llama-3.1-8B": (0.03, 0.03, 0.70),
    "RTXPRO6000_Llama-3.1-8B": (0.02, 0.01, 0.68),
    "RTXPRO6000_Qwen3-32B": (0.025, 0.012, 0.64),
}
"""Of the unseen half: most error of a percentile, most median error of a request, least share of steps alike on the log's clock; with
slack. The last is low because the log does not say which prompts begin alike."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_servers_are_predicted_within_the_stated_errors(shared, name):
    most, most_median, least_alike = RECORDED[name]
    fitted = calibrate_run(read_run_log(shared / LOGS / f"{name}_requests.jsonl"))
    assert worst_error(fitted.errors) < most
    assert max(error.median_error_ratio for error in fitted.errors) < most_median
    assert fitted.grouping.alike_count > least_alike * fitted.grouping.steps_count
