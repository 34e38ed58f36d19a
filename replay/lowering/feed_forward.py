"""Feed-forward blocks of a transformer: dense, or a mixture of experts whose ranks share columns, experts, or both."""

from __future__ import annotations

from replay.lowering.builder import Builder, Layers, elementwise
from replay.lowering.expert_ranks import reached_ratio
from replay.lowering.op_graph import ExpertsShape, MatmulShape, RankLoads, WaitShape
from replay.specs.model import ExpertsSpec


def feed_forward_block(builder: Builder, loads: RankLoads | None) -> None:
    """Append the dense and the expert layers' feed-forward blocks, joined over the ranks and with the residual added."""
    model, hidden = builder.model, builder.model.hidden_size
    builder.add("mlp_norm", "norm", elementwise(hidden, hidden), inputs=("attention_residual",))
    dense = model.layers_count if model.experts is None else model.experts.dense_layers_count
    partial = [_dense_block(builder, model.intermediate_size, layers=(0, dense))] if dense else []
    whole: tuple[str, ...] = ()
    if model.experts is not None:
        layers = (dense, model.layers_count - dense)
        if loads is not None and loads.exchanged:
            whole = _exchanged_experts(builder, model.experts, loads, layers)
        else:
            partial.append(_experts_block(builder, model.experts, loads, layers))
    covered = (0, dense) if whole else (0, model.layers_count)
    summed = builder.all_reduce("mlp_all_reduce", *partial, layers=covered) if partial else ()
    builder.add("mlp_residual", "residual", elementwise(2 * hidden, hidden), inputs=(*summed, *whole))


def _dense_block(builder: Builder, intermediate_size: int, *, layers: Layers, prefix: str = "") -> str:
    """Append a gated feed-forward block; return whose result to read."""
    hidden, width = builder.model.hidden_size, intermediate_size // builder.ranks
    gate, up, activation, product, down = (
        f"{prefix}{name}" for name in ("gate_proj", "up_proj", "activation", "gate_product", "down_proj")
    )
    for name in (gate, up):
        builder.add(name, "mlp", MatmulShape(columns=width, depth=hidden), inputs=("mlp_norm",), layers=layers)
    builder.add(activation, "mlp", elementwise(width, width), inputs=(gate,), layers=layers)
    builder.add(product, "mlp", elementwise(2 * width, width), inputs=(activation, up), layers=layers)
    builder.add(down, "mlp", MatmulShape(columns=hidden, depth=width), inputs=(product,), layers=layers)
    return down


def _experts_block(builder: Builder, experts: ExpertsSpec, loads: RankLoads | None, layers: Layers) -> str:
    """Append routing and experts, and the shared ones beside them as one dense block; return whose partial sums to read.

    Ranks that hold other experts or other columns alike see all tokens and add up in one all-reduce (vLLM without data parallelism,
    SGLang and TensorRT-LLM without an all-to-all).
    """
    _routing(builder, experts, layers)
    done = _experts(builder, experts, loads, ("route", "mlp_norm"), layers)
    if not experts.shared_experts_count:
        return done
    shared = _shared_block(builder, experts, layers)
    builder.add(
        "combine", "moe", elementwise(2 * builder.model.hidden_size, builder.model.hidden_size), inputs=(done, shared), layers=layers
    )
    return "combine"


def _exchanged_experts(builder: Builder, experts: ExpertsSpec, loads: RankLoads, layers: Layers) -> tuple[str, ...]:
    """Append experts whose tokens travel: dispatched to the ranks of their experts and back, then gathered; return whose results to read.

    Each rank sends its share of the tokens, in 16 bit and once to each rank that holds a chosen expert (DeepEP); the all-to-all takes
    as long as the rank with most of them needs. Attention needs all tokens on all ranks again. Shared experts stay split by columns
    and add up in an all-reduce of their own.
    """
    hidden = builder.model.hidden_size
    _routing(builder, experts, layers)
    sent = hidden * reached_ratio(loads.busiest or loads.typical)
    dispatched = builder.collective("expert_dispatch", "all_to_all", sent, ("route", "mlp_norm"), layers)
    done = _experts(builder, experts, loads, dispatched, layers)
    combined = builder.collective("expert_combine", "all_to_all", sent, (done,), layers)
    gathered = builder.collective("expert_all_gather", "all_gather", hidden / builder.ranks, combined, layers)
    if not experts.shared_experts_count:
        return gathered
    shared = builder.all_reduce("shared_all_reduce", _shared_block(builder, experts, layers), layers=layers)
    builder.add("combine", "moe", elementwise(2 * hidden, hidden), inputs=(*gathered, *shared), layers=layers)
    return ("combine",)


def _routing(builder: Builder, experts: ExpertsSpec, layers: Layers) -> None:
    count, per_row = experts.experts_count, experts.experts_per_token
    builder.add("router", "moe", MatmulShape(columns=count, depth=builder.model.hidden_size), inputs=("mlp_norm",), layers=layers)
    builder.add("route", "moe", elementwise(count, 2 * per_row, 4.0), inputs=("router",), layers=layers)


def _experts(builder: Builder, experts: ExpertsSpec, loads: RankLoads | None, sources: tuple[str, ...], layers: Layers) -> str:
    """Append the experts, and the wait for the busiest rank before their results are joined; return whose results to read."""
    shape = ExpertsShape(
        hidden=builder.model.hidden_size,
        width=experts.intermediate_size // (builder.ranks if loads is None else builder.ranks // loads.ranks_count),
        experts_count=experts.experts_count if loads is None else loads.experts_count,
        experts_per_row=experts.experts_per_token,
        loads=loads,
    )
    builder.add("experts", "moe", shape, inputs=sources, layers=layers)
    if loads is None or not loads.busiest:
        return "experts"
    builder.add("expert_wait", "all_reduce", WaitShape(), inputs=("experts",), layers=layers)
    return "expert_wait"


def _shared_block(builder: Builder, experts: ExpertsSpec, layers: Layers) -> str:
    return _dense_block(builder, experts.shared_experts_count * experts.intermediate_size, layers=layers, prefix="shared_")
