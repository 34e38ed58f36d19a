"""Sizes of dynamic axes: one carries the batch, the others are set by who asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from replay.errors import SpecError, nearest
from replay.lowering.onnx_graph.types import LARGEST_SIZE

if TYPE_CHECKING:
    from onnx import ModelProto

BATCH: Literal["batch"] = "batch"
"""What an axis is set to that carries the batch."""
AxisSizes = Mapping[str, int | Literal["batch"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Which axes carry the batch, and the sizes of the others; axes by their own name or by ``tensor:index``."""

    batch_keys: tuple[str, ...]
    fixed: Mapping[str, int]

    def sizes(self, batch: int) -> Mapping[str, int]:
        """Return the size of every axis for a batch."""
        return {**self.fixed, **dict.fromkeys(self.batch_keys, batch)}


def resolve_axes(model: ModelProto, given: AxisSizes, where: str) -> Axes:
    """Return the axes of a model, `given` the sizes of some; where none is given as the batch, the first dynamic one carries it.

    Raises:
        SpecError: an axis that the model does not have or whose size cannot be, or a dynamic axis of an input without a size.
    """
    _check_given(model, given, where)
    dynamic = list(_dynamic_axes(model))
    batch = [name for name, size in given.items() if size == BATCH]
    if not batch:
        batch = [next(iter(names)) for names in dynamic if not set(names) & set(given)][:1]
    known = {*given, *batch}
    missing = dict.fromkeys(names[0] for names in dynamic if not known & set(names))
    if missing:
        got = f"no size for the dynamic {'axis' if len(missing) == 1 else 'axes'} {', '.join(missing)} (the batch is {', '.join(batch)})"
        options = " ".join(f"--axis {name}=SIZE" for name in missing)
        raise SpecError(where, got, "a size for every dynamic axis but the batch", f"add {options}, or =batch where it carries the batch")
    return Axes(batch_keys=tuple(batch), fixed={name: size for name, size in given.items() if size != BATCH})


def _dynamic_axes(model: ModelProto) -> Iterator[tuple[str, ...]]:
    """Yield the names of each axis of an input without a declared size, its own name first."""
    held = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in held:
            continue
        for index, dimension in enumerate(value.type.tensor_type.shape.dim):
            if not dimension.HasField("dim_value") or dimension.dim_value < 0:
                placed = f"{value.name}:{index}"
                yield (dimension.dim_param, placed) if dimension.dim_param else (placed,)


def _check_given(model: ModelProto, given: AxisSizes, where: str) -> None:
    tensors = {value.name for value in model.graph.input} | {name for node in model.graph.node for name in node.output}
    named = {
        dimension.dim_param
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
        for dimension in value.type.tensor_type.shape.dim
        if dimension.dim_param
    }
    for name, size in given.items():
        tensor, _, index = name.rpartition(":")
        if name not in named and not (tensor in tensors and index.isdigit()):
            known = sorted({*named, *(names[0] for names in _dynamic_axes(model))})
            want = f"one of {', '.join(known)}, or TENSOR:INDEX" if known else "TENSOR:INDEX, as no axis has a name"
            raise SpecError(f"{where}: --axis {name}", f"no axis of that name{nearest(name, known)}", want, "correct the name")
        if size != BATCH and not 1 <= size <= LARGEST_SIZE:
            raise SpecError(f"{where}: --axis {name}", f"the size {size}", f"a whole number from 1 to {LARGEST_SIZE}", "correct the size")
