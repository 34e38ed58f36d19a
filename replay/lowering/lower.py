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
from replay.specs.model import ExpertsSpec, ModelSpec


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

    def all_reduce(self, name: str, source: str) -> str:
        """Append an all-reduce of the hidden state where there are ranks to join; return whose result to read."""
        if self.ranks == 1:
            return source
        shape = CollectiveShape(elements=self.model.hidden_size, ranks=self.ranks, kind="all_reduce")
        self.add(name, "all_reduce", shape, inputs=(source,))
        return name


def _elementwise(read: float, written: float, element_bytes: float = 2.0) -> ElementwiseShape:
    return ElementwiseShape(read_elements=read, written_elements=written, element_bytes=element_bytes)


def _attention_block(builder: _Builder) -> None:
    model, ranks = builder.model, builder.ranks
    queries = model.query_heads // ranks * model.head_size
    keys = _local_kv_heads(model, ranks) * model.head_size
    hidden = model.hidden_size
    builder.add("attention_norm", "norm", _elementwise(hidden, hidden), inputs=("embedding",))
    for name, columns in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        builder.add(name, "qkv", MatmulShape(columns=columns, depth=hidden), inputs=("attention_norm",))
    rope_inputs: tuple[str, ...] = ("q_proj", "k_proj")
    if model.qk_norm:
        builder.add("qk_norm", "norm", _elementwise(queries + keys, queries + keys), inputs=rope_inputs)
        rope_inputs = ("qk_norm",)
    builder.add("rope", "rope", _elementwise(queries + keys, queries + keys), inputs=rope_inputs)
    builder.add("kv_write", "rope", _elementwise(2 * keys, 2 * keys), inputs=("rope", "v_proj"))
    shape = AttentionShape(query_heads=model.query_heads // ranks, kv_heads=_local_kv_heads(model, ranks), head_size=model.head_size)
    for axis, phase in ATTENTION_PHASES.items():
        builder.add(f"attention_{phase}", "attention", shape, inputs=("rope", "kv_write"), axis=axis)  # type: ignore[arg-type]
    projected = ("attention_prefill", "attention_decode")
    builder.add("o_proj", "output_proj", MatmulShape(columns=hidden, depth=queries), inputs=projected)
    summed = builder.all_reduce("attention_all_reduce", "o_proj")
    builder.add("attention_residual", "residual", _elementwise(2 * hidden, hidden), inputs=(summed,))


def _feed_forward_block(builder: _Builder) -> None:
    model, hidden = builder.model, builder.model.hidden_size
    builder.add("mlp_norm", "norm", _elementwise(hidden, hidden), inputs=("attention_residual",))
    source = _dense_block(builder) if model.experts is None else _experts_block(builder, model.experts)
    summed = builder.all_reduce("mlp_all_reduce", source)
    builder.add("mlp_residual", "residual", _elementwise(2 * hidden, hidden), inputs=(summed,))


def _dense_block(builder: _Builder) -> str:
    """Append the gated feed-forward block; return whose result to read."""
    hidden, width = builder.model.hidden_size, builder.model.intermediate_size // builder.ranks
    for name in ("gate_proj", "up_proj"):
        builder.add(name, "mlp", MatmulShape(columns=width, depth=hidden), inputs=("mlp_norm",))
    builder.add("activation", "mlp", _elementwise(width, width), inputs=("gate_proj",))
    builder.add("gate_product", "mlp", _elementwise(2 * width, width), inputs=("activation", "up_proj"))
    builder.add("down_proj", "mlp", MatmulShape(columns=hidden, depth=width), inputs=("gate_product",))
    return "down_proj"


def _experts_block(builder: _Builder, experts: ExpertsSpec) -> str:
    """Append routing and experts; return whose result to read."""
    hidden, count, per_row = builder.model.hidden_size, experts.experts_count, experts.experts_per_token
    builder.add("router", "moe", MatmulShape(columns=count, depth=hidden), inputs=("mlp_norm",))
    builder.add("route", "moe", _elementwise(count, 2 * per_row, 4.0), inputs=("router",))
    width = experts.intermediate_size // builder.ranks
    shape = ExpertsShape(hidden=hidden, width=width, experts_count=count, experts_per_row=per_row)
    builder.add("experts", "moe", shape, inputs=("route", "mlp_norm"))
    return "experts"


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


def _local_kv_heads(model: ModelSpec, ranks: int) -> int:
    """Return the KV heads of one rank; heads are copied where there are fewer heads than ranks."""
    return max(1, model.kv_heads // ranks)


def _check_division(model: ModelSpec, ranks: int) -> None:
    width = model.intermediate_size if model.experts is None else model.experts.intermediate_size
    parts = {"attention heads": model.query_heads, "feed-forward columns": width, "vocabulary entries": model.vocabulary_size}
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
