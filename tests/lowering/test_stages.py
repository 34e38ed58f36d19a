"""Pipeline stages: which layers run where, and what is handed over."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.errors import SpecError
from replay.lowering.lower import lower
from replay.lowering.select import plan_kernels
from replay.lowering.stages import handovers, split_layers
from tests.models import DEEPSEEK_V3, LLAMA_8B, mapping, round_hardware


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(32, 4, (8, 8, 8, 8)), (61, 4, (15, 15, 16, 15)), (30, 4, (7, 8, 8, 7)), (31, 4, (8, 8, 8, 7)), (5, 1, (5,)), (3, 3, (1, 1, 1))],
)
def test_layers_are_split_as_vllm_splits_them(layers, stages, expected):
    assert split_layers(replace(LLAMA_8B, layers_count=layers), stages) == expected


def test_more_stages_than_layers_are_refused():
    with pytest.raises(SpecError, match=r"33 stages for the 32 layers of llama-3\.1-8b; want at most 32"):
        plan_kernels(LLAMA_8B, round_hardware(), mapping("[parallelism]", "pipeline = 33"))


@given(layers=st.integers(1, 90), stages=st.integers(2, 16), model=st.sampled_from([LLAMA_8B, DEEPSEEK_V3]))
def test_every_call_of_every_operator_runs_in_one_stage(layers, stages, model):
    dense = model.experts and replace(model.experts, dense_layers_count=min(model.experts.dense_layers_count, layers - 1))
    model = replace(model, layers_count=layers, experts=dense)
    stage_layers = split_layers(model, min(stages, layers))
    graph = lower(model, ranks=2, stage_layers=stage_layers)
    for op in graph.ops:
        assert sum(op.stage_calls) == op.calls_count, op.name
    assert graph.op("attention_norm").stage_calls == stage_layers
    edges = (1, *[0] * (len(stage_layers) - 1))
    assert (graph.op("embedding").stage_calls, graph.op("lm_head").stage_calls) == (edges, edges[::-1])


def test_first_dense_layers_run_in_the_first_stages():
    graph = lower(DEEPSEEK_V3, ranks=1, stage_layers=(2, 2, 57))
    assert graph.op("down_proj").stage_calls == (2, 1, 0)
    assert graph.op("experts").stage_calls == (0, 1, 57)


@pytest.mark.parametrize(
    ("stages", "ranks", "inside", "across"),
    [(4, 1, (1, 1, 1, 0), (0, 0, 0, 0)), (4, 4, (1, 0, 1, 0), (0, 1, 0, 0)), (2, 8, (0, 0), (1, 0)), (2, 16, (0, 0), (1, 0))],
)
def test_stages_of_one_node_hand_over_inside_it(stages, ranks, inside, across):
    assert handovers(stages, ranks, across_nodes=False) == inside
    assert handovers(stages, ranks, across_nodes=True) == across


def test_hidden_state_and_residual_are_sent_in_parts_and_gathered_by_the_next_stage():
    graph = lower(LLAMA_8B, ranks=4, stage_layers=(8, 8, 8, 8))
    sends = {op.name: (op.shape.kind, op.shape.elements, op.shape.ranks, op.calls_count) for op in graph.ops if op.name.startswith("stage")}
    assert sends == {
        "stage_send": ("send_receive", 2048, 2, 2),
        "stage_send_across_nodes": ("send_receive", 2048, 2, 1),
        "stage_all_gather": ("all_gather", 2048, 4, 3),
    }
    assert not [op for op in lower(LLAMA_8B, ranks=4).ops if op.name.startswith("stage")]


@pytest.mark.parametrize(("stages", "reason"), [(4, None), (3, "32 layers do not divide by 3: the largest stage has 11")])
def test_an_uneven_split_is_named(stages, reason):
    plan = plan_kernels(LLAMA_8B, round_hardware(), mapping("[parallelism]", f"pipeline = {stages}"))
    [told] = [decision for decision in plan.decisions if decision.knob == "parallelism.pipeline"]
    assert told.reason == reason
    assert told.effective == f"stages of {', '.join(map(str, split_layers(LLAMA_8B, stages)))} layers"
