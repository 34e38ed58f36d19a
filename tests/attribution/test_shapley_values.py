"""Laws of Shapley values: the mean over all orders, parts that add up, players that do nothing or the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.attribution.shapley import draw_orders, every_set, exact_values, sets_along, values_along


def games(most):
    return st.integers(1, most).flatmap(
        lambda count: st.lists(st.floats(-5, 5), min_size=2**count, max_size=2**count).map(
            lambda worth: dict(zip(every_set("abcdefgh"[:count]), map(np.atleast_1d, worth), strict=True))
        )
    )


@settings(max_examples=60, deadline=None)
@given(worth=games(4))
def test_exact_values_are_the_mean_over_all_orders_and_add_up(worth):
    players = max(worth, key=len)
    exact = exact_values(worth, players)
    every_order = values_along(worth, list(itertools.permutations(sorted(players))))
    assert {name: float(value[0]) for name, value in exact.items()} == pytest.approx(
        {name: float(value[0]) for name, value in every_order.items()}
    )
    assert sum(float(value[0]) for value in exact.values()) == pytest.approx(float(worth[players][0] - worth[frozenset()][0]), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(worth=games(5), seed=st.integers(0, 99))
def test_values_along_drawn_orders_add_up_too(worth, seed):
    players = max(worth, key=len)
    orders = draw_orders(players, 3, np.random.default_rng(seed))
    assert set(sets_along(orders)) <= set(worth)
    parts = values_along(worth, orders)
    assert sum(float(value[0]) for value in parts.values()) == pytest.approx(float(worth[players][0] - worth[frozenset()][0]), abs=1e-9)


def test_each_drawn_order_stands_beside_its_reverse():
    orders = draw_orders("abcd", 2, np.random.default_rng(0))
    assert [order[::-1] for order in orders[::2]] == list(orders[1::2])
    assert all(sorted(order) == list("abcd") for order in orders)


def test_a_pair_that_acts_together_is_split_evenly_by_drawn_orders_as_well():
    worth = {some: np.array([float({"a", "b"} <= some)]) for some in every_set("abcdef")}
    parts = values_along(worth, draw_orders("abcdef", 4, np.random.default_rng(1)))
    assert {name: float(value[0]) for name, value in parts.items()} == pytest.approx({"a": 0.5, "b": 0.5, "c": 0, "d": 0, "e": 0, "f": 0})


def test_a_figure_that_a_set_lacks_leaves_only_that_figure_unknown():
    worth = {frozenset(): np.array([0.0, 0.0]), frozenset("a"): np.array([1.0, np.nan])}
    assert exact_values(worth, "a")["a"][0] == 1.0
    assert np.isnan(exact_values(worth, "a")["a"][1])
