"""Lower a decoder-only transformer to its operators, sharded over tensor-parallel ranks, expert-parallel ones among them, and stages."""

from __future__ import annotations

import math

from replay.errors import SpecError
from replay.lowering.builder import Builder, elementwise
from replay.lowering.feed_forward import feed_forward_block
from replay.lowering.op_graph import (
    ATTENTION_PHASES,
    AttentionShape,
    CollectiveShape,
    MatmulShape,
    Op,
    OpGraph,
    RankLoads,
)
from replay.lowering.stages import handovers
from replay.specs.model import MlaSpec, ModelSpec


def lower(model: ModelSpec, *, ranks: int, loads: RankLoads | None = None, stage_layers: tuple[int, ...] = ()) -> OpGraph:
    """Return the operators of one step of `model` over `ranks` tensor-parallel ranks and the stages of a pipeline.

    Heads, feed-forward columns and vocabulary are split over the ranks as in Megatron-LM (Shoeybi et al. 2019, section 3):
    column-parallel then row-parallel, one all-reduce after attention and one after the feed-forward block. Experts are dealt to the
    ranks of `loads`, and split over what is left of the group; stages of `stage_layers` layers (none: one stage) hand over between.

    Raises:
        SpecError: a dimension does not divide by the number of ranks.
    """
    _check_division(model, ranks, 1 if loads is None else loads.ranks_count)
    builder = Builder(model, ranks, stage_layers)
    builder.add("embedding", "embedding", elementwise(model.hidden_size, model.hidden_size), layers=(0, 1), inputs=())
    _attention_block(builder)
    feed_forward_block(builder, loads)
    _handover(builder)
    _head(builder)
    return OpGraph(ops=tuple(builder.ops), ranks_count=ranks, stage_layers=stage_layers)


def _attention_block(builder: Builder) -> None:
    hidden, mla = builder.model.hidden_size, builder.model.mla
    builder.add("attention_norm", "norm", elementwise(hidden, hidden), inputs=("embedding",))
    width, attended = _grouped_attention(builder) if mla is None else _latent_attention(builder, mla)
    builder.add("o_proj", "output_proj", MatmulShape(columns=hidden, depth=width), inputs=attended)
    summed = builder.all_reduce("attention_all_reduce", "o_proj")
    builder.add("attention_residual", "residual", elementwise(2 * hidden, hidden), inputs=summed)


