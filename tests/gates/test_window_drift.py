"""Drift over a run: last third of the windows against the first, candidate against baseline."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gates.checks import Evidence, run_checks
from gates.judge import judge
from gates.measure.points import measure_points
from gates.measure.window_drift import drift_point
from gates.policy import parse_policy
from replay.assembly.headline import headline_of
from replay.assembly.run import WINDOWS_SCHEMA
from replay.errors import SchemaError
from replay.provenance import TraceProvenance
from tests.runs import WINDOWS_COUNT, cell_for, lognormal_s, make_run, policy_of

THIRD = WINDOWS_COUNT // 3
LATE = np.where(np.arange(WINDOWS_COUNT) >= WINDOWS_COUNT - THIRD, 1.0, 0.0)


def with_window(run, name, values):
    """The run with a column of its whole windows [windows] replaced."""
    table = run.windows
    column = [
        value if layer == "all" else None
        for value, layer in zip(np.repeat(values, 3).tolist(), table["layer_type"].to_pylist(), strict=True)
    ]
    if not WINDOWS_SCHEMA.field(name).nullable:
        kept = table[name].to_pylist()
        column = [old if new is None else new for old, new in zip(kept, column, strict=True)]
    field = WINDOWS_SCHEMA.field(name)
    return replace(run, windows=table.set_column(table.column_names.index(name), field, pa.array(column, field.type)))


def slow_in_the_end(run, factor):
    busy = run.windows.filter(pc.equal(run.windows["layer_type"], "all"))["time_s"].to_numpy()
    return with_window(run, "time_s", busy * (1.0 + (factor - 1.0) * LATE))


def claim_of(baseline, candidate, of="throughput_tokens_per_s"):
    text = f'[blocking]\nwindow_drift_ratio = {{ {of} = "3 %" }}'
    return judge(cell_for(baseline, policy_of(text)), baseline, candidate)[0]


@pytest.mark.parametrize(("factor", "outcome"), [(0.9, "holds"), (1.0, "holds"), (1.02, "holds"), (1.05, "disproved")])
def test_a_candidate_that_slows_down_over_the_run_is_judged_by_how_much_more_than_the_baseline(factor, outcome):
    run = make_run(lognormal_s(500))
    claim = claim_of(run, slow_in_the_end(run, factor))
    assert (claim.outcome, claim.ratio, claim.n) == (outcome, pytest.approx(factor), WINDOWS_COUNT)
    assert claim.key == "window_drift_ratio.throughput_tokens_per_s"
    assert claim.to_document()["of"] == "throughput_tokens_per_s"


def test_a_drift_that_both_arms_share_is_the_trace_s_own():
    run = slow_in_the_end(make_run(lognormal_s(500)), 1.4)
    claim = claim_of(run, run)
    assert claim.baseline > 1.3
    assert (claim.ratio, claim.interval.lower, claim.interval.upper, claim.outcome) == (1.0, 1.0, 1.0, "holds")


def test_what_is_slower_from_the_start_on_does_not_drift():
    run = make_run(lognormal_s(500))
    assert claim_of(run, with_window(run, "time_s", np.full(WINDOWS_COUNT, 16.0))).ratio == pytest.approx(1.0)


def test_drift_of_the_time_per_token_is_that_of_requests_by_their_arrival():
    # 500 arrivals, a second apart; windows of 10 s, 16 in a third: the first 160 requests and the last 160.
    tpot = np.full(500, 0.02)
    tpot[-160:] = 0.03
    run = make_run(lognormal_s(500), metrics={"tpot_s": np.full(500, 0.02)})
    claim = claim_of(run, make_run(lognormal_s(500), metrics={"tpot_s": tpot}), "tpot_s")
    assert (claim.baseline, claim.candidate, claim.outcome) == (pytest.approx(1.0), pytest.approx(1.5), "disproved")


def test_drift_of_the_clock_is_undecided_without_power_and_lower_clocks_are_worse():
    run = make_run(lognormal_s(500))
    assert (claim_of(run, run, "clock_hz").outcome, claim_of(run, run, "clock_hz").reason_code) == ("undecided", "metric_absent")
    steady, falling = (with_window(run, "clock_hz", 2e9 * (1.0 - share * LATE)) for share in (0.0, 0.2))
    claim = claim_of(steady, falling, "clock_hz")
    assert (claim.ratio, claim.outcome) == (pytest.approx(1.25), "disproved")
    assert claim_of(falling, steady, "clock_hz").outcome == "holds"


@pytest.mark.parametrize(("windows_count", "code"), [(23, "too_few_windows"), (24, None)])
def test_a_third_needs_eight_windows(windows_count, code):
    run = make_run(lognormal_s(500), windows_count=windows_count)
    claim = claim_of(run, run)
    assert claim.reason_code == code
    assert claim.n_needed == (24 if code else None)


def test_the_arm_that_ends_first_says_which_windows_count():
    short, long = (make_run(lognormal_s(500), windows_count=count) for count in (30, 45))
    assert claim_of(short, long).n == 30
    assert claim_of(short, long).ratio == pytest.approx(1.0)


def test_replays_see_the_same_drift_as_windows_and_sums_see_none():
    run = make_run(lognormal_s(500))
    specs = policy_of('[blocking]\nwindow_drift_ratio = { throughput_tokens_per_s = "3 %" }').claims
    arms = headline_of(run), headline_of(slow_in_the_end(run, 1.2))
    before, after = measure_points(specs, None, *arms)[0]
    assert after / before == pytest.approx(1.2)
    assert np.isnan(drift_point("tpot_s", replace(arms[0], windows=None), arms[1])).all()


def test_drift_of_anything_else_is_refused():
    with pytest.raises(SchemaError, match="queue_s"):
        parse_policy('[blocking]\nwindow_drift_ratio = { queue_s = "3 %" }', "p.toml")


def thermal(baseline, candidate, text=""):
    origin = TraceProvenance(kind="recorded", origin="csv", source_digest="sha256:0", rows_read=2000, rows_kept=2000)
    found = run_checks(Evidence(baseline=baseline, candidate=candidate, provenance=origin, policy=policy_of(text)))
    return {finding.code: finding for finding in found if finding.bottleneck_class == "thermal"}


def test_a_clock_that_falls_in_the_candidate_alone_is_said_and_disproves_where_the_policy_says_so():
    run = make_run(lognormal_s(2000))
    steady, falling, barely = (with_window(run, "clock_hz", 2e9 * (1.0 - share * LATE)) for share in (0.0, 0.1, 0.005))
    assert thermal(steady, falling)["candidate_throttles"].effect == "informs"
    assert thermal(steady, falling, 'throttling = "disproves"')["candidate_throttles"].effect == "disproves"
    assert "from 2000 to 1800 MHz (-10.0 %)" in thermal(steady, falling)["candidate_throttles"].message
    for pair in ((falling, falling), (falling, steady), (steady, steady), (steady, barely), (run, run), (steady, run)):
        assert thermal(*pair) == {}


def test_a_candidate_slow_from_the_second_window_on_is_throttled_too():
    run = make_run(lognormal_s(2000))
    falling = with_window(run, "clock_hz", np.where(np.arange(WINDOWS_COUNT) < 1, 2e9, 1.8e9))
    assert "candidate_throttles" in thermal(with_window(run, "clock_hz", np.full(WINDOWS_COUNT, 2e9)), falling)


def test_a_device_that_still_heats_up_when_the_trace_ends_is_said():
    run = make_run(lognormal_s(2000))
    flat, rising = (with_window(run, "temperature_c", 50.0 + slope * np.arange(WINDOWS_COUNT)) for slope in (0.0, 0.5))
    assert thermal(flat, rising)["candidate_still_heating"].effect == "informs"
    assert thermal(rising, rising) == thermal(rising, flat) == {}
