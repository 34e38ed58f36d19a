"""The door: an ONNX model -> OpGraph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from replay.errors import SpecError
from replay.lowering.onnx_graph.axes import AxisSizes, resolve_axes
from replay.lowering.onnx_graph.fusion import fused
from replay.lowering.onnx_graph.rules import operators
from replay.lowering.onnx_graph.tensors import Node, read_nodes
from replay.lowering.op_graph import Op, OpGraph

if TYPE_CHECKING:
    from onnx import ModelProto


def lower_onnx(model: ModelProto, *, where: str, axes: AxisSizes, fuse: bool = True) -> OpGraph:
    """Return the operators of an ONNX model; `axes` sets the sizes of dynamic axes, `where` names the model in errors.

    The first dynamic axis carries the batch unless `axes` sets another one to "batch"; without any, the batch is what the model
    was exported with, and no operator follows one. What depends on weights and shapes alone costs nothing, nor do views.

    Raises:
        SpecError: an axis without a size, shapes that do not fit or cannot be told, or sizes not in proportion to the batch.
    """
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    sized = resolve_axes(model, axes, where)
    found = read_nodes(model, sized, where)
    ops = _linked(fused(found) if fuse else found.nodes)
    if not ops:
        raise SpecError(
            where,
            "no operator computes anything from an input (results with a size of 0 are nothing)",
            "a model that computes something",
            "check how it was exported",
        )
    return OpGraph(ops=ops, ranks_count=1, batch_axis=sized.batch_keys[0] if sized.batch_keys else None)


def _linked(nodes: Iterable[Node]) -> tuple[Op, ...]:
    """Return the operators of all nodes, each with the names of those whose results it reads."""
    giver: dict[str, str] = {}
    found: list[Op] = []
    for node in nodes:
        sources = _sources(node, giver)
        for op in operators(node):
            found.append(replace(op, inputs=sources))
            sources = (op.name,)
        giver.update(dict.fromkeys((tensor.name for tensor in node.outputs), found[-1].name))
    return tuple(found)


def _sources(node: Node, giver: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(giver[tensor.name] for tensor in node.operands if tensor.name in giver))
