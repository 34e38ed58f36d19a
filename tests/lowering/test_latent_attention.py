"""DeepSeek's models lowered: published parameter counts, the two forms of latent attention, and what ranks share."""

from dataclasses import replace

import pytest

from replay.errors import SpecError
from replay.lowering.lower import lower
from replay.lowering.op_graph import AttentionShape, ExpertsShape, MatmulShape
from replay.lowering.select import plan_kernels
from replay.specs.model import ExpertsSpec, MlaSpec, ModelSpec
from tests.models import DEEPSEEK_V3, mapping, round_hardware

HEADS = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
COMMON = {"head_size": 192, "vocabulary_size": 102400, "max_context_tokens": 163840, "weights_format": "bf16"}
V2 = ModelSpec(
    name="deepseek-v2", layers_count=60, hidden_size=5120, query_heads=128, kv_heads=128, intermediate_size=12288, **COMMON,
    experts=ExpertsSpec(
        experts_count=160, experts_per_token=6, intermediate_size=1536, shared_experts_count=2, dense_layers_count=1
    ),
    mla=MlaSpec(q_lora_rank=1536, kv_lora_rank=512, **HEADS),
)  # fmt: skip
V2_LITE = ModelSpec(
    name="deepseek-v2-lite", layers_count=27, hidden_size=2048, query_heads=16, kv_heads=16, intermediate_size=10944, **COMMON,
    experts=ExpertsSpec(
        experts_count=64, experts_per_token=6, intermediate_size=1408, shared_experts_count=2, dense_layers_count=1
    ),
    mla=MlaSpec(q_lora_rank=None, kv_lora_rank=512, **HEADS),
)  # fmt: skip


def parameters(model, *, active):
    """Weights of the model, or those that a token is multiplied by; decoding has those of `kv_b_proj` in another form."""
    count = 0 if active else model.vocabulary_size * model.hidden_size
    for op in lower(model, ranks=1).ops:
        if isinstance(op.shape, MatmulShape) and op.axis != "decode_attention":
            count += op.shape.columns * op.shape.depth * op.calls_count
        elif isinstance(op.shape, ExpertsShape):
            experts = op.shape.experts_per_row if active else op.shape.experts_count
            count += experts * op.shape.expert_weights * op.calls_count
    return count


def fused(*lines, model=DEEPSEEK_V3):
    return {kernel.id: kernel for kernel in plan_kernels(model, round_hardware(), mapping(*lines)).kernels}


@pytest.mark.parametrize(("model", "total", "active"), [(DEEPSEEK_V3, 671e9, 37e9), (V2, 236e9, 21e9), (V2_LITE, 15.7e9, 2.4e9)])
def test_weights_are_the_published_counts_in_all_and_for_one_token(model, total, active):
    assert parameters(model, active=False) == pytest.approx(total, rel=0.002)
    assert parameters(model, active=True) == pytest.approx(active, rel=0.025)


def test_decoding_multiplies_by_the_weights_that_prompts_expand_latents_with():
    graph = lower(DEEPSEEK_V3, ranks=1)
    up, into, out = (graph.op(name) for name in ("kv_b_proj", "q_absorb", "v_absorb"))
    weights = [op.shape.columns * op.shape.depth for op in (up, into, out)]
    assert weights == [512 * 128 * 256, 512 * 128 * 128, 512 * 128 * 128]
    assert [op.axis for op in (up, into, out)] == ["prefill_attention", "decode_attention", "decode_attention"]
    assert (into.shape.groups_count, out.shape.groups_count) == (128, 128)


def test_prompts_attend_over_heads_of_their_own_and_decoding_over_one_latent():
    graph = lower(DEEPSEEK_V3, ranks=8)
    assert graph.op("attention_prefill").shape == AttentionShape(query_heads=16, kv_heads=16, head_size=192, value_size=128)
    latent = AttentionShape(query_heads=16, kv_heads=1, head_size=576, value_size=512, values_in_keys=True)
    assert graph.op("attention_decode").shape == latent
    assert latent.stored_size == 576
    assert graph.op("attention_prefill").shape.stored_size == 320


