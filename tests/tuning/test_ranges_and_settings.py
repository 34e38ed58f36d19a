"""Row ranges: the best ones, and settings that mean them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.specs.mapping import parse_mapping
from replay.specs.scopes import PHASES, UNBOUNDED_ROWS
from replay.tuning.ranges import LEAVE, best_ranges
from replay.tuning.settings import Place, places, ranges_at, with_ranges, with_value, without

LAYERS = ("qkv", "output_proj", "mlp", "lm_head")
SCOPES = (
    "",
    "@mlp",
    "@decode",
    "@mlp.decode",
    "@mlp[rows<=16]",
    "@prefill[rows>=9,rows<=40]",
    "@lm_head[rows>7]",
    "@[chip=h100-sxm]",
    "@[chip=l40s]",
)


def cost(seconds, choices, setting_s):
    rows = np.arange(len(choices))
    starts = [choice for place, choice in enumerate(choices) if choice != LEAVE and (place == 0 or choices[place - 1] != choice)]
    return seconds[list(choices), rows].sum() + setting_s * len(starts)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 6), st.sampled_from([0.0, 0.1, 0.5, 3.0]))
def test_no_other_ranges_cost_less(seed, choices, rows, setting_s):
    seconds = np.random.default_rng(seed).random((choices, rows))
    found = best_ranges(seconds, setting_s)
    chosen = [range_.choice for range_ in found for _ in range(range_.first, range_.last + 1)]
    assert [range_.first for range_ in found[1:]] == [range_.last + 1 for range_ in found[:-1]]
    every = itertools.product(range(choices), repeat=rows)
    assert cost(seconds, chosen, setting_s) == pytest.approx(min(cost(seconds, other, setting_s) for other in every))


def test_rows_are_left_alone_where_nothing_wins_by_more_than_a_setting_costs():
    seconds = np.array([[1.0, 1.0, 1.0], [0.99, 0.99, 0.99]])
    assert [(range_.first, range_.last, range_.choice) for range_ in best_ranges(seconds, 0.05)] == [(0, 2, LEAVE)]
    assert [(range_.first, range_.last, range_.choice) for range_ in best_ranges(seconds, 0.02)] == [(0, 2, 1)]


def spec_of(pairs):
    lines = [f'"tile{scope}" = [{size}, 64, 64]' for scope, size in pairs]
    return parse_mapping("\n".join(['name = "m"', "[gemm]", *lines]), "m").on("h100-sxm")


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SCOPES), st.sampled_from([16, 32, 64])), max_size=5, unique_by=lambda pair: pair[0]))
def test_settings_mean_the_values_that_they_are_made_from(pairs):
    before = spec_of(pairs)
    wanted = {place: ranges_at(before, "gemm.tile", place) for place in places("gemm.tile", LAYERS)}
    after = with_ranges(before, "gemm.tile", wanted)
    assert {place: ranges_at(after, "gemm.tile", place) for place in wanted} == wanted
    others = [setting.knob for setting in before.settings if setting.scope.chip == "l40s"]
    assert [setting.knob for setting in after.settings if setting.scope.chip is not None] == others
    again = "\n".join(f'"{setting.knob.removeprefix("gemm.")}" = {list(setting.value)}' for setting in after.settings)
    assert parse_mapping(f'name = "m"\n[gemm]\n{again}\n', "m").digest == after.digest


@pytest.mark.parametrize("knob", ["attention.tile", "attention.kv_split"])
def test_attention_has_its_own_places(knob):
    value = (16, 64) if knob == "attention.tile" else 4
    there = places(knob, LAYERS)
    spec = parse_mapping('name = "m"', "m").on("h100-sxm")
    wanted = dict.fromkeys(there, ((1, 8, value), (9, UNBOUNDED_ROWS, "auto")))
    found = with_ranges(spec, knob, wanted)
    assert [setting.knob for setting in found.settings] == [f"{knob}@[rows<=8]"]
    if knob == "attention.tile":
        wanted[there[0]] = ((1, UNBOUNDED_ROWS, "auto"),)
        assert [s.knob for s in with_ranges(spec, knob, wanted).settings] == [f"{knob}@prefill[rows<=8]"]


def test_the_lm_head_has_no_prefill_place():
    assert Place(layer="lm_head", phase=PHASES[0]) not in places("gemm.tile", LAYERS)


def test_a_single_value_takes_the_place_of_all_settings_of_the_chip():
    spec = parse_mapping('name = "m"\n[kv]\nblock_tokens = 8\n"block_tokens@[chip=l40s]" = 4\n"block_tokens@[chip=a]" = 2\n', "m").on("a")
    assert [(s.knob, s.value) for s in with_value(spec, "kv.block_tokens", 32).settings] == [
        ("kv.block_tokens@[chip=l40s]", 4),
        ("kv.block_tokens", 32),
    ]
    assert [s.knob for s in with_value(spec, "kv.block_tokens", 16).settings] == ["kv.block_tokens@[chip=l40s]"]
    assert without(spec, "kv.block_tokens").value("kv.block_tokens") == 16
