"""Archived runs of one configuration: what they say about how much runs differ, and what follows for a pair and for repeated runs."""

import numpy as np
import pytest
from scipy import stats

from gates.measure.between_runs import archived_spread
from gates.request import RunArchive
from tests.measured import P95, codes, gate_runs, measured_run_of
from tests.runs import lognormal_s

N = 2000
VALUES = lognormal_s(N)


def run(seed, effect=0.0, jitter=0.05, **facts):
    noise = np.random.default_rng(seed).standard_normal(N)
    return measured_run_of(VALUES * np.exp(effect + jitter * noise), digest=f"sha256:{seed:064x}", **facts)


def archive_of(effect_sd, sets=8, runs=5, seed=100, **facts):
    drawn = effect_sd * np.random.default_rng(seed).standard_normal((sets, runs))
    members = [[run(1000 * seed + runs * one + place, drawn[one, place], **facts) for place in range(runs)] for one in range(sets)]
    return RunArchive(label="archive", sets=tuple(tuple((f"{one.facts.digest}", one) for one in members) for members in members))


def width_and_warnings(archive, text=P95):
    claim = gate_runs(run(1), run(2), text, archive=archive).verdict.worst.claims[0]
    return np.log(claim.interval.upper / claim.interval.lower), " ".join(claim.warnings)


def test_an_archive_without_run_effect_narrows_a_pair_and_one_with_more_than_assumed_widens_it():
    assumed, _ = width_and_warnings(None, 'run_effect_sd = "2 %"\n' + P95)
    quiet, told = width_and_warnings(archive_of(0.0), 'run_effect_sd = "2 %"\n' + P95)
    assert quiet < 0.6 * assumed
    assert "40 archived runs in 8 sets show no run effect beyond" in told
    loud, told = width_and_warnings(archive_of(0.05), 'run_effect_sd = "2 %"\n' + P95)
    assert loud > 1.5 * assumed
    assert "show a run effect with" in told


def test_an_archive_too_small_to_show_less_leaves_the_assumed_run_effect():
    small = archive_of(0.0, sets=1, runs=2)
    width, told = width_and_warnings(small)
    assert width == width_and_warnings(None)[0]
    assert "cannot show less" in told
    alone = archive_of(0.0, sets=3, runs=1)
    assert "archive_too_small" in codes(gate_runs(run(1), run(2), archive=alone))
    foreign = archive_of(0.0, offered_rate_per_s=7.0)
    assert "archive_too_small" in codes(gate_runs(run(1), run(2), archive=foreign))
    slower = archive_of(0.0, gap_s=0.2)
    assert "archive_too_small" in codes(gate_runs(run(1), run(2), archive=slower))


def test_an_archive_moderates_what_few_runs_per_arm_show():
    arms = [run(1), run(2)], [run(3), run(4)]
    plain, moderated = (gate_runs(*arms, archive=archive).verdict.worst.claims[0] for archive in (None, archive_of(0.0)))
    assert (plain.method, moderated.method) == ("welch_t", "moderated_t")
    assert any("moderated by 40 archived runs" in warning for warning in moderated.warnings)
    assert moderated.minimum_detectable_effect < plain.minimum_detectable_effect or plain.minimum_detectable_effect < 0.01


def test_the_archive_is_part_of_the_plan_and_of_the_inputs():
    results = [gate_runs(run(1), run(2), archive=archive) for archive in (None, archive_of(0.0), archive_of(0.0, seed=101))]
    assert len({result.plan.digest for result in results}) == 3
    assert [sum(record.role == "archive_run" for record in result.inputs) for result in results] == [0, 40, 40]


@pytest.mark.parametrize(("sets", "runs"), [(1, 5), (4, 3), (20, 5)])
def test_the_upper_bound_of_the_variance_is_that_of_chi_squared(sets, runs):
    found = archived_spread(
        archive_of(0.01, sets, runs).under((None, None, None)),
        lambda one: np.array([place.count("completed") + k for k, place in enumerate(one)], float),
    )
    degrees = sets * (runs - 1)
    assert (found.degrees, found.prior.degrees <= degrees) == (degrees, True)
    assert found.upper_variance == pytest.approx(degrees * found.variance / stats.chi2.ppf(0.05, degrees), rel=0.03)
    assert found.variance == pytest.approx(np.var(np.arange(runs), ddof=1))


def test_the_bound_holds_in_19_of_20_archives():
    held = []
    for seed in range(400):
        drawn = np.random.default_rng([seed, 9]).standard_normal((3, 4))
        found = archived_spread(
            [[(one, place) for place in range(4)] for one in range(3)], lambda runs, drawn=drawn: np.array([drawn[one] for one in runs])
        )
        held.append(found.upper_variance >= 1.0)
    assert 0.92 <= np.mean(held) <= 0.98
