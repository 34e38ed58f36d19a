"""Reverts narrower than a knob: found where they release, with a patch that gives what was judged, and never where they do not."""

from __future__ import annotations

import itertools

import pytest

from gates.attribution.narrower import narrower_revert
from gates.attribution.patch import MappingFile, revert_patch
from gates.attribution.trials import Trials
from replay.specs.mapping import parse_mapping
from tests.attribution.attribution_cells import Cell, Cost, mapping

BASE = 'name = "c"\n[gemm]\n'
NOWHERE = (None, None)


def trials_of(factor, text, *, baseline=None, confirm=None):
    """Trials of a cell whose time to the first token is `factor(mapping)` times the baseline's."""
    baseline, candidate = baseline or mapping(), parse_mapping(text, "c")
    cell = Cell(baseline, lambda spec: Cost(queueing=factor(spec)))
    return Trials(
        replayer=cell,
        baseline=baseline,
        candidate=candidate,
        judge=cell.judge,
        judgement=cell.judge(candidate, cell.run(candidate)),
        confirm=confirm,
    )


def bad_at(layer, phase):
    """The value 4 of gemm.split_k harms one place alone."""
    return lambda spec: 1.5 if spec.value("gemm.split_k", layer=layer, phase=phase, rows=1) == 4 else 1.0


@pytest.mark.parametrize(
    ("place", "found"),
    [(("mlp", "decode"), "gemm.split_k@mlp.decode"), (NOWHERE, "gemm.split_k@mlp"), (("mlp", None), "gemm.split_k@mlp")],
)
def test_the_place_where_the_bottleneck_grew_is_tried_first(place, found):
    trials = trials_of(bad_at("mlp", "decode"), BASE + "split_k = 4\n")
    narrower = narrower_revert(trials, ("gemm.split_k",), place, by_chip=False)
    assert narrower.scoped == {found: "auto"}
    assert narrower.knobs == ()
    assert trials.seems_to_release(narrower.mapping)


def test_rows_and_the_accelerator_are_tried_too():
    def few_rows(spec):
        return 1.5 if spec.value("gemm.split_k", layer="mlp", phase="decode", rows=8) == 4 else 1.0

    everywhere = trials_of(few_rows, BASE + '"split_k@mlp.decode" = 4\n')
    found = narrower_revert(everywhere, ("gemm.split_k@mlp.decode",), NOWHERE, by_chip=False)
    assert list(found.scoped) == ["gemm.split_k@mlp.decode[rows<=64]"]
    whole = trials_of(lambda spec: 1.5 if spec.on("chip").count("kv.block_tokens") == 32 else 1.0, 'name = "c"\n[kv]\nblock_tokens = 32\n')
    assert narrower_revert(whole, ("kv.block_tokens",), NOWHERE, by_chip=False) is None
    assert narrower_revert(whole, ("kv.block_tokens",), NOWHERE, by_chip=True).scoped == {"kv.block_tokens@[chip=chip]": 16}


def test_nothing_narrower_is_named_where_every_place_harms():
    def anywhere(spec):
        places = itertools.product(("mlp", "qkv"), ("prefill", "decode"), (1, 500))
        return 1.5 if any(spec.value("gemm.split_k", layer=layer, phase=phase, rows=rows) == 4 for layer, phase, rows in places) else 1.0

    assert narrower_revert(trials_of(anywhere, BASE + "split_k = 4\n"), ("gemm.split_k",), ("mlp", "decode"), by_chip=False) is None


def test_other_knobs_of_the_revert_stay_undone():
    def cost(spec):
        return (1.5 if spec.count("kv.block_tokens") == 32 else 1.0) * bad_at("mlp", "decode")(spec)

    text = BASE + "split_k = 4\n[kv]\nblock_tokens = 32\n"
    trials = trials_of(cost, text)
    found = narrower_revert(trials, ("gemm.split_k", "kv.block_tokens"), NOWHERE, by_chip=False)
    assert (found.knobs, found.scoped) == (("kv.block_tokens",), {"gemm.split_k@mlp": "auto"})
    patch = revert_patch(MappingFile(name="c.toml", text=text), found.knobs, trials.baseline, found.settings)
    assert '+"split_k@mlp" = "auto"\n' in patch
    assert "-block_tokens = 32\n" in patch


def test_the_full_gate_confirms_and_is_asked_once():
    asked = []

    def never(spec, run):
        asked.append(spec)
        return type("No", (), {"decision": "rollback"})

    trials = trials_of(bad_at("mlp", "decode"), BASE + "split_k = 4\n", confirm=never)
    assert narrower_revert(trials, ("gemm.split_k",), ("mlp", "decode"), by_chip=False) is None
    assert len(asked) == 1


def test_a_knob_that_is_also_set_for_parts_is_undone_whole():
    text = BASE + 'split_k = 4\n"split_k@mlp" = 4\n'
    trials = trials_of(bad_at("mlp", "decode"), text)
    assert narrower_revert(trials, ("gemm.split_k",), ("mlp", "decode"), by_chip=False) is None


def test_the_baselines_own_value_is_set_in_the_narrower_scope():
    baseline = mapping(gemm__split_k=2)
    trials = trials_of(bad_at("mlp", "decode"), BASE + "split_k = 4\n", baseline=baseline)
    assert narrower_revert(trials, ("gemm.split_k",), ("mlp", "decode"), by_chip=False).scoped == {"gemm.split_k@mlp.decode": 2}
