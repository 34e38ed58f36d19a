"""Sweeps: points are single replays, bisection agrees with a dense grid, and what cannot be sustained is said in a sentence."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gates.policy import SloLimits
from gates.resimulation.stitch import stitched
from gates.statistics.blocks import block_length, draw_blocks
from gates.sweep.load import FURTHEST, RESOLUTION, Axis
from gates.sweep.sweep import BLOCKS, REPLICATES, Question, SweepPoint, highest_load, knee_of, point_at, sweep
from replay.assembly.percentile import percentile
from replay.errors import SpecError
from replay.ingress.sending import scaled_trace
from replay.seeds import stream
from tests.resimulation.resimulated_cells import BASELINE, replayer_on, traffic

SLO = SloLimits(ttft_s=0.5)


@pytest.fixture(scope="module")
def replayer():
    return replayer_on(traffic(400, gap_s=0.2))


def asked(replayer, *, axis="rate_ratio", loads=(0.5, 1.0, 2.0), slo=SLO, attainment=0.95):
    return Question(replayer=replayer, axis=Axis(name=axis), loads=loads, slo=slo, attainment=attainment, jobs=2, progress=lambda _: None)


def attainment(question, load):
    return point_at(question, BASELINE, question.replayer.trace, load).attainment_ratio


def test_a_point_is_what_a_run_on_the_scaled_trace_says(replayer):
    curve = sweep(asked(replayer), BASELINE, "b")
    for point in curve.points:
        run = replayer.run_on(scaled_trace(replayer.trace, rate_ratio=point.load), BASELINE)
        values = run.requests["ttft_s"].drop_null().to_numpy()
        assert point.latency_s["ttft_s.p95"] == percentile(values, 95.0)
        assert point.attainment_ratio == np.mean(values <= SLO.ttft_s)
        assert point.offered_per_s == pytest.approx(399 / (replayer.trace.span_s / point.load))
    rates = [point.load for point in curve.points]
    assert rates == sorted(rates)


def test_bisection_agrees_with_a_dense_grid(replayer):
    question = asked(replayer)
    found = highest_load(question, BASELINE, replayer.trace)
    grid = found * np.geomspace(0.5, 2.0, 41)
    holds = np.array([attainment(question, load) >= question.attainment for load in grid])
    crossing = int(np.flatnonzero(~holds)[0])
    assert holds[:crossing].all()
    assert grid[crossing - 1] <= found * RESOLUTION
    assert found <= grid[crossing]
    assert attainment(question, found) >= question.attainment
    assert attainment(question, found * RESOLUTION**2) < question.attainment


def test_the_interval_is_that_of_the_resamples_own_loads_and_does_not_depend_on_jobs(replayer):
    one, two = (sweep(Question(**{**_fields(asked(replayer)), "jobs": jobs}), BASELINE, "b") for jobs in (1, 2))
    assert one == two
    n = replayer.trace.requests.num_rows
    draw = draw_blocks(n, length=block_length(n, BLOCKS), replicates=REPLICATES, generator=stream(replayer.seed, "sweep.blocks"))
    loads = [highest_load(asked(replayer), BASELINE, stitched(replayer.trace, draw, place)) for place in range(REPLICATES)]
    width = stats.t.ppf(0.975, REPLICATES - 1) * np.std(np.log(loads), ddof=1)
    assert np.log(one.sustainable.upper / one.sustainable.load) == pytest.approx(width, abs=3 * np.log(RESOLUTION))
    assert one.sustainable.upper / one.sustainable.load == pytest.approx(one.sustainable.load / one.sustainable.lower)


def _fields(question):
    return {name: getattr(question, name) for name in question.__slots__}


def test_clients_that_wait_are_found_to_one_client(replayer):
    question = asked(replayer, axis="concurrency", loads=(1.0, 4.0), attainment=0.9)
    found = highest_load(question, BASELINE, replayer.trace)
    assert found == int(found)
    assert attainment(question, found) >= 0.9
    assert attainment(question, found + 1) < 0.9
    points = sweep(question, BASELINE, "b").points
    assert points[0].offered_per_s is None
    assert points[1].served_per_s > points[0].served_per_s


def test_limits_that_no_load_keeps_and_limits_that_every_load_keeps_are_sentences(replayer):
    never = sweep(asked(replayer, slo=SloLimits(ttft_s=1e-6)), BASELINE, "b").sustainable
    assert (never.load, never.lower) == (None, None)
    assert "of the requests meet the limits" in never.sentence
    always = sweep(asked(replayer, slo=SloLimits(e2e_s=1e6)), BASELINE, "b").sustainable
    assert always.load == FURTHEST
    assert "at every load tried" in always.sentence


def point(load, e2e_s):
    return SweepPoint(
        load=load, offered_per_s=load, served_per_s=1.0, output_tokens_per_s=1.0, goodput_per_s=1.0, attainment_ratio=1.0,
        latency_s={"e2e_s.p95": e2e_s}, mfu_ratio=0.1, joules_per_token=None, preemptions=0, rejected=0,
    )  # fmt: skip


def test_the_knee_is_where_the_curve_leaves_its_chord_furthest():
    assert knee_of([point(load, 1.0 if load <= 5 else (load - 4.0) ** 3) for load in range(1, 10)]) == 6
    assert knee_of([point(1, 1.0), point(2, 2.0)]) is None
    assert knee_of([point(load, 1.0) for load in range(5)]) is None
    assert knee_of([point(load, float(load)) for load in range(5)]) is None


def test_a_part_of_a_client_is_refused(replayer):
    with pytest.raises(SpecError, match="whole number of clients"):
        point_at(asked(replayer, axis="concurrency"), BASELINE, replayer.trace, 1.5)
