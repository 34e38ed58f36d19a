"""Rules for what passes over its data: element-wise work, norms, softmax, lookups, copies, quantisation, pooling and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from replay.lowering.onnx_graph.parts import part
from replay.lowering.onnx_graph.tensors import Node, Tensor
from replay.lowering.op_graph import Op, StreamShape

AFFINE = ("Add", "Sub", "Mul", "Div")
ACTIVATIONS = (
    "Abs", "Celu", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "PRelu",
    "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Swish", "Tanh", "ThresholdedRelu",
)  # fmt: skip
"""Functions of one element, up to constants."""
_OTHER_ELEMENTWISE = (
    "Acos", "Acosh", "And", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Cos", "Cosh", "Equal", "Floor", "Greater", "GreaterOrEqual", "IsInf",
    "IsNaN", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Not", "Or", "Pow", "RotaryEmbedding", "Round", "Shrink", "Sign",
    "Sin", "Sinh", "Sum", "Tan", "Where", "Xor",
)  # fmt: skip
ELEMENTWISE = (*AFFINE, *ACTIVATIONS, *_OTHER_ELEMENTWISE)
POOLS = ("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LRN", "LpPool", "MaxPool")
REDUCTIONS = (
    "ArgMax", "ArgMin", "CumSum", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
COPIES = (
    "CenterCropPad", "Concat", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "OneHot", "Pad", "Range", "Resize",
    "ReverseSequence", "ScatterElements", "ScatterND", "SpaceToDepth", "Tile", "Transpose", "Trilu", "Upsample",
)  # fmt: skip
PARTIAL_COPIES = ("GatherElements", "GatherND", "Slice", "Split")
"""Read what they write of their first operand."""
FLATTENING_UNTIL = 13
"""Operator set from which on a softmax runs along one axis."""
TRANSFORMS = ("DepthToSpace", "SpaceToDepth", "Transpose")


def elementwise(node: Node) -> tuple[Op, ...]:
    """Return a pass that reads every operand and writes every result."""
    return (_stream(node, "elementwise", node.operands),)


def copy(node: Node) -> tuple[Op, ...]:
    """Return a copy, perhaps in another order."""
    return (_stream(node, "transform" if node.op_type in TRANSFORMS else "elementwise", node.operands),)


def partial_copy(node: Node) -> tuple[Op, ...]:
    """Return a copy of a part of the first operand."""
    taken = [replace(result, element_bytes=node.operands[0].element_bytes) for result in node.outputs]
    return (_stream(node, "elementwise", (*taken, *node.operands[1:])),)


def gather(node: Node) -> tuple[Op, ...]:
    """Return a lookup of rows of weights, or a copy of a part of an activation."""
    table, indices = node.operands
    if not table.is_constant:
        return partial_copy(node)
    axis = node.attributes.get("axis", 0)
    columns = prod(size for index, size in enumerate(table.sizes) if index != axis % len(table.sizes))
    taken = replace(node.outputs[0], element_bytes=table.element_bytes)
    return (_stream(node, "embedding", (taken, indices), columns=columns),)


def softmax(node: Node) -> tuple[Op, ...]:
    """Return a softmax along an axis; over all axes from it on in the flattened form of operator sets before 13."""
    axis = node.attributes["axis"]
    columns = prod(node.operands[0].sizes[axis:]) if node.version < FLATTENING_UNTIL else _along(node, axis)
    return (_stream(node, "softmax", node.operands, columns=columns),)


def norm(node: Node) -> tuple[Op, ...]:
    """Return a normalisation over the axes that its statistics run over."""
    source = node.operands[0]
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        columns = prod(source.sizes[node.attributes.get("axis", -1) :])
    elif node.op_type == "LpNormalization":
        columns = _along(node, node.attributes.get("axis", -1))
    else:  # InstanceNormalization: one channel; GroupNormalization: a group of them; MeanVarianceNormalization: close to the first
        columns = prod(source.sizes[2:])
        columns *= source.sizes[1] // node.attributes["num_groups"] if node.op_type == "GroupNormalization" else 1
    return (_stream(node, "norm", node.operands, columns=columns),)


def quantise(node: Node) -> tuple[Op, ...]:
    """Return a change of format with scales, under the name of the narrower one."""
    narrow = min((node.operands[0], node.outputs[0]), key=lambda tensor: tensor.element_bytes)
    return (replace(_stream(node, "quantise", node.operands), activations_format=narrow.format),)


def _along(node: Node, axis: int) -> int:
    return node.operands[0].sizes[axis] if node.operands[0].sizes else 1


def _stream(node: Node, kind: str, reads: Sequence[Tensor], columns: int | None = None) -> Op:
    """Return a pass with rows of `columns` elements, by default those of the last axis of the larger end."""
    ends = [tensor for tensor in (*reads[:1], *node.outputs) if tensor.elements] or [*node.operands, *node.outputs]
    follows = [tensor for tensor in ends if tensor.batch_dimension is not None] or ends
    largest = max(follows, key=lambda tensor: tensor.elements)
    last = len(largest.sizes) - 1
    if columns is None:
        columns = largest.sizes[-1] if largest.sizes and largest.batch_dimension != last else 1
    rows = max(largest.elements // columns, 1)
    shape = StreamShape(kind=kind, columns=columns)  # type: ignore[arg-type]
    return part(node, shape, rows=rows, reads=reads, writes=node.outputs, formats=(None, largest.format))
