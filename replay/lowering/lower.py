"""Lower a decoder-only transformer to its operators, sharded over tensor-parallel ranks."""

from __future__ import annotations

from replay.errors import SpecError
from replay.lowering.op_graph import (
    ATTENTION_PHASES,
    AttentionShape,
    Axis,
    CollectiveShape,
    ElementwiseShape,
    ExpertsShape,
    MatmulShape,
    Op,
    OpGraph,
    Shape,
)
from replay.specs.model import ExpertsSpec, MlaSpec, ModelSpec


def lower(model: ModelSpec, *, ranks: int) -> OpGraph:
    """Return the operators of one step of `model` over `ranks` tensor-parallel ranks.

    Heads, feed-forward columns and vocabulary are split over the ranks as in Megatron-LM (Shoeybi et al. 2019, section 3):
    column-parallel then row-parallel, one all-reduce after attention and one after the feed-forward block.

    Raises:
        SpecError: a dimension does not divide by the number of ranks.
    """
    _check_division(model, ranks)
    builder = _Builder(model, ranks)
    builder.add("embedding", "embedding", _elementwise(model.hidden_size, model.hidden_size), calls=1, inputs=())
    _attention_block(builder)
    _feed_forward_block(builder)
    _head(builder)
    return OpGraph(ops=tuple(builder.ops), ranks_count=ranks)


class _Builder:
    """Collects operators in order."""

    def __init__(self, model: ModelSpec, ranks: int) -> None:
        self.model, self.ranks = model, ranks
        self.ops: list[Op] = []

    def add(
        self, name: str, layer_type: str, shape: Shape, *, inputs: tuple[str, ...], calls: int | None = None, axis: Axis = "tokens"
    ) -> None:
        """Append an operator; by default it runs once in every layer."""
        calls_count = self.model.layers_count if calls is None else calls
        self.ops.append(Op(name=name, layer_type=layer_type, shape=shape, axis=axis, calls_count=calls_count, inputs=inputs))

    def all_reduce(self, name: str, *sources: str) -> tuple[str, ...]:
        """Append an all-reduce of the hidden state where there are ranks to join; return whose results to read."""
        if self.ranks == 1:
            return sources
        shape = CollectiveShape(elements=self.model.hidden_size, ranks=self.ranks, kind="all_reduce")
        self.add(name, "all_reduce", shape, inputs=sources)
        return (name,)


def _elementwise(read: float, written: float, element_bytes: float = 2.0) -> ElementwiseShape:
    return ElementwiseShape(read_elements=read, written_elements=written, element_bytes=element_bytes)


def _attention_block(builder: _Builder) -> None:
    hidden, mla = builder.model.hidden_size, builder.model.mla
    builder.add("attention_norm", "norm", _elementwise(hidden, hidden), inputs=("embedding",))
    width, attended = _grouped_attention(builder) if mla is None else _latent_attention(builder, mla)
    builder.add("o_proj", "output_proj", MatmulShape(columns=hidden, depth=width), inputs=attended)
    summed = builder.all_reduce("attention_all_reduce", "o_proj")
    builder.add("attention_residual", "residual", _elementwise(2 * hidden, hidden), inputs=summed)


