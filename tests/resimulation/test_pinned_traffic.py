"""Traffic that knobs are compared on: the same for every mapping, and on the recorded trace what the claims say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gates.attribution.effects import claims_to_explain, knob_effects
from gates.attribution.trials import Judgement, Trials
from gates.judge import judge
from gates.resimulation.traffic import REPLICATES, PinnedTraffic
from gates.verdict import decide_cell
from replay.specs.mapping import parse_mapping
from tests.resimulation.resimulated_cells import BASELINE, CANDIDATE, TILED, planned, replayer_on, traffic

PLACES = range(1 + REPLICATES)


@pytest.fixture(scope="module")
def replayer():
    return replayer_on(traffic())


def test_recorded_figures_are_those_of_the_claims_and_resamples_do_not_depend_on_jobs_or_order(replayer):
    cell = planned(replayer)
    one, two = (PinnedTraffic(cell, replayer, BASELINE, jobs=jobs) for jobs in (1, 2))
    assert one.replicates_count == REPLICATES
    figures = one.figures(CANDIDATE, PLACES)
    [claim] = [claim for claim in judge(cell, replayer.run(BASELINE), replayer.run(CANDIDATE)) if claim.blocking]
    assert figures[0][claim.id] == claim.candidate
    assert two.figures(TILED, [3]) is not None
    backwards = two.figures(CANDIDATE, PLACES[::-1])
    assert backwards[::-1] == figures
    assert len({row[claim.id] for row in figures}) > 5


def test_a_trace_of_sessions_or_a_huge_one_has_no_resamples(replayer, monkeypatch):
    cell = planned(replayer)
    monkeypatch.setattr("gates.resimulation.traffic.MOST_REQUESTS", 240 * 7)
    few = PinnedTraffic(cell, replayer, BASELINE, jobs=1)
    assert few.replicates_count == 0
    assert len(few.figures(BASELINE, [0])) == 1


def test_a_mapping_that_cannot_be_built_has_no_figures(replayer):
    cell = planned(replayer)
    split = parse_mapping('name = "m"\n[parallelism]\ntensor = 7\n', "m")
    assert PinnedTraffic(cell, replayer, BASELINE, jobs=1).figures(split, PLACES) is None


def test_effects_and_intervals_are_those_worked_out_from_the_four_mixes_by_hand(replayer):
    cell = planned(replayer)
    candidate = parse_mapping(
        'name = "m"\n[batching]\nmax_running = 12\nmax_batched_tokens = 256\nmax_context_tokens = 4096\n[gemm]\ntile = [64, 64, 64]\n', "m"
    )

    def judged(mapping, run):
        claims = tuple(judge(cell, replayer.run(BASELINE), run))
        decision, basis = decide_cell(claims, ())
        return Judgement(decision=decision, basis=basis, claims=claims)

    trials = Trials(
        replayer=replayer, baseline=BASELINE, candidate=candidate, judge=judged, judgement=judged(candidate, replayer.run(candidate))
    )
    effects = knob_effects(trials, claims_to_explain(trials.judgement.claims), PinnedTraffic(cell, replayer, BASELINE, jobs=2))
    assert {effect.knob for effect in effects} == {"batching.max_running", "gemm.tile"}
    pinned, claim = PinnedTraffic(cell, replayer, BASELINE, jobs=1), trials.judgement.claims[0]
    whole, base, without = (
        np.log([row[claim.id] for row in pinned.figures(mapping, PLACES)])
        for mapping in (candidate, BASELINE, trials.mapping({"gemm.tile"}))
    )
    tile_alone = np.log([row[claim.id] for row in pinned.figures(trials.only({"gemm.tile"}), PLACES)])
    parts = ((whole - without) + (tile_alone - base)) / 2
    half_width = stats.t.ppf(0.975, REPLICATES - 1) * np.std(parts[1:], ddof=1)
    tile = next(effect for effect in effects if effect.knob == "gemm.tile")
    assert tile.effect == pytest.approx(np.expm1(parts[0]))
    assert (tile.interval.lower, tile.interval.upper) == pytest.approx((np.expm1(parts[0] - half_width), np.expm1(parts[0] + half_width)))
    assert half_width > 0
    total = trials.judgement.claims[0]
    product = np.prod([1.0 + effect.effect for effect in effects if effect.metric == effects[0].metric])
    assert product == pytest.approx(total.candidate / total.baseline)
