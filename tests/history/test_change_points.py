"""E-divisive: against the statistic written out, on steps that are there, and on series without any."""

import itertools

import numpy as np
import pytest

from gates.history.change_points import FEWEST_POINTS, LONGEST, change_points, energy_split


def obvious_split(values):
    """Return the best split by the definition: every left and right part, every pair."""
    best = (0, 0.0)
    for left, right in itertools.product(range(FEWEST_POINTS, len(values)), range(2 * FEWEST_POINTS, len(values) + 1)):
        x, y = values[:left], values[left:right]
        if len(y) < FEWEST_POINTS:
            continue
        across = np.mean([abs(a - b) for a in x for b in y])
        within = [np.mean([abs(a - b) for a, b in itertools.combinations(part, 2)]) for part in (x, y)]
        statistic = len(x) * len(y) / (len(x) + len(y)) * (2 * across - sum(within))
        if statistic > best[1]:
            best = (left, statistic)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_the_statistic_is_the_papers(seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(18) + np.where(np.arange(18) < 5 + seed, 0.0, 1.5)
    place, statistic = energy_split(values)
    assert (place, statistic) == (obvious_split(values)[0], pytest.approx(obvious_split(values)[1], rel=1e-9))


def test_steps_are_found_where_they_are():
    rng = np.random.default_rng(1)
    levels = np.repeat([0.0, 0.05, 0.02], [20, 15, 25])
    found = change_points(levels + 0.005 * rng.standard_normal(60), 0)
    assert [one.index for one in found] == [20, 35]
    assert [one.after - one.before for one in found] == pytest.approx([0.05, -0.03], abs=0.004)
    assert all(one.p_value <= 0.05 for one in found)


def test_the_same_seed_gives_the_same_points():
    values = np.random.default_rng(3).standard_normal(40)
    assert change_points(values, 5) == change_points(values, 5)


def test_series_without_a_change_raise_an_alarm_about_as_often_as_said():
    alarms = sum(bool(change_points(np.random.default_rng(seed).standard_normal(16), seed)) for seed in range(60))
    assert alarms <= 8  # 5 % of 60: 9 or more has a probability of 0.3 %


@pytest.mark.parametrize("values", [np.zeros(0), np.arange(9.0), np.ones(40)])
def test_too_few_or_equal_points_have_no_change(values):
    assert change_points(values, 0) == ()


def test_of_a_long_series_the_latest_points_are_looked_at():
    values = np.concatenate([np.full(30, 9.0), np.zeros(LONGEST)])
    assert change_points(values, 0) == ()
