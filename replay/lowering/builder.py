"""Builder: collects the operators of a transformer step, each with the layers and pipeline stages that it runs in."""

from __future__ import annotations

import math

from replay.lowering.op_graph import Axis, Collective, CollectiveShape, ElementwiseShape, Op, Shape
from replay.lowering.stages import calls_by_stage
from replay.specs.model import ModelSpec

Layers = tuple[int, int]
"""The first layer that an operator runs in, and in how many."""


class Builder:
    """Collects operators in order."""

    def __init__(self, model: ModelSpec, ranks: int, stage_layers: tuple[int, ...]) -> None:
        self.model, self.ranks, self.stage_layers = model, ranks, stage_layers
        self.ops: list[Op] = []

    def add(
        self, name: str, layer_type: str, shape: Shape, *, inputs: tuple[str, ...], layers: Layers | None = None, axis: Axis = "tokens"
    ) -> None:
        """Append an operator; by default it runs once in every layer."""
        first, calls = layers or (0, self.model.layers_count)
        by_stage = calls_by_stage(self.stage_layers, first, calls)
        op = Op(name=name, layer_type=layer_type, shape=shape, axis=axis, calls_count=calls, inputs=inputs, stage_calls=by_stage)
        self.ops.append(op)

    def collective(
        self, name: str, kind: Collective, elements: float, sources: tuple[str, ...], layers: Layers | None = None
    ) -> tuple[str, ...]:
        """Append a collective of the group where there are ranks to join; return whose results to read."""
        if self.ranks == 1:
            return sources
        self.add(
            name,
            "all_reduce",
            CollectiveShape(elements=math.ceil(elements), ranks=self.ranks, kind=kind),
            inputs=sources,
            layers=layers,
        )
        return (name,)

    def all_reduce(self, name: str, *sources: str, layers: Layers | None = None) -> tuple[str, ...]:
        """Append an all-reduce of the hidden state where there are ranks to join; return whose results to read."""
        return self.collective(name, "all_reduce", self.model.hidden_size, sources, layers)


def elementwise(read: float, written: float, element_bytes: float = 2.0) -> ElementwiseShape:
    """Return the shape of a row-wise operator; `element_bytes` of each element."""
    return ElementwiseShape(read_elements=read, written_elements=written, element_bytes=element_bytes)
