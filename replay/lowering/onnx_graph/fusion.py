"""Simple fusion, as every runtime does it: what follows a product or an element-wise operator element by element runs in its epilogue.

Absorbed, while nobody else reads the value in between: batch normalisation and other arithmetic with constants (folded into
weights or the epilogue), then one activation. A product between 8-bit values that are widened first (`DequantizeLinear`) reads
them narrow, and writes them narrow where they are quantised right after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from replay.lowering.onnx_graph.streams import ACTIVATIONS, AFFINE, ELEMENTWISE
from replay.lowering.onnx_graph.tensors import Node, Nodes, Tensor

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
NARROW = ("int8", "uint8", "fp8")


def fused(found: Nodes) -> tuple[Node, ...]:
    """Return the nodes after fusion, each where its first member stood."""
    return _absorbed(_narrowed(found), found.results)


def _narrowed(whole: Nodes) -> list[Node]:
    """Return the nodes with products of widened 8-bit values reading the narrow ones."""
    widened = {node.outputs[0].name: node.operands[0] for node in whole.nodes if node.op_type == "DequantizeLinear"}
    found = [_reading_narrow(node, widened) if node.op_type in PRODUCTS else node for node in whole.nodes]
    read = {tensor.name for node in found for tensor in node.operands} | whole.results
    return [node for node in found if node.op_type != "DequantizeLinear" or node.outputs[0].name in read]


def _reading_narrow(node: Node, widened: dict[str, Tensor]) -> Node:
    factors = [widened.get(tensor.name, tensor) for tensor in node.operands[:2]]
    if not all(tensor.format in NARROW for tensor in factors):
        return node
    narrow = [
        replace(tensor, sizes=seen.sizes, batch_dimension=seen.batch_dimension)
        for tensor, seen in zip(factors, node.operands, strict=False)
    ]
    return replace(node, inputs=(*narrow, *node.inputs[2:]))


def _absorbed(nodes: Sequence[Node], results: frozenset[str]) -> tuple[Node, ...]:
    readers = Counter(tensor.name for node in nodes for tensor in node.operands)
    readers.update(results)
    reader = {tensor.name: node for node in nodes for tensor in node.operands if not tensor.is_constant}
    gone: set[str] = set()
    found = []
    for head in nodes:
        if head.name in gone:
            continue
        chain = _chain(head, readers, reader) if head.op_type in (*PRODUCTS, *ELEMENTWISE) and len(head.outputs) == 1 else []
        gone.update(member.name for member in chain)
        members = tuple(member.name for member in (head, *chain))
        found.append(replace(head, outputs=chain[-1].outputs, members=members) if chain else head)
    return tuple(found)


def _chain(head: Node, readers: Counter[str], reader: dict[str, Node]) -> list[Node]:
    """Return the nodes that run in the epilogue of `head`."""
    chain: list[Node] = []
    value, activated = head.outputs[0], head.op_type in ACTIVATIONS
    while readers[value.name] == 1 and value.name in reader:
        following = reader[value.name]
        if not _fits(following, value):
            break
        is_activation = following.op_type in ACTIVATIONS
        narrows = following.op_type == "QuantizeLinear" and head.op_type in PRODUCTS
        if not (narrows or (not activated and (is_activation or following.op_type in (*AFFINE, "BatchNormalization")))):
            break
        activated = activated or is_activation
        chain.append(following)
        value = following.outputs[0]
        if narrows:
            break
    return chain


def _fits(node: Node, value: Tensor) -> bool:
    """Return whether a node changes `value` element by element, by constants only."""
    same = len(node.outputs) == 1 and (node.outputs[0].sizes, node.outputs[0].batch_dimension) == (value.sizes, value.batch_dimension)
    return same and all(tensor.is_constant or tensor.name == value.name for tensor in node.operands)
