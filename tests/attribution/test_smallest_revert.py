"""Laws of the smallest revert: the planted culprits are found, and nothing smaller would do (by brute force)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.attribution.effects import ORDER_PAIRS, claims_to_explain, knob_effects
from gates.attribution.revert import MAX_SETS, SmallestRevert, dearest, smallest_revert
from gates.attribution.trials import Trials
from replay.specs.knobs import KNOBS, REVERT_COSTS
from tests.attribution.attribution_cells import Cell, Cost, mapping

CHANGES = {
    "gemm__split_k": 4, "attention__kv_split": 2, "kv__block_tokens": 32, "formats__kv": "fp8", "fusion__qkv": False,
    "batching__max_running": 64, "graph__mode": "none", "formats__weights": "fp8", "fusion__gate_up": False, "kv__memory_ratio": 0.5,
}  # fmt: skip
NAMES = {name: name.replace("__", ".") for name in CHANGES}


def cell_of(factor, chosen, **more):
    """A cell whose time to the first token is `factor(set of changed knobs)` times the baseline's; the candidate changes `chosen`."""
    baseline = mapping()
    candidate = mapping(**{name: CHANGES[name] for name in chosen})

    def cost(spec):
        return Cost(queueing=factor(frozenset(setting.knob for setting in spec.settings)))

    cell = Cell(baseline, cost, **more)
    trials = Trials(
        replayer=cell, baseline=baseline, candidate=candidate, judge=cell.judge, judgement=cell.judge(candidate, cell.run(candidate))
    )
    return cell, trials


def search(trials: Trials) -> SmallestRevert | None:
    claims = claims_to_explain(trials.judgement.claims)
    return smallest_revert(trials, {effect.knob: effect.harm for effect in knob_effects(trials, claims)})


def rank(knobs):
    costs = [REVERT_COSTS.index(KNOBS[knob].revert_cost) for knob in knobs]
    return (len(knobs), max(costs), sum(costs), tuple(sorted(knobs)))


@pytest.mark.parametrize("seed", range(20))
def test_the_one_planted_bad_knob_among_many_is_the_revert(seed):
    draw = np.random.default_rng(seed)
    chosen = list(draw.choice(sorted(CHANGES), size=int(draw.integers(2, 6)), replace=False))
    bad = NAMES[chosen[int(draw.integers(len(chosen)))]]
    harms = {NAMES[name]: float(draw.uniform(0.99, 1.004)) for name in chosen} | {bad: float(draw.uniform(1.06, 2.0))}
    _, trials = cell_of(lambda changed: float(np.prod([harms[knob] for knob in changed])), chosen)
    claims = claims_to_explain(trials.judgement.claims)
    effects = knob_effects(trials, claims)
    assert max(effects, key=lambda effect: effect.harm).knob == bad
    assert search(trials) == SmallestRevert(knobs=(bad,), exhaustive=True, everything=False)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), count=st.integers(1, 4))
def test_no_smaller_or_cheaper_set_releases_whatever_the_knobs_do_to_each_other(data, count):
    chosen = data.draw(st.permutations(sorted(CHANGES)))[:count]
    knobs = sorted(NAMES[name] for name in chosen)
    subsets = [frozenset(some) for size in range(count + 1) for some in itertools.combinations(knobs, size)]
    good = {some for some in subsets if some and data.draw(st.booleans())} | {frozenset(knobs)}
    _, trials = cell_of(lambda changed: 1.0 if frozenset(knobs) - changed in good else 1.5, chosen)
    found = search(trials)
    expected = min((some for some in good), key=rank)
    assert found is not None
    assert found.exhaustive
    assert frozenset(found.knobs) == expected
    assert found.everything == (count > 1 and len(expected) == count)
    assert found.revert_cost == dearest(expected)


def test_two_knobs_that_are_each_bad_on_their_own_are_both_in_the_revert():
    bad = {"formats.kv", "fusion.qkv"}
    _, trials = cell_of(lambda changed: 1.4 if changed & bad else 1.0, ["formats__kv", "fusion__qkv", "gemm__split_k", "graph__mode"])
    found = search(trials)
    assert found is not None
    assert set(found.knobs) == bad


def test_of_two_knobs_that_are_bad_only_together_the_cheaper_one_is_undone():
    bad = {"formats.weights", "gemm.split_k"}
    _, trials = cell_of(lambda changed: 1.4 if bad <= changed else 1.0, ["formats__weights", "gemm__split_k", "graph__mode"])
    found = search(trials)
    assert found is not None
    assert found.knobs == ("gemm.split_k",)


def test_a_search_over_many_knobs_is_bounded_and_leaves_no_spare_knob():
    bad = {"formats.kv", "fusion.qkv", "kv.memory_ratio", "gemm.split_k"}
    cell, trials = cell_of(lambda changed: 1.1 ** len(changed & bad), list(CHANGES))
    found = search(trials)
    assert found is not None
    assert set(found.knobs) == bad
    assert not found.exhaustive
    assert len(set(cell.judged)) <= MAX_SETS + 3 * len(CHANGES) + 2 + 2 * ORDER_PAIRS * (len(CHANGES) - 1)


def test_no_revert_is_claimed_where_even_the_baseline_does_not_release():
    _, trials = cell_of(lambda changed: 1.5 if changed else 1.0, ["formats__kv", "fusion__qkv"], judgeable=False)
    assert search(trials) is None


def test_each_hybrid_is_judged_once():
    cell, trials = cell_of(lambda changed: 1.0 + 0.1 * len(changed), ["formats__kv", "fusion__qkv", "gemm__split_k"])
    search(trials)
    search(trials)
    assert len(cell.judged) == len(set(cell.judged)) == 2**3
