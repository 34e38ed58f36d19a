"""What a node with subgraphs (`If`, `Loop`, `Scan`) reads: outer tensors that they use, and weights that they hold."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A constant inside a subgraph."""

    name: str
    element_type: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What subgraphs read beside the operands of their node."""

    names: tuple[str, ...]
    weights: tuple[Weight, ...]
    """Of the subgraph that holds most: one branch of an `If` runs."""


def captured(node: NodeProto, known: Set[str]) -> Captured:
    """Return what the subgraphs of a node read; `known` are the tensors outside."""
    graphs = list(_subgraphs(node))
    read = {name for graph in graphs for name in _read_from_outside(graph)}
    weights = max((tuple(_weights(graph)) for graph in graphs), key=_elements, default=())
    return Captured(names=tuple(sorted(read & known)), weights=weights)


def read_names(graph: GraphProto) -> Iterator[str]:
    """Yield the names of all tensors that a node of a graph or its subgraphs reads, or that they give to who runs them."""
    for node in graph.node:
        yield from node.input
        for inner in _subgraphs(node):
            yield from read_names(inner)
    yield from (value.name for value in graph.output)


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _elements(weights: tuple[Weight, ...]) -> int:
    return sum(prod(weight.sizes) for weight in weights)


def _weights(graph: GraphProto) -> Iterator[Weight]:
    for tensor in graph.initializer:
        yield Weight(name=tensor.name, element_type=tensor.data_type, sizes=tuple(tensor.dims))
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield Weight(name=node.output[0], element_type=attribute.t.data_type, sizes=tuple(attribute.t.dims))
        for inner in _subgraphs(node):
            yield from _weights(inner)


def _read_from_outside(graph: GraphProto) -> Iterator[str]:
    """Yield the names that a graph and its subgraphs read and do not give."""
    given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        inner = {name for subgraph in _subgraphs(node) for name in _read_from_outside(subgraph)}
        yield from ({*node.input} | inner) - given
        given |= {*node.output}
    yield from {value.name for value in graph.output} - given
