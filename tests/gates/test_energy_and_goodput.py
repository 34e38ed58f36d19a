"""Energy per token and goodput: hand-worked figures, laws, and what is missing leaves a claim undecided."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gates.judge import judge
from gates.measure.goodput import goodput_per_s, goodput_windows
from gates.measure.points import measure_points
from gates.policy import SloLimits, parse_policy
from replay.assembly.headline import headline_of
from replay.assembly.run import WINDOWS_SCHEMA
from replay.errors import SpecError
from tests.measured import P95, gate_runs, measured_run_of
from tests.runs import cell_for, lognormal_s, make_run, policy_of, slower

ENERGY = '[blocking]\njoules_per_token = "3 %"\n'
GOODPUT = '[slo]\nttft_s = 2.0\n[blocking]\ngoodput_per_s = "3 %"\n'


def with_energy(run, scale=1.0):
    """Each window spends 3 J per token."""
    whole = pc.equal(run.windows["layer_type"], "all")
    energy = pc.if_else(whole, pc.multiply(pc.cast(run.windows["tokens"], pa.float64()), 3.0 * scale), None)
    place = WINDOWS_SCHEMA.get_field_index("energy_j")
    return replace(run, windows=run.windows.set_column(place, WINDOWS_SCHEMA.field("energy_j"), energy))


def only(baseline, candidate, text):
    return next(claim for claim in judge(cell_for(baseline, policy_of(text)), baseline, candidate) if claim.metric in text.split("]")[-1])


@pytest.mark.parametrize(("scale", "outcome"), [(0.5, "holds"), (1.0, "holds"), (1.029, "holds"), (1.031, "disproved")])
def test_energy_per_token_is_joules_over_tokens_and_lower_is_better(scale, outcome):
    run = make_run(lognormal_s(300))
    claim = only(with_energy(run), with_energy(run, scale), ENERGY)
    assert (claim.baseline, claim.ratio, claim.outcome) == (pytest.approx(3.0), pytest.approx(scale), outcome)


def test_an_accelerator_without_power_leaves_energy_undecided_and_does_not_drop_it():
    run = make_run(lognormal_s(300))
    claim = only(run, run, ENERGY)
    assert (claim.outcome, claim.reason_code, claim.baseline) == ("undecided", "metric_absent", None)
    assert "states no power" in claim.reason


def test_the_replicates_of_replays_see_the_energy_that_windows_see():
    run = with_energy(make_run(lognormal_s(300)))
    specs = policy_of(ENERGY).claims
    assert measure_points(specs, None, headline_of(run), headline_of(with_energy(run, 2.0))) == [(pytest.approx(3.0), pytest.approx(6.0))]
    assert np.isnan(measure_points(specs, None, headline_of(make_run([1.0])), headline_of(run))[0][0])


def test_goodput_is_the_requests_inside_all_limits_over_the_time_to_the_last_end():
    # Arrivals at 0, 1, 2, 3; ends at 1, 4, 2.5, 8; the second is too slow to its first token, the fourth in all.
    run = make_run([0.5] * 4, metrics={"ttft_s": [0.5, 2.5, 0.5, 0.5], "e2e_s": [1.0, 3.0, 0.5, 5.0]})
    slo = SloLimits(ttft_s=2.0, e2e_s=4.0)
    assert goodput_per_s(run.requests, slo) == 2 / 8
    good, seconds = goodput_windows(run.requests, slo, 2.0, 3)
    assert (good.tolist(), seconds.tolist()) == ([1.0, 1.0, 0.0], [2.0, 2.0, 4.0])


def test_windows_past_the_last_end_have_no_seconds_and_a_rejected_request_is_not_good():
    run = make_run([1.0] * 4, rejected=[3])
    good, seconds = goodput_windows(run.requests, SloLimits(ttft_s=9.0), 2.0, 5)
    assert (good.sum(), seconds.tolist()) == (3.0, [2.0, 1.0, 0.0, 0.0, 0.0])
    assert goodput_windows(make_run([1.0], rejected=[0]).requests, SloLimits(ttft_s=9.0), 2.0, 5) is None
    assert np.isnan(goodput_per_s(make_run([1.0], rejected=[0]).requests, SloLimits(ttft_s=9.0)))


@pytest.mark.parametrize("window_s", [0.3, 7.0, 1e6])
def test_the_cut_into_windows_changes_no_goodput(window_s):
    requests = make_run(lognormal_s(500)).requests
    good, seconds = goodput_windows(requests, SloLimits(ttft_s=1.0), window_s, 40)
    assert good.sum() / seconds.sum() == pytest.approx(goodput_per_s(requests, SloLimits(ttft_s=1.0)))


def test_goodput_falls_where_a_slower_candidate_misses_the_limit_and_holds_where_it_does_not():
    run = make_run(lognormal_s(500))
    # 500 arrivals, a second apart, in windows of 10 s.
    assert only(run, slower(run, 2.0), GOODPUT).outcome == "disproved"
    assert only(run, slower(run, 1.001), GOODPUT).outcome == "holds"
    claim = only(run, run, GOODPUT)
    assert (claim.outcome, claim.ratio, claim.unit) == ("holds", 1.0, "requests/s")


def test_goodput_without_limits_is_refused():
    with pytest.raises(SpecError, match="claims goodput_per_s and states no limits"):
        parse_policy('[blocking]\ngoodput_per_s = "3 %"', "p.toml")


def measured(baseline, candidate, text=P95 + 'goodput_per_s = "3 %"\n[slo]\nttft_s = 2.0\n'):
    return next(claim for claim in gate_runs(baseline, candidate, text).verdict.worst.claims if claim.metric == "goodput_per_s")


def test_goodput_of_measured_runs_is_that_of_the_requests_and_a_candidate_that_misses_limits_loses_it():
    values = lognormal_s(3000)
    run = measured_run_of(values)
    claim = measured(run, run)
    assert claim.baseline == pytest.approx((values <= 2.0).sum() / (0.1 * np.arange(3000) + 2 * values).max())
    assert measured(run, measured_run_of(2.0 * values)).outcome == "disproved"
    assert measured(run, measured_run_of(values, columns={"ttft_s": [None] * 3000})).reason_code == "metric_absent"


def test_goodput_of_repeated_runs_is_compared_run_by_run():
    baseline, candidate = (
        [measured_run_of(scale * lognormal_s(2000, seed), digest=f"{scale}{seed}") for seed in range(4)] for scale in (1.0, 2.0)
    )
    claim = measured(baseline, candidate)
    assert (claim.method, claim.outcome) == ("welch_t", "disproved")


def test_goodput_near_a_limit_that_all_requests_brush_is_less_sure_than_far_from_it():
    """A run effect of 1 % in latency decides whether requests at the limit are good."""
    near, far = (np.full(2000, 2.0) * np.exp(0.01 * np.random.default_rng(1).standard_normal(2000)) * level for level in (1.0, 0.5))
    widths = []
    for values in (near, far):
        interval = measured(measured_run_of(values), measured_run_of(values)).interval
        widths.append(interval.upper - interval.lower)
    assert widths[0] > 5 * widths[1]
