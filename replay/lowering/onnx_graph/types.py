"""Types of tensors during a walk, with a size for every axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from replay.errors import SpecError
from replay.lowering.onnx_graph.values import is_element_type

if TYPE_CHECKING:
    from onnx import GraphProto, TypeProto

LARGEST_SIZE = 2**31 - 1
LARGEST_TENSOR_ELEMENTS = 2**53
"""Up to here a 64-bit float counts exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Element type (a number of ONNX's `TensorProto`) and sizes of a tensor; sequences and maps count as empty."""

    element_type: int
    sizes: tuple[int, ...]


class TensorTypes:
    """What is known about the tensors of a graph; `axes` are sizes by an axis's own name or by ``tensor:index``."""

    def __init__(self, axes: Mapping[str, int], where: str) -> None:
        self._axes, self._where = axes, where
        self._declared: dict[str, TypeProto] = {}
        self.known: dict[str, TypeProto] = {}

    def declare(self, graph: GraphProto) -> None:
        """Take up the shapes that a graph declares beside those of its inputs: hints where inference fails."""
        for value in (*graph.output, *graph.value_info):
            if value.name not in self._declared or value.type.tensor_type.HasField("shape"):
                self._declared[value.name] = value.type

    def give(self, name: str, kind: TypeProto | None, *, is_input: bool = False) -> bool:
        """Give a tensor its type, `kind` as far as inference could tell; return whether its shape is known.

        Raises:
            SpecError: it has a size that cannot be told, or too many elements.
        """
        declared = self._declared.get(name)
        kind = kind if kind is not None and kind.WhichOneof("value") else declared
        if kind is None or not kind.HasField("tensor_type"):
            if kind is not None:
                self.known[name] = kind
            return kind is not None
        hint = declared if declared is not None and declared.tensor_type.HasField("shape") else kind
        tensor = (kind if kind.tensor_type.HasField("shape") else hint).tensor_type
        if not tensor.HasField("shape"):
            return False
        hints = hint.tensor_type.shape.dim if len(hint.tensor_type.shape.dim) == len(tensor.shape.dim) else tensor.shape.dim
        sizes = []
        for index, dimensions in enumerate(zip(tensor.shape.dim, hints, strict=True)):
            keyed = self._axes.get(f"{name}:{index}")
            inferred = [self._size(dimension) for dimension in dimensions]
            sizes.append(self._first((keyed, *inferred) if is_input else (*inferred, keyed), name, index))
        self.give_sizes(name, kind.tensor_type.elem_type or tensor.elem_type, tuple(sizes))
        return True

    def give_sizes(self, name: str, element_type: int, sizes: tuple[int, ...]) -> None:
        """Give a tensor an element type and sizes.

        Raises:
            SpecError: it has too many elements, or the element type is none.
        """
        from onnx.helper import make_tensor_type_proto

        if max(sizes, default=0) > LARGEST_SIZE or prod(sizes) > LARGEST_TENSOR_ELEMENTS or min(sizes, default=0) < 0:
            got = f"the tensor {name!r} has {times(sizes)} elements"
            raise SpecError(self._where, got, f"sizes from 0 to {LARGEST_SIZE} and at most 2^53 elements", "check the declared shapes")
        if not is_element_type(element_type):
            raise SpecError(self._where, f"the tensor {name!r} has no element type", "an element type", "export the model again")
        self.known[name] = make_tensor_type_proto(element_type, sizes)

    def sizes(self, kind: TypeProto | None) -> tuple[int, ...] | None:
        """Return the sizes of an inferred type, or None where one is open."""
        if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
            return None
        found = [self._size(dimension) for dimension in kind.tensor_type.shape.dim]
        return tuple(size for size in found if size is not None) if None not in found else None

    def extent(self, name: str) -> Extent:
        """Return the extent of a tensor that has been given a type."""
        kind = self.known[name]
        if not kind.HasField("tensor_type"):
            return Extent(element_type=0, sizes=(0,))
        sizes = tuple(dimension.dim_value for dimension in kind.tensor_type.shape.dim)
        return Extent(element_type=kind.tensor_type.elem_type, sizes=sizes)

    def _size(self, dimension: Any) -> int | None:
        if dimension.HasField("dim_value") and dimension.dim_value >= 0:
            return int(dimension.dim_value)
        return self._axes.get(dimension.dim_param) if dimension.dim_param else None

    def _first(self, sizes: Iterable[int | None], name: str, index: int) -> int:
        found = next((size for size in sizes if size is not None), None)
        if found is None:
            got = f"axis {index} of the tensor {name!r} depends on the data, or has no size"
            raise SpecError(self._where, got, "a size for every axis", f"give one with --axis {name}:{index}=SIZE")
        return found


def times(sizes: Iterable[int]) -> str:
    """Return sizes with crosses between them."""
    return " x ".join(map(str, sizes))