def _grouped_attention(builder: _Builder) -> tuple[int, tuple[str, ...]]:
    """Append attention of query heads that share key-value heads; return the width of its result and whose results to read."""
    model, ranks, hidden = builder.model, builder.ranks, builder.model.hidden_size
    queries = model.query_heads // ranks * model.head_size
    kv_heads = max(1, model.kv_heads // ranks)  # heads are copied where there are fewer heads than ranks
    keys = kv_heads * model.head_size
    for name, columns in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        builder.add(name, "qkv", MatmulShape(columns=columns, depth=hidden), inputs=("attention_norm",))
    rope_inputs: tuple[str, ...] = ("q_proj", "k_proj")
    if model.qk_norm:
        builder.add("qk_norm", "norm", _elementwise(queries + keys, queries + keys), inputs=rope_inputs)
        rope_inputs = ("qk_norm",)
    builder.add("rope", "rope", _elementwise(queries + keys, queries + keys), inputs=rope_inputs)
    builder.add("kv_write", "rope", _elementwise(2 * keys, 2 * keys), inputs=("rope", "v_proj"))
    shape = AttentionShape(query_heads=model.query_heads // ranks, kv_heads=kv_heads, head_size=model.head_size, value_size=model.head_size)
    for axis, phase in ATTENTION_PHASES.items():
        builder.add(f"attention_{phase}", "attention", shape, inputs=("rope", "kv_write"), axis=axis)  # type: ignore[arg-type]
    return queries, ("attention_prefill", "attention_decode")


def _latent_attention(builder: _Builder, mla: MlaSpec) -> tuple[int, tuple[str, ...]]:
    """Append multi-head latent attention; return the width of its result and whose results to read.

    Prompts expand the latents of all their keys into keys and values of every head. Decoding moves that product to the queries and
    the results (DeepSeek-V2, section 2.1.2): all heads then attend over one key, the latent beside the rotary part, whose latent is
    the value as well. Heads are split over the ranks; latents are not, every rank makes and stores them whole.
    """
    heads, rope, stored = builder.model.query_heads // builder.ranks, mla.qk_rope_head_dim, mla.kv_lora_rank + mla.qk_rope_head_dim
    source = _latent_projections(builder, mla, heads)
    builder.add("kv_a_norm", "norm", _elementwise(mla.kv_lora_rank, mla.kv_lora_rank), inputs=("kv_a_proj",))
    builder.add("rope", "rope", _elementwise((heads + 1) * rope, (heads + 1) * rope), inputs=(source, "kv_a_proj"))
    builder.add("latent_write", "rope", _elementwise(stored, stored), inputs=("kv_a_norm", "rope"))

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


def _latent_projections(builder: _Builder, mla: MlaSpec, heads: int) -> str:
    """Append the products that make queries and latents from the hidden state; return whose result the queries are."""
    hidden, rank, source = builder.model.hidden_size, mla.q_lora_rank, "attention_norm"
    if rank is not None:
        builder.add("q_a_proj", "qkv", MatmulShape(columns=rank, depth=hidden), inputs=(source,))
    builder.add("kv_a_proj", "qkv", MatmulShape(columns=mla.kv_lora_rank + mla.qk_rope_head_dim, depth=hidden), inputs=(source,))
    if rank is not None:
        builder.add("q_a_norm", "norm", _elementwise(rank, rank), inputs=("q_a_proj",))
        source = "q_a_norm"
    name, columns = "q_proj" if rank is None else "q_b_proj", heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    builder.add(name, "qkv", MatmulShape(columns=columns, depth=rank or hidden), inputs=(source,))
    return name


def _feed_forward_block(builder: _Builder) -> None:
    model, hidden = builder.model, builder.model.hidden_size
    builder.add("mlp_norm", "norm", _elementwise(hidden, hidden), inputs=("attention_residual",))
    dense = model.layers_count if model.experts is None else model.experts.dense_layers_count
    sources = [_dense_block(builder, model.intermediate_size, calls=dense)] if dense else []
    if model.experts is not None:
        sources.append(_experts_block(builder, model.experts, calls=model.layers_count - dense))
    summed = builder.all_reduce("mlp_all_reduce", *sources)
    builder.add("mlp_residual", "residual", _elementwise(2 * hidden, hidden), inputs=summed)


def _dense_block(builder: _Builder, intermediate_size: int, *, calls: int, prefix: str = "") -> str:
    """Append a gated feed-forward block; return whose result to read."""
    hidden, width = builder.model.hidden_size, intermediate_size // builder.ranks
    gate, up, activation, product, down = (
        f"{prefix}{name}" for name in ("gate_proj", "up_proj", "activation", "gate_product", "down_proj")
    )
    for name in (gate, up):
        builder.add(name, "mlp", MatmulShape(columns=width, depth=hidden), inputs=("mlp_norm",), calls=calls)
    builder.add(activation, "mlp", _elementwise(width, width), inputs=(gate,), calls=calls)
    builder.add(product, "mlp", _elementwise(2 * width, width), inputs=(activation, up), calls=calls)
    builder.add(down, "mlp", MatmulShape(columns=hidden, depth=width), inputs=(product,), calls=calls)
    return down


def _experts_block(builder: _Builder, experts: ExpertsSpec, *, calls: int) -> str:
    """Append routing and experts, and the shared ones beside them as one dense block; return whose result to read."""
    hidden, count, per_row = builder.model.hidden_size, experts.experts_count, experts.experts_per_token
    builder.add("router", "moe", MatmulShape(columns=count, depth=hidden), inputs=("mlp_norm",), calls=calls)
    builder.add("route", "moe", _elementwise(count, 2 * per_row, 4.0), inputs=("router",), calls=calls)
    width = experts.intermediate_size // builder.ranks
    shape = ExpertsShape(hidden=hidden, width=width, experts_count=count, experts_per_row=per_row)
    builder.add("experts", "moe", shape, inputs=("route", "mlp_norm"), calls=calls)
    if not experts.shared_experts_count:
        return "experts"
    shared = _dense_block(builder, experts.shared_experts_count * experts.intermediate_size, calls=calls, prefix="shared_")
    builder.add("combine", "moe", _elementwise(2 * hidden, hidden), inputs=("experts", shared), calls=calls)
    return "combine"


def _head(builder: _Builder) -> None:
    model, ranks = builder.model, builder.ranks
    vocabulary = model.vocabulary_size // ranks
    builder.add("final_norm", "norm", _elementwise(model.hidden_size, model.hidden_size), inputs=("mlp_residual",), calls=1)
    head = MatmulShape(columns=vocabulary, depth=model.hidden_size)
    builder.add("lm_head", "lm_head", head, inputs=("final_norm",), calls=1, axis="sequences")
    source = "lm_head"
    if ranks > 1:
        gather = CollectiveShape(elements=vocabulary, ranks=ranks, kind="all_gather")
        builder.add("logits_all_gather", "all_reduce", gather, inputs=(source,), calls=1, axis="sequences")
        source = "logits_all_gather"
    # Converts to 32 bit, then reads the probabilities once to pick a token.
    sampling = _elementwise(model.vocabulary_size * 2.0, model.vocabulary_size * 1.0, 3.0)
    builder.add("sampling", "sampling", sampling, inputs=(source,), calls=1, axis="sequences")


def _check_division(model: ModelSpec, ranks: int) -> None:
    parts = {"attention heads": model.query_heads, "vocabulary entries": model.vocabulary_size}
    if model.experts is None or model.experts.dense_layers_count:
        parts["feed-forward columns"] = model.intermediate_size
    if model.experts is not None:
        parts["expert columns"] = model.experts.intermediate_size
    if model.kv_heads >= ranks or ranks % model.kv_heads:
        parts["KV heads"] = model.kv_heads
    for name, size in parts.items():
        if size % ranks:
            raise SpecError(
                "parallelism.tensor",
                f"{model.name} has {size} {name}, which {ranks} ranks cannot share",
                f"a number of ranks that divides {size}",
                "set another parallelism.tensor",
            )
