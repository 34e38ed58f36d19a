"""Fusion: which operators run as one kernel.

A fused kernel reads what its members read from outside and writes what outside members need, so fusion removes the traffic
of the values in between; matrix multiplies of one input are joined along their columns.
"""

from __future__ import annotations

from dataclasses import replace

from replay.lowering.op_graph import ElementwiseShape, MatmulShape, Op, OpGraph
from replay.specs.mapping import MappingSpec

_COLUMN_GROUPS = (
    ("fusion.qkv", "qkv", ("q_proj", "k_proj", "v_proj")),
    ("fusion.qkv", "qkv_a", ("q_a_proj", "kv_a_proj")),
    ("fusion.gate_up", "gate_up", ("gate_proj", "up_proj")),
    ("fusion.gate_up", "shared_gate_up", ("shared_gate_proj", "shared_up_proj")),
)
_ELEMENTWISE_GROUPS = (
    ("fusion.gated_activation", "gated_activation", ("activation", "gate_product")),
    ("fusion.gated_activation", "shared_gated_activation", ("shared_activation", "shared_gate_product")),
    ("fusion.residual_norm", "attention_residual_norm", ("attention_residual", "mlp_norm")),
    ("fusion.residual_norm", "mlp_residual_norm", ("mlp_residual", "attention_norm")),
    ("fusion.rope_kv_write", "rope_kv_write", ("rope", "kv_write")),
)

Group = tuple[Op, tuple[str, ...]]
"""A merged operator and the names of its members."""


def fuse(graph: OpGraph, mapping: MappingSpec) -> tuple[Group, ...]:
    """Return the operators after fusion, in execution order; a group stands where its first member stood.

    The residual addition of a layer joins the norm of the next one, the last layer's the final norm. That leaves the first
    layer's norm alone; it has the shape of `final_norm`, which stands for it in the count.
    """
    merged: dict[str, Group] = {}
    absorbed: set[str] = set()
    for knob, name, members in (*_COLUMN_GROUPS, *_ELEMENTWISE_GROUPS):
        if mapping.value(knob) and set(members) <= graph.names:
            ops = [graph.op(member) for member in members]
            merged[members[0]] = (_merge(name, ops), members)
            absorbed.update(members[1:])
    return tuple(merged.get(op.name, (op, (op.name,))) for op in graph.ops if op.name not in absorbed)


def _merge(name: str, ops: list[Op]) -> Op:
    first = ops[0]
    if isinstance(first.shape, MatmulShape):
        columns = sum(op.shape.columns for op in ops if isinstance(op.shape, MatmulShape))
        return replace(first, name=name, shape=replace(first.shape, columns=columns))
    shapes = [op.shape for op in ops if isinstance(op.shape, ElementwiseShape)]
    return replace(first, name=name, shape=_stream(name, shapes), layer_type=ops[-1].layer_type)


def _stream(name: str, shapes: list[ElementwiseShape]) -> ElementwiseShape:
    """Return the traffic of a fused element-wise kernel, by what each pattern keeps in registers."""
    first, second = shapes
    read, written = first.read_elements + second.read_elements, first.written_elements + second.written_elements
    if name.endswith("gated_activation"):  # the activated gate is neither written nor read again
        read, written = read - first.written_elements, second.written_elements
    elif name == "rope_kv_write":  # rotated keys go to the cache only
        keys = second.read_elements / 2
        read, written = read - keys, written - keys
    else:  # residual + norm: the sum is written for the next addition, and normalised from registers
        read -= second.read_elements
    return ElementwiseShape(read_elements=read, written_elements=written, element_bytes=first.element_bytes)
