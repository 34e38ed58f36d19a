"""Nodes and tensors of an ONNX graph per item of the batch, from two walks at different batch sizes.

An axis that is equal in both walks does not depend on the batch; one in proportion carries it. Views (reshapes and the like) vanish:
who reads a view reads the tensor it is of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from replay.errors import SpecError
from replay.lowering.onnx_graph.axes import Axes
from replay.lowering.onnx_graph.types import Extent
from replay.lowering.onnx_graph.walk import RESHAPED, Step, Walked, walk

if TYPE_CHECKING:
    from onnx import ModelProto

BATCHES = (97, 101)
"""Two primes, so that what a stride or a pool makes of an axis is not in proportion by chance."""
HOST = "host"
_FORMATS: Mapping[str, tuple[str, float]] = {
    "FLOAT": ("fp32", 4.0), "FLOAT16": ("fp16", 2.0), "BFLOAT16": ("bf16", 2.0), "DOUBLE": ("fp64", 8.0),
    "FLOAT8E4M3FN": ("fp8", 1.0), "FLOAT8E4M3FNUZ": ("fp8", 1.0), "FLOAT8E5M2": ("fp8", 1.0), "FLOAT8E5M2FNUZ": ("fp8", 1.0),
    "FLOAT4E2M1": ("fp4", 0.5), "INT4": ("int4", 0.5), "UINT4": ("uint4", 0.5), "INT8": ("int8", 1.0), "UINT8": ("uint8", 1.0),
    "INT16": ("int16", 2.0), "UINT16": ("uint16", 2.0), "INT32": ("int32", 4.0), "UINT32": ("uint32", 4.0), "INT64": ("int64", 8.0),
    "UINT64": ("uint64", 8.0), "BOOL": ("bool", 1.0), "COMPLEX64": ("complex64", 8.0), "COMPLEX128": ("complex128", 16.0),
}  # fmt: skip
"""Element type -> format and bytes of an element; texts and sequences stay on the host and count nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor as a node reads or writes it."""

    name: str
    sizes: tuple[int, ...]
    """Per item of the batch."""
    batch_dimension: int | None
    format: str
    element_bytes: float
    is_constant: bool

    @property
    def elements(self) -> int:
        """Elements of one item of the batch, or of the whole where it does not depend on the batch."""
        return prod(self.sizes)

    @property
    def bytes_count(self) -> float:
        """Bytes of these elements."""
        return self.elements * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that costs something."""

    name: str
    op_type: str
    domain: str
    version: int
    """Operator set that defined it as it is; 0 where its type is unknown."""
    attributes: Mapping[str, Any]
    """Numbers, texts and lists of them, with the defaults of those that the model leaves out."""
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    members: tuple[str, ...] = ()
    """Nodes that are fused into it, itself first; empty where none is."""

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The inputs that are there."""
        return tuple(tensor for tensor in self.inputs if tensor is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of a graph, and the tensors it gives."""

    nodes: tuple[Node, ...]
    results: frozenset[str]


def read_nodes(model: ModelProto, axes: Axes, where: str) -> Nodes:
    """Return the nodes of a model that depend on its inputs, without views.

    Raises:
        SpecError: as `walk`; or sizes that are neither fixed nor in proportion to the batch.
    """
    walks = [walk(model, axes.sizes(batch), where) for batch in (BATCHES if axes.batch_keys else (1,))]
    return _Merge(walks, where).nodes([value.name for value in model.graph.output])