@pytest.mark.parametrize("ranks", [8, 16])
def test_ranks_share_heads_and_experts_and_repeat_latents(ranks):
    one, many = lower(DEEPSEEK_V3, ranks=1), lower(DEEPSEEK_V3, ranks=ranks)
    whole = {"q_a_proj", "kv_a_proj", "router"}
    for op in one.ops:
        if isinstance(op.shape, MatmulShape):
            shape = many.op(op.name).shape
            shared = op.shape.columns * op.shape.depth / (shape.columns * shape.depth)
            assert shared == (1 if op.name in whole else ranks), op.name
    assert many.op("experts").shape.width == 2048 // ranks
    assert many.op("kv_a_norm").shape == one.op("kv_a_norm").shape
    assert many.op("latent_write").shape == one.op("latent_write").shape


def test_first_layers_are_dense_and_the_others_run_experts_with_a_shared_one():
    graph = lower(DEEPSEEK_V3, ranks=1)
    calls = {op.name: op.calls_count for op in graph.ops}
    assert {calls[name] for name in ("gate_proj", "up_proj", "activation", "gate_product", "down_proj")} == {3}
    moe = ("router", "route", "experts", "shared_gate_proj", "shared_up_proj", "shared_gate_product", "shared_down_proj", "combine")
    assert {calls[name] for name in moe} == {58}
    assert {calls[name] for name in ("attention_decode", "mlp_norm", "mlp_residual", "o_proj")} == {61}
    assert graph.op("down_proj").shape.depth == 18432
    assert graph.op("shared_down_proj").shape.depth == 2048
    assert set(graph.op("mlp_residual").inputs) == {"down_proj", "combine"}


@pytest.mark.parametrize("model", [DEEPSEEK_V3, V2, V2_LITE])
@pytest.mark.parametrize("ranks", [1, 2])
def test_operators_have_names_of_their_own_and_read_only_earlier_ones(model, ranks):
    seen: set[str] = set()
    for op in lower(model, ranks=ranks).ops:
        assert op.name not in seen
        assert set(op.inputs) <= seen
        seen.add(op.name)


@pytest.mark.parametrize("lines", [(), ("[layout]", 'activations = "column_major"'), ("[fusion]", "qkv = false", "gate_up = false")])
@pytest.mark.parametrize("model", [DEEPSEEK_V3, V2_LITE])
def test_every_operator_runs_in_exactly_one_kernel_of_a_name_of_its_own(model, lines):
    plan = plan_kernels(model, round_hardware(), mapping(*lines))
    run = [op for kernel in plan.kernels for op in kernel.ops if not op.startswith("transpose:")]
    assert sorted(run) == sorted(plan.graph.names)
    ids = [kernel.id for kernel in plan.kernels]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("knob", "more_launches"), [("qkv", 61 * 2), ("gate_up", 61 * 2), ("gated_activation", 61), ("rope_kv_write", 0)])
def test_turning_a_fusion_off_adds_its_launches(knob, more_launches):
    """An 8-bit product launches twice: its activations are narrowed first. No stack fuses the rotation with the write of a latent."""
    counts = [sum(kernel.launches_count for kernel in fused(*lines).values()) for lines in ((), ("[fusion]", f"{knob} = false"))]
    assert counts[1] - counts[0] == more_launches


def test_a_quantised_checkpoint_keeps_head_router_and_absorbed_products_in_16_bit():
    formats = {kernel.id: (kernel.weights_format, kernel.activations_format) for kernel in fused().values() if kernel.backends}
    wide = {name for name, pair in formats.items() if pair == ("bf16", "bf16")}
    assert wide == {"q_absorb", "v_absorb", "lm_head", "router"}
    assert {pair for name, pair in formats.items() if name not in wide} == {("fp8_block", "fp8_block")}


def test_ranks_that_do_not_divide_the_experts_are_refused_by_name():
    odd = replace(DEEPSEEK_V3, experts=replace(DEEPSEEK_V3.experts, intermediate_size=2050))
    with pytest.raises(SpecError, match=r"2050 expert columns, which 4 ranks cannot share"):
        lower(odd, ranks=4)
    with pytest.raises(SpecError, match=r"18434 feed-forward columns, which 4 ranks cannot share"):
        lower(replace(DEEPSEEK_V3, intermediate_size=18434), ranks=4)
