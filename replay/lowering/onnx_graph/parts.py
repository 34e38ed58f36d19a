"""Operators from nodes: rows, and bytes by whether they follow the batch."""

from __future__ import annotations

from collections.abc import Sequence

from replay.lowering.onnx_graph.tensors import Node, Tensor
from replay.lowering.op_graph import Op, Shape, Traffic, UnknownShape


def part(
    node: Node,
    shape: Shape,
    *,
    rows: int,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    suffix: str = "",
    calls: int = 1,
    formats: tuple[str | None, str | None] = (None, None),
) -> Op:
    """Return an operator of a node with `rows` rows per item; `formats` are those of weights and activations.

    Tensors that follow the batch share their bytes among the rows, the others are moved once a call.
    """
    follows = any(tensor.batch_dimension is not None for tensor in (*reads, *writes))

    def per_row(tensors: Sequence[Tensor]) -> float:
        return sum(tensor.bytes_count for tensor in tensors if (tensor.batch_dimension is not None) == follows) / rows

    shared = sum(tensor.bytes_count for tensor in (*reads, *writes) if follows and tensor.batch_dimension is None)
    return Op(
        name=node.name + suffix,
        layer_type=node.op_type,
        shape=shape,
        axis="batch" if follows else "fixed",
        calls_count=calls,
        inputs=(),
        rows_count=rows,
        weights_format=formats[0],
        activations_format=formats[1],
        traffic=Traffic(read_bytes=per_row(reads), written_bytes=per_row(writes), shared_bytes=shared),
        members=node.members,
    )


def unknown(node: Node, reason: str) -> tuple[Op, ...]:
    """Return a node as an operator without a kernel."""
    return (part(node, UnknownShape(reason=reason), rows=1, reads=node.operands, writes=node.outputs),)