class _Merge:
    def __init__(self, walks: Sequence[Walked], where: str) -> None:
        self.walks, self.where = walks, where
        self.roots: dict[str, str] = dict(walks[0].renamed)

    def nodes(self, results: Sequence[str]) -> Nodes:
        steps = [walked.steps for walked in self.walks]
        if len({tuple(step.name for step in each) for each in steps}) > 1:
            raise self._uneven("the branches that are taken depend on the batch")
        found = []
        for step in steps[0]:
            node = self._node(step)
            if _is_view(node):
                self.roots[step.node.output[0]] = node.operands[0].name
            elif not node.outputs or any(tensor.elements or tensor.format == HOST for tensor in node.outputs):
                found.append(node)
        return Nodes(nodes=tuple(found), results=frozenset(self.roots.get(name, name) for name in results))

    def _node(self, step: Step) -> Node:
        return Node(
            name=step.name,
            op_type=step.node.op_type,
            domain="" if step.node.domain == "ai.onnx" else step.node.domain,
            version=step.schema.since_version if step.schema is not None else 0,
            attributes=_attributes(step),
            inputs=tuple(self._tensor(name) if name else None for name in step.inputs),
            outputs=tuple(self._tensor(name) for name in step.node.output if name in self.walks[0].extents),
        )

    def _tensor(self, name: str) -> Tensor:
        extents = [walked.extents[name] for walked in self.walks]
        sizes, batch_dimension = self._per_item(name, extents)
        element_type = self.walks[0].stored.get(name, extents[0].element_type)
        format_name, element_bytes = _FORMATS.get(_type_name(element_type), (HOST, 0.0))
        return Tensor(
            name=self.roots.get(name, name),
            sizes=sizes,
            batch_dimension=batch_dimension,
            format=format_name,
            element_bytes=element_bytes,
            is_constant=name in self.walks[0].constants,
        )

    def _per_item(self, name: str, extents: Sequence[Extent]) -> tuple[tuple[int, ...], int | None]:
        """Return the sizes per item, and the axis that carries the batch."""
        first, last = extents[0].sizes, extents[-1].sizes
        if len(first) != len(last):
            raise self._uneven(f"the tensor {name!r} has {len(first)} axes for one batch and {len(last)} for another")
        sizes, carrying = [], []
        for index, (small, large) in enumerate(zip(first, last, strict=True)):
            if small == large:
                sizes.append(small)
                continue
            per_item, rest = divmod(small, BATCHES[0])
            if rest or large != per_item * BATCHES[1]:
                sides = f"{small} for a batch of {BATCHES[0]} and {large} for {BATCHES[1]}"
                raise self._uneven(f"axis {index} of the tensor {name!r} is {sides}")
            carrying.append(index)
            sizes.append(per_item)
        if len(carrying) > 1:
            raise self._uneven(f"the tensor {name!r} grows with the square of the batch")
        return tuple(sizes), carrying[0] if carrying else None

    def _uneven(self, got: str) -> SpecError:
        return SpecError(self.where, got, "sizes in proportion to the batch", "set that axis to a number too, with --axis NAME=SIZE")


def _is_view(node: Node) -> bool:
    """Return whether a node moves no data: its result is its first operand under another shape."""
    if node.domain or not node.operands or not node.outputs:
        return False
    source, result = node.operands[0], node.outputs[0]
    if node.op_type == "Transpose":
        rank = len(source.sizes)
        order = node.attributes.get("perm", range(rank)[::-1])
        moved = [axis for axis in order if source.sizes[axis] != 1 or axis == source.batch_dimension]
        return moved == sorted(moved)
    if node.op_type == "Cast":
        return source.format == result.format
    return node.op_type in RESHAPED or node.op_type == "Dropout"


def _attributes(step: Step) -> Mapping[str, Any]:
    from onnx.helper import get_attribute_value

    defaults = step.schema.attributes.values() if step.schema is not None else ()
    found = {}
    for attribute in (*(definition.default_value for definition in defaults), *step.node.attribute):
        if attribute.type in (attribute.FLOAT, attribute.INT, attribute.STRING, attribute.FLOATS, attribute.INTS):
            value = get_attribute_value(attribute)
            found[attribute.name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return found


def _type_name(element_type: int) -> str:
    from onnx import TensorProto

    name: str = TensorProto.DataType.Name(element_type)
    return name
