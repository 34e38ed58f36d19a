"""The rule of each operator type: node -> operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replay.errors import SpecError
from replay.lowering.onnx_graph import convolutions, products, streams
from replay.lowering.onnx_graph.parts import unknown
from replay.lowering.onnx_graph.tensors import Node
from replay.lowering.op_graph import Op

Rule = Callable[[Node], tuple[Op, ...]]

_PRODUCTS: Mapping[str, Rule] = {
    "Conv": convolutions.convolution,
    "ConvInteger": convolutions.convolution,
    "ConvTranspose": convolutions.transposed_convolution,
    "QLinearConv": convolutions.quantised_convolution,
    "Gemm": products.gemm,
    "MatMul": products.matmul,
    "MatMulInteger": products.matmul,
    "QLinearMatMul": products.quantised_matmul,
    "Einsum": products.einsum,
    "Attention": products.attention,
    **dict.fromkeys(products.GATES, products.recurrent),
}
_NORMS = (
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LpNormalization",
    "MeanVarianceNormalization",
    "RMSNormalization",
)
RULES: Mapping[str, Rule] = {
    **_PRODUCTS,
    **dict.fromkeys((*streams.ELEMENTWISE, *streams.POOLS, *streams.REDUCTIONS), streams.elementwise),
    **dict.fromkeys(streams.COPIES, streams.copy),
    **dict.fromkeys(streams.PARTIAL_COPIES, streams.partial_copy),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), streams.softmax),
    **dict.fromkeys(_NORMS, streams.norm),
    **dict.fromkeys(("DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"), streams.quantise),
    "Gather": streams.gather,
}
"""Operators of ONNX's own domain."""
_WITH_SUBGRAPHS: Mapping[str, str] = {
    "If": "the data choose the branch; costed by the inputs, weights and results of the larger one",
    "Loop": "the data choose how often it runs; costed by what one round reads and gives",
    "Scan": "it runs a subgraph for every element; costed by what one round reads and gives",
}


def operators(node: Node) -> tuple[Op, ...]:
    """Return what a node does; without a rule, an operator that no kernel is known for.

    Raises:
        SpecError: its operands or attributes are not those of its type.
    """
    rule = RULES.get(node.op_type) if not node.domain and node.version else None
    if rule is not None:
        try:
            return rule(node)
        except (ValueError, IndexError, KeyError, ZeroDivisionError) as error:  # sizes and attributes that inference lets pass
            place = f"the node {node.name!r} ({node.op_type})"
            raise SpecError(place, "operands or attributes that its type does not allow", "a valid node", "check the model") from error
    domain = f" ({node.domain})" if node.domain else ""
    return unknown(node, _WITH_SUBGRAPHS.get(node.op_type, f"no kernel is known for the operator type {node.op_type}{domain}"))