def _grouped_attention(builder: Builder) -> tuple[int, tuple[str, ...]]:
    """Append attention of query heads that share key-value heads; return the width of its result and whose results to read."""
    model, ranks, hidden = builder.model, builder.ranks, builder.model.hidden_size
    queries = model.query_heads // ranks * model.head_size
    kv_heads = max(1, model.kv_heads // ranks)  # heads are copied where there are fewer heads than ranks
    keys = kv_heads * model.head_size
    for name, columns in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        builder.add(name, "qkv", MatmulShape(columns=columns, depth=hidden), inputs=("attention_norm",))
    rope_inputs: tuple[str, ...] = ("q_proj", "k_proj")
    if model.qk_norm:
        builder.add("qk_norm", "norm", elementwise(queries + keys, queries + keys), inputs=rope_inputs)
        rope_inputs = ("qk_norm",)
    builder.add("rope", "rope", elementwise(queries + keys, queries + keys), inputs=rope_inputs)
    builder.add("kv_write", "rope", elementwise(2 * keys, 2 * keys), inputs=("rope", "v_proj"))
    shape = AttentionShape(query_heads=model.query_heads // ranks, kv_heads=kv_heads, head_size=model.head_size, value_size=model.head_size)
    for axis, phase in ATTENTION_PHASES.items():
        builder.add(f"attention_{phase}", "attention", shape, inputs=("rope", "kv_write"), axis=axis)  # type: ignore[arg-type]
    return queries, ("attention_prefill", "attention_decode")


def _latent_attention(builder: Builder, mla: MlaSpec) -> tuple[int, tuple[str, ...]]:
    """Append multi-head latent attention; return the width of its result and whose results to read.

    Prompts expand the latents of all their keys into keys and values of every head. Decoding moves that product to the queries and
    the results (DeepSeek-V2, section 2.1.2): all heads then attend over one key, the latent beside the rotary part, whose latent is
    the value as well. Heads are split over the ranks; latents are not, every rank makes and stores them whole.
    """
    heads, rope, stored = builder.model.query_heads // builder.ranks, mla.qk_rope_head_dim, mla.kv_lora_rank + mla.qk_rope_head_dim
    source = _latent_projections(builder, mla, heads)
    builder.add("kv_a_norm", "norm", elementwise(mla.kv_lora_rank, mla.kv_lora_rank), inputs=("kv_a_proj",))
    builder.add("rope", "rope", elementwise((heads + 1) * rope, (heads + 1) * rope), inputs=(source, "kv_a_proj"))
    builder.add("latent_write", "rope", elementwise(stored, stored), inputs=("kv_a_norm", "rope"))

    up = MatmulShape(columns=heads * (mla.qk_nope_head_dim + mla.v_head_dim), depth=mla.kv_lora_rank)
    builder.add("kv_b_proj", "qkv", up, inputs=("latent_write",), axis="prefill_attention")
    size = mla.qk_nope_head_dim + rope
    expanded = AttentionShape(query_heads=heads, kv_heads=heads, head_size=size, value_size=mla.v_head_dim)
    builder.add("attention_prefill", "attention", expanded, inputs=("rope", "kv_b_proj"), axis="prefill_attention")

    into_latent = MatmulShape(columns=heads * mla.kv_lora_rank, depth=mla.qk_nope_head_dim, groups_count=heads)
    builder.add("q_absorb", "attention", into_latent, inputs=(source,), axis="decode_attention")
    absorbed = AttentionShape(query_heads=heads, kv_heads=1, head_size=stored, value_size=mla.kv_lora_rank, values_in_keys=True)
    builder.add("attention_decode", "attention", absorbed, inputs=("q_absorb", "rope", "latent_write"), axis="decode_attention")
    out_of_latent = MatmulShape(columns=heads * mla.v_head_dim, depth=mla.kv_lora_rank, groups_count=heads)
    builder.add("v_absorb", "attention", out_of_latent, inputs=("attention_decode",), axis="decode_attention")
    return heads * mla.v_head_dim, ("attention_prefill", "v_absorb")


def _latent_projections(builder: Builder, mla: MlaSpec, heads: int) -> str:
    """Append the products that make queries and latents from the hidden state; return whose result the queries are."""
    hidden, rank, source = builder.model.hidden_size, mla.q_lora_rank, "attention_norm"
    if rank is not None:
        builder.add("q_a_proj", "qkv", MatmulShape(columns=rank, depth=hidden), inputs=(source,))
    builder.add("kv_a_proj", "qkv", MatmulShape(columns=mla.kv_lora_rank + mla.qk_rope_head_dim, depth=hidden), inputs=(source,))
    if rank is not None:
        builder.add("q_a_norm", "norm", elementwise(rank, rank), inputs=("q_a_proj",))
        source = "q_a_norm"
    name, columns = "q_proj" if rank is None else "q_b_proj", heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    builder.add(name, "qkv", MatmulShape(columns=columns, depth=rank or hidden), inputs=(source,))
    return name


def _handover(builder: Builder) -> None:
    """Append what stages hand over: hidden state and residual, in parts of one rank each, which the next stage's ranks gather (vLLM)."""
    stages = len(builder.stage_layers)
    elements = math.ceil(2 * builder.model.hidden_size / builder.ranks)
    for name, across in (("stage_send", False), ("stage_send_across_nodes", True)):
        calls = handovers(stages, builder.ranks, across_nodes=across)
        if any(calls):
            shape = CollectiveShape(elements=elements, ranks=2, kind="send_receive", across_nodes=across)
            builder.ops.append(_between(name, shape, calls, "mlp_residual"))
    if stages > 1 and builder.ranks > 1:
        shape = CollectiveShape(elements=elements, ranks=builder.ranks, kind="all_gather")
        builder.ops.append(_between("stage_all_gather", shape, (0, *[1] * (stages - 1)), "mlp_residual"))


def _between(name: str, shape: CollectiveShape, calls: tuple[int, ...], source: str) -> Op:
    return Op(name=name, layer_type="all_reduce", shape=shape, axis="tokens", calls_count=sum(calls), inputs=(source,), stage_calls=calls)


def _head(builder: Builder) -> None:
    model, ranks = builder.model, builder.ranks
    vocabulary = model.vocabulary_size // ranks
    last = (model.layers_count - 1, 1)
    builder.add("final_norm", "norm", elementwise(model.hidden_size, model.hidden_size), inputs=("mlp_residual",), layers=last)
    head = MatmulShape(columns=vocabulary, depth=model.hidden_size)
    builder.add("lm_head", "lm_head", head, inputs=("final_norm",), layers=last, axis="sequences")
    source = "lm_head"
    if ranks > 1:
        gather = CollectiveShape(elements=vocabulary, ranks=ranks, kind="all_gather")
        builder.add("logits_all_gather", "all_reduce", gather, inputs=(source,), layers=last, axis="sequences")
        source = "logits_all_gather"
    # Converts to 32 bit, then reads the probabilities once to pick a token.
    sampling = elementwise(model.vocabulary_size * 2.0, model.vocabulary_size * 1.0, 3.0)
    builder.add("sampling", "sampling", sampling, inputs=(source,), layers=last, axis="sequences")


def _check_division(model: ModelSpec, ranks: int, expert_ranks: int) -> None:
    parts = {"attention heads": model.query_heads, "vocabulary entries": model.vocabulary_size}
    if model.experts is None or model.experts.dense_layers_count:
        parts["feed-forward columns"] = model.intermediate_size
    if model.kv_heads >= ranks or ranks % model.kv_heads:
        parts["KV heads"] = model.kv_heads
    shared = [(name, size, ranks) for name, size in parts.items()]
    if model.experts is not None:
        shared.append(("expert columns", model.experts.intermediate_size, ranks // expert_ranks))
        shared.append(("columns of shared experts", model.experts.shared_experts_count * model.experts.intermediate_size, ranks))
    for name, size, among in shared:
        if size % among:
            raise SpecError(
                "parallelism.tensor",
                f"{model.name} has {size} {name}, which {among} ranks cannot share",
                f"a number of ranks that divides {size}",
                "set another parallelism.tensor",
            )
