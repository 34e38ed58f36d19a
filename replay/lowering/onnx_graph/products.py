"""Rules for matrix multiplies: with weights, between activations, and what contains them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from replay.lowering.onnx_graph.parts import part, unknown
from replay.lowering.onnx_graph.tensors import Node, Tensor
from replay.lowering.op_graph import BatchedMatmulShape, MatmulShape, Op, StreamShape

Labels = Sequence[str]
GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}


def matmul(node: Node, right: int = 1) -> tuple[Op, ...]:
    """Return a product of stacks of matrices; `right` is the number of the second operand."""
    a, b = node.operands[0], node.inputs[right]
    assert b is not None
    lead = [f"b{axis}" for axis in range(max(len(a.sizes), len(b.sizes)) - 2, 0, -1)]
    of_a = [*lead[len(lead) - max(len(a.sizes) - 2, 0) :], "m", "k"] if len(a.sizes) > 1 else ["k"]
    of_b = [*lead[len(lead) - max(len(b.sizes) - 2, 0) :], "k", "n"] if len(b.sizes) > 1 else ["k"]
    return _product(node, (a, b), (of_a, of_b), [*lead, "m", "n"])


def quantised_matmul(node: Node) -> tuple[Op, ...]:
    """Return a product whose operands each come with a scale and a zero point."""
    return matmul(node, 3)


def gemm(node: Node) -> tuple[Op, ...]:
    """Return a product of two matrices, either of them transposed."""
    left, right = ("km" if node.attributes.get("transA") else "mk"), ("nk" if node.attributes.get("transB") else "kn")
    return _product(node, (node.operands[0], node.operands[1]), (left, right), "mn")


def einsum(node: Node) -> tuple[Op, ...]:
    """Return a sum of products of two operands; other sums are taken for unknown."""
    equation = node.attributes.get("equation", "").replace(" ", "")
    inputs, _, result = equation.partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or len(node.operands) != 2 or "." in equation or not result:
        return unknown(node, "an Einsum that is not one product of two operands")
    return _product(node, (node.operands[0], node.operands[1]), (terms[0], terms[1]), result)


def _product(node: Node, operands: tuple[Tensor, Tensor], labels: tuple[Labels, Labels], result: Labels) -> tuple[Op, ...]:
    """Return the product over the labels that the result does not have.

    With one operand that does not follow the batch it is a multiply by weights, unless each matrix of a stack has its own. Else
    it is one of activations.
    """
    (a, b), (size_a, size_b) = operands, (_sizes(operands[0], labels[0]), _sizes(operands[1], labels[1]))
    stacked = [label for label in result if label in size_a and label in size_b]
    rows = prod(size for label, size in size_a.items() if label in result and label not in size_b)
    columns = prod(size for label, size in size_b.items() if label in result and label not in size_a)
    depth = prod(size for label, size in {**size_a, **size_b}.items() if label not in result)
    count = prod(size_a[label] for label in stacked)
    fixed_a, fixed_b = (tensor.batch_dimension is None for tensor in operands)
    weights, other = (a, b) if fixed_a and (not fixed_b or (a.is_constant and not b.is_constant)) else (b, a)
    if weights is a:
        rows, columns = columns, rows
    if weights.batch_dimension is None and (weights.is_constant or not stacked):
        reads, formats = node.operands, (weights.format, other.format)
        if count > 1:
            stack = BatchedMatmulShape(count=count, rows=rows, columns=columns, depth=depth)
            return (part(node, stack, rows=1, reads=reads, writes=node.outputs, formats=formats),)
        shape = MatmulShape(columns=columns, depth=depth)
        return (part(node, shape, rows=rows, reads=reads, writes=node.outputs, formats=formats),)
    batched = BatchedMatmulShape(count=count, rows=rows, columns=columns, depth=depth)
    return (part(node, batched, rows=1, reads=node.operands, writes=node.outputs, formats=(None, a.format)),)


def _sizes(tensor: Tensor, labels: Labels) -> dict[str, int]:
    """Return the size per item of each label that matters; axes of one element broadcast."""
    named = zip(labels, tensor.sizes, range(len(tensor.sizes)), strict=True)
    return {label: size for label, size, axis in named if size != 1 or axis == tensor.batch_dimension}


def attention(node: Node) -> tuple[Op, ...]:
    """Return scaled dot-product attention as two products between activations and a softmax."""
    query, key, value = node.operands[:3]
    if any(tensor.batch_dimension not in (0, None) for tensor in (query, key, value)):
        return unknown(node, "the batch is not the first axis of its queries, keys and values")
    heads, queries, depth = _heads(query, node.attributes.get("q_num_heads", 1))
    kv_heads, keys, _ = _heads(key, node.attributes.get("kv_num_heads", 1))
    past = node.inputs[4] if len(node.inputs) > 4 else None
    keys += past.sizes[2] if past is not None else 0
    width = _heads(value, kv_heads)[2]
    stacks = query.sizes[0] * heads
    scores = replace(query, sizes=(stacks, queries, keys))
    formats = None, query.format
    product = BatchedMatmulShape(count=stacks, rows=queries, columns=keys, depth=depth)
    weighted = BatchedMatmulShape(count=stacks, rows=queries, columns=width, depth=keys)
    softmax = StreamShape(kind="softmax", columns=keys)
    return (
        part(node, product, rows=1, reads=(query, key), writes=(scores,), suffix="/scores", formats=formats),
        part(node, softmax, rows=stacks * queries, reads=(scores,), writes=(scores,), suffix="/softmax", formats=formats),
        part(node, weighted, rows=1, reads=(scores, value), writes=node.outputs, suffix="/values", formats=formats),
    )


def _heads(tensor: Tensor, heads: int) -> tuple[int, int, int]:
    """Return (heads, sequence, head size) of [batch, heads, sequence, size] or [batch, sequence, heads x size]."""
    if len(tensor.sizes) == 4:
        return tensor.sizes[1], tensor.sizes[2], tensor.sizes[3]
    return heads, tensor.sizes[1], tensor.sizes[2] // heads


def recurrent(node: Node) -> tuple[Op, ...]:
    """Return a recurrent layer: the inputs of all steps in one product, then for each step a product with the state, and gates."""
    inputs, weights, recurrence = node.operands[:3]
    directions, _, hidden = recurrence.sizes
    gates = GATES[node.op_type]
    steps_axis = 1 if node.attributes.get("layout") else 0
    if inputs.batch_dimension not in (1 - steps_axis, None) or weights.batch_dimension is not None:
        return unknown(node, "the batch is not where its layout says")
    steps, items = inputs.sizes[steps_axis], inputs.sizes[1 - steps_axis]
    whole = replace(
        inputs, sizes=(items, steps, directions * gates * hidden), batch_dimension=0 if inputs.batch_dimension is not None else None
    )
    gated, state = replace(whole, sizes=(items, gates * hidden)), replace(whole, sizes=(items, hidden))
    one_way = replace(recurrence, sizes=(1, *recurrence.sizes[1:]))
    formats = weights.format, inputs.format
    projection = MatmulShape(columns=directions * gates * hidden, depth=weights.sizes[2])
    step = MatmulShape(columns=gates * hidden, depth=hidden)
    gate = StreamShape(kind="elementwise", columns=hidden)
    calls = steps * directions
    return (
        part(node, projection, rows=items * steps, reads=(inputs, weights), writes=(whole,), suffix="/inputs", formats=formats),
        part(node, step, rows=items, reads=(state, one_way), writes=(gated,), suffix="/state", calls=calls, formats=formats),
        part(node, gate, rows=items, reads=(gated, gated, state), writes=(state,), suffix="/gates", calls=calls, formats=formats),
    )
