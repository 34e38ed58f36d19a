"""Expert parallelism: which rank holds which expert, what recorded routing makes of the ranks' loads, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.lowering.expert_ranks import place_experts, rank_loads, reached_ratio
from replay.lowering.lower import lower
from replay.lowering.op_graph import ExpertsShape, LoadGroup
from replay.lowering.select import plan_kernels
from replay.specs.routing import ExpertLoad
from replay.tiling.expert_rows import rank_rows
from tests.models import DEEPSEEK_V3, LLAMA_8B, MIXTRAL, mapping, round_hardware

UNIFORM = ExpertLoad(origin="stated")
HOT = ExpertLoad(origin="recorded", layers=((4.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),))
PLACEMENTS = ("linear", "round_robin", "balanced")
ROW_FIELDS = ("rows", "active_experts", "row_tiles")


def spread(ranks, *lines):
    return mapping("[parallelism]", "tensor = 8", f"expert = {ranks}", *lines)


def placed(placement):
    return ("[placement]", f'experts = "{placement}"')


def loads_of(ranks, routing, *lines):
    return rank_loads(MIXTRAL, spread(ranks, *lines), routing)


def ratio(groups):
    return sum(group.count * group.rows_per_token for group in groups)


def test_vllm_places_what_does_not_divide_on_the_first_ranks():
    assert place_experts(np.ones(7), 3, "linear").tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert place_experts(np.ones(7), 3, "round_robin").tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_balanced_placement_gives_the_hottest_expert_left_to_the_least_loaded_rank():
    # 9 -> rank 0; 7 -> rank 1; 6 -> rank 1 (7 < 9), which is then full; what is left goes to rank 0.
    assert place_experts(np.array([9.0, 1.0, 7.0, 6.0]), 2, "balanced").tolist() == [0, 0, 1, 1]


@settings(max_examples=60, deadline=None)
@given(
    loads=st.lists(st.floats(0.0, 1e3), min_size=1, max_size=24),
    ranks=st.integers(1, 24),
    placement=st.sampled_from(PLACEMENTS),
)
def test_every_expert_has_one_rank_and_ranks_differ_by_one_expert_at_most(loads, ranks, placement):
    ranks = min(ranks, len(loads))
    sizes = np.bincount(place_experts(np.array(loads), ranks, placement), minlength=ranks)
    assert (sizes.sum(), sizes.min() >= 1, sizes.max() - sizes.min() <= 1) == (len(loads), True, True)


@pytest.mark.parametrize(("placement", "expected"), [("linear", 16 / 7), ("round_robin", 10 / 7), ("balanced", 10 / 7)])
def test_the_imbalance_is_the_busiest_rank_over_the_mean_one(placement, expected):
    # Two hot experts of 4 and six of 1 on four ranks, 14 in all: together they are 8 of 3.5, apart 5 of 3.5.
    found = loads_of(4, HOT, *placed(placement))
    assert found.imbalance_ratios == pytest.approx([expected])
    assert ratio(found.busiest) / ratio(found.typical) == pytest.approx(expected)


def test_the_imbalance_is_counted_layer_by_layer():
    mirrored = ExpertLoad(origin="recorded", layers=(*HOT.layers * 16, *(HOT.layers[0][::-1],) * 16))
    found = loads_of(4, mirrored)
    assert found.imbalance_ratios == pytest.approx([16 / 7] * 32)
    assert ratio(found.busiest) == pytest.approx(2 * 8 / 14)  # although summed over the layers the ranks are nearly alike


@settings(max_examples=40, deadline=None)
@given(loads=st.lists(st.floats(0.5, 1.0), min_size=8, max_size=8), ranks=st.sampled_from([2, 4, 8]), placement=st.sampled_from(PLACEMENTS))
def test_ranks_together_get_every_choice_once_and_the_busiest_no_less_than_the_mean(loads, ranks, placement):
    found = loads_of(ranks, ExpertLoad(origin="x", layers=(tuple(loads),)), *placed(placement))
    assert ratio(found.typical) * ranks == pytest.approx(2.0)
    assert sum(group.count for group in found.typical) == pytest.approx(8 / ranks)
    assert ratio(found.busiest or found.typical) >= ratio(found.typical) * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(ranks=st.sampled_from([2, 4, 8]), tokens=st.integers(1, 9000), tile_rows=st.sampled_from([16.0, 64.0, 128.0]))
def test_uniform_routing_splits_the_work_evenly_and_nobody_waits(ranks, tokens, tile_rows):
    shape = ExpertsShape(hidden=64, width=64, experts_count=8, experts_per_row=2)
    rows, tiles = np.array([float(tokens)]), np.array([tile_rows])
    whole = rank_rows(shape, rows, tiles)
    for routing in (UNIFORM, ExpertLoad(origin="x", layers=((7.0,) * 8,) * 32)):
        loads = loads_of(ranks, routing)
        part = rank_rows(replace(shape, loads=loads), rows, tiles)
        assert loads.busiest == ()
        for name in ROW_FIELDS:
            assert getattr(part, name) * ranks == pytest.approx(getattr(whole, name)), name


def test_many_loads_are_joined_to_few_groups_that_keep_their_sum():
    draw = np.random.default_rng(1).lognormal(0.0, 0.8, (58, 256))
    found = rank_loads(DEEPSEEK_V3, spread(8), ExpertLoad(origin="x", layers=tuple(map(tuple, draw.tolist()))))
    assert len(found.typical) == len(found.busiest) == 32
    assert ratio(found.typical) == pytest.approx(8 / 8)
    assert ratio(found.busiest) == pytest.approx(np.mean(found.imbalance_ratios))


def test_ranks_of_experts_hold_whole_ones_and_split_the_others_columns_over_what_is_left():
    for ranks, (count, width) in {1: (8, 1792), 2: (4, 3584), 8: (1, 14336)}.items():
        [shape] = [op.shape for op in plan_kernels(MIXTRAL, round_hardware(), spread(ranks), UNIFORM).graph.ops if op.name == "experts"]
        assert (shape.experts_count, shape.width) == (count, width)


def test_ranks_that_see_all_tokens_need_no_collective_beyond_the_all_reduce():
    names = [
        {op.name for op in plan_kernels(MIXTRAL, round_hardware(), spread(ranks), UNIFORM).graph.ops if op.layer_type == "all_reduce"}
        for ranks in (1, 8)
    ]
    assert names[0] == names[1] == {"attention_all_reduce", "mlp_all_reduce", "logits_all_gather"}


def test_tokens_that_travel_are_dispatched_combined_and_gathered_in_layers_with_experts_only():
    spec = spread(8, 'expert_exchange = "all_to_all"')
    graph = plan_kernels(DEEPSEEK_V3, round_hardware(), spec, UNIFORM).graph
    calls = {op.name: op.calls_count for op in graph.ops if op.layer_type == "all_reduce"}
    moved = dict.fromkeys(("expert_dispatch", "expert_combine", "expert_all_gather", "shared_all_reduce"), 58)
    assert calls == {"attention_all_reduce": 61, "mlp_all_reduce": 3, "logits_all_gather": 1, **moved}
    # A token has 8 of 256 experts: it reaches a rank of 32 with the chance 1 - (1 - 8/256)^32.
    assert graph.op("expert_dispatch").shape.elements == np.ceil(7168 * (1 - (1 - 8 / 256) ** 32))
    seen: set[str] = set()
    for op in graph.ops:
        assert set(op.inputs) <= seen
        seen.add(op.name)


def test_a_token_reaches_a_rank_once_however_many_of_its_experts_are_there():
    assert reached_ratio((LoadGroup(count=2, rows_per_token=0.5),)) == 0.75
    assert reached_ratio((LoadGroup(count=1, rows_per_token=1.0), LoadGroup(count=3, rows_per_token=0.1))) == 1.0


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("tensor = 8", "expert = 3"), "3 expert-parallel ranks in a group of 8; want a divisor of parallelism.tensor"),
        (("tensor = 16", "expert = 16"), "16 ranks for the 8 experts of mixtral; want at most 8"),
        (("tensor = 8", "expert = 4", 'expert_exchange = "all_to_all"'), "an all-to-all among 4 of 8 ranks"),
    ],
)
def test_ranks_that_cannot_share_the_experts_are_refused(lines, says):
    with pytest.raises(SpecError, match=says):
        plan_kernels(MIXTRAL, round_hardware(), mapping("[parallelism]", *lines), UNIFORM)


def test_expert_columns_must_divide_by_the_ranks_that_share_each_expert():
    odd = replace(MIXTRAL, experts=replace(MIXTRAL.experts, intermediate_size=14340))
    with pytest.raises(SpecError, match="14340 expert columns, which 8 ranks cannot share"):
        plan_kernels(odd, round_hardware(), spread(1))
    assert lower(odd, ranks=8, loads=loads_of(8, UNIFORM)).op("experts").shape.width == 14340


def test_without_recorded_routing_expert_parallelism_is_refused_in_one_sentence():
    with pytest.raises(SpecError, match=r"8 ranks share the experts of mixtral, and nothing says how often.*--expert-load uniform"):
        plan_kernels(MIXTRAL, round_hardware(), spread(8))


def test_a_dense_model_has_no_experts_to_share_and_says_so():
    plan = plan_kernels(LLAMA_8B, round_hardware(), spread(8, "[placement]", 'experts = "balanced"'))
    told = {decision.knob: (decision.effective, decision.reason) for decision in plan.decisions}
    assert told["parallelism.expert"] == ("1", "llama-3.1-8b has no experts")
    assert told["placement.experts"] == ("linear", "no ranks share the experts (parallelism.expert)")


def test_the_imbalance_is_a_decision_with_its_reason_and_none_is_made_up():
    told = {d.knob: d for d in plan_kernels(MIXTRAL, round_hardware(), spread(4), HOT).decisions}["parallelism.expert"]
    assert (told.requested, told.effective, told.stage) == ("4", "4 ranks of 2 experts", "execution")
    assert told.reason == "with linear placement the busiest rank gets 2.29 times the rows of the mean one"
    assert {d.knob: d.reason for d in plan_kernels(MIXTRAL, round_hardware(), spread(4), UNIFORM).decisions}["parallelism.expert"] is None
