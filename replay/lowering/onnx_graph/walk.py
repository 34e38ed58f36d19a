"""One walk over an ONNX graph with a size for every axis: shapes of all tensors, what is constant, which branches are taken.

Node by node in graph order, by the inference of the `onnx` package; what it cannot tell comes from the shapes that the model
declares. Nodes that read constants only are not work: they are folded before a model runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from replay.errors import SpecError
from replay.lowering.onnx_graph.subgraphs import captured, read_names
from replay.lowering.onnx_graph.types import Extent, TensorTypes, times
from replay.lowering.onnx_graph.values import COMPUTED, COMPUTED_ELEMENTS, constant_value, evaluated, tensor_value

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto
    from onnx.defs import OpSchema

DRAWN = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators that give something else on every run, whatever they read."""
SHAPED_AS_OPERAND = ("GroupNormalization", "MeanVarianceNormalization")
"""Operators that the package infers no shape for, and whose result has that of the first operand."""
RESHAPED = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A node that depends on the inputs, under a name of its own."""

    name: str
    node: NodeProto
    schema: OpSchema | None
    """What its operator type is defined as, or None where that is unknown."""
    inputs: tuple[str, ...]
    """Tensors it reads, those of its subgraphs included; empty where an optional one is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """What a walk found."""

    steps: tuple[Step, ...]
    extents: Mapping[str, Extent]
    constants: frozenset[str]
    """Tensors that are the same in every run: weights, and what follows from weights and shapes alone."""
    stored: Mapping[str, int]
    """Element types that constants are kept in, where they are widened on the way (`DequantizeLinear` of weights)."""
    renamed: Mapping[str, str]
    """Results of a branch that is always taken -> the tensors inside it."""


def walk(model: ModelProto, axes: Mapping[str, int], where: str) -> Walked:
    """Return the walk with `axes`: sizes by an axis's own name, or by ``tensor:index``.

    Raises:
        SpecError: shapes that do not fit, that are missing or too large, or nodes out of order.
    """
    state = _Walk(model, axes, where)
    state.run(model.graph, inputs=True)
    return Walked(
        steps=tuple(state.steps),
        extents={name: state.types.extent(name) for name in state.types.known},
        constants=frozenset(state.constants),
        stored=state.stored,
        renamed=state.renamed,
    )


class _Walk:
    def __init__(self, model: ModelProto, axes: Mapping[str, int], where: str) -> None:
        self.where, self.ir_version = where, model.ir_version
        self.opset_imports = list(model.opset_import)
        self.opsets = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
        self.read = frozenset(read_names(model.graph))
        self.types = TensorTypes(axes, where)
        self.values: dict[str, Any] = {}
        self.constants: set[str] = set()
        self.stored: dict[str, int] = {}
        self.renamed: dict[str, str] = {}
        self.steps: list[Step] = []
        self._names: set[str] = set()

    def run(self, graph: GraphProto, *, inputs: bool = False) -> None:
        """Walk over the nodes of a graph, and over the branches that are always taken."""
        self.types.declare(graph)
        for tensor in graph.initializer:
            self._hold(tensor.name, tensor.data_type, tuple(tensor.dims))
            value = tensor_value(tensor, self.where)
            if value is not None:
                self.values[tensor.name] = value
        for given in graph.input if inputs else ():
            if given.name not in self.constants and not self.types.give(given.name, given.type, is_input=True):
                raise self._unknown_shape(given.name)
        for node in graph.node:
            branch = self._branch(node)
            if branch is None:
                self._step(node)
            else:
                self.run(branch)
                for outer, inner in zip(node.output, branch.output, strict=False):
                    self._rename(outer, inner.name, node)

    def _hold(self, name: str, element_type: int, sizes: tuple[int, ...]) -> None:
        self.types.give_sizes(name, element_type, sizes)
        self.constants.add(name)

    def _step(self, node: NodeProto) -> None:
        step = self._begun(node)
        plain = _domain(node) == ""
        constant = (plain and node.op_type in ("Shape", "Size")) or (
            node.op_type not in DRAWN and all(name in self.constants for name in step.inputs if name)
        )
        found = self._inferred(step)
        computed = self._computed(node, found) if constant and plain else {}
        for name in filter(None, node.output):
            if name in computed:
                self._know(name, computed[name])
            elif not self.types.give(name, found.get(name)) and name in self.read:  # else nobody misses it: the mask of a Dropout
                raise self._unknown_shape(name, node)
        if constant:
            self.constants.update(node.output)
            self._keep_stored(node)
        else:
            self.steps.append(step)

    def _begun(self, node: NodeProto) -> Step:
        """Return a node with all that it reads."""
        inner = captured(node, self.types.known.keys())
        for weight in inner.weights:
            self._hold(weight.name, weight.element_type, weight.sizes)
        inputs = (*node.input, *inner.names, *(weight.name for weight in inner.weights))
        step = Step(name=self._own_name(node), node=node, schema=self._schema(node), inputs=inputs)
        missing = next((name for name in inputs if name and name not in self.types.known), None)
        if missing is not None:
            got = f"the node {step.name!r} ({node.op_type}) reads {missing!r}, which no earlier node gives"
            raise SpecError(self.where, got, "nodes in an order in which they can run", "check how the model was made")
        return step

    def _inferred(self, step: Step) -> Mapping[str, TypeProto]:
        """Return the types of a node's results that the package can tell; none for operators it does not know."""
        from onnx import checker, numpy_helper, shape_inference

        node = step.node
        if step.schema is None:
            return {}
        self._check_split(step)
        known = {name: numpy_helper.from_array(self.values[name], name) for name in step.inputs if name in self.values}
        try:
            found: Mapping[str, TypeProto] = shape_inference.infer_node_outputs(
                step.schema,
                node,
                {name: self.types.known[name] for name in step.inputs if name},
                known,
                opset_imports=self.opset_imports,
                ir_version=self.ir_version,
            )
        except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError, IndexError, KeyError) as error:
            reason = " ".join(str(error).removeprefix("[ShapeInferenceError] ").split())[:160]
            got = f"the node {step.name!r} ({node.op_type}) does not fit its operands ({reason})"
            raise SpecError(self.where, got, "shapes that fit", "check the model, and the sizes given for its axes") from error
        if node.op_type in SHAPED_AS_OPERAND:
            return {node.output[0]: self.types.known[node.input[0]]}
        if node.op_type == "Reshape":
            self._check_reshape(step, self.types.sizes(found.get(node.output[0])))
        return found

    def _check_split(self, step: Step) -> None:
        """Refuse a split along an axis that is not there: the package's inference ends the process on one."""
        if step.node.op_type == "Split" and step.node.input:
            rank = len(self.types.extent(step.node.input[0]).sizes)
            axis = next((attribute.i for attribute in step.node.attribute if attribute.name == "axis"), 0)
            if not -rank <= axis < rank:
                got = f"the node {step.name!r} (Split) splits axis {axis} of {rank}"
                raise SpecError(self.where, got, "an axis that is there", "check the model")

    def _check_reshape(self, step: Step, after: tuple[int, ...] | None) -> None:
        """Refuse a reshape that changes the number of elements: a batch that the export wrote into the graph."""
        before = self.types.extent(step.node.input[0]).sizes
        if after is not None and prod(after) != prod(before):
            got = f"the node {step.name!r} (Reshape) turns {times(before)} into {times(after)} elements"
            fix = "export it with that axis dynamic, or leave the axis as it is declared"
            raise SpecError(self.where, got, "as many elements as before", fix)

    def _computed(self, node: NodeProto, found: Mapping[str, TypeProto]) -> Mapping[str, Any]:
        """Return the values of a node's results where they are small and follow from values that are known."""
        import numpy as np

        if node.op_type in ("Shape", "Size"):
            sizes = self.types.extent(node.input[0]).sizes
            ends = {attribute.name: attribute.i for attribute in node.attribute}
            part = sizes[ends.get("start", 0) : ends.get("end", len(sizes))]
            return {node.output[0]: np.array(part if node.op_type == "Shape" else prod(sizes), dtype=np.int64)}
        if node.op_type == "Constant":
            value = constant_value(node, self.where)
            return {} if value is None else {node.output[0]: value}
        if node.op_type not in COMPUTED or any(name and name not in self.values for name in node.input):
            return {}
        results = [self.types.sizes(found.get(name)) for name in node.output]
        small = all(sizes is not None and prod(sizes) <= COMPUTED_ELEMENTS for sizes in results)
        return evaluated(node, self.values, self.opsets) if small or node.op_type == "NonZero" else {}

    def _know(self, name: str, value: Any) -> None:
        from onnx.helper import np_dtype_to_tensor_dtype

        self.values[name] = value
        self.types.give_sizes(name, np_dtype_to_tensor_dtype(value.dtype), value.shape)

    def _keep_stored(self, node: NodeProto) -> None:
        source = node.input[0] if node.input else ""
        if node.op_type == "DequantizeLinear":
            self.stored[node.output[0]] = self.types.extent(source).element_type
        elif source in self.stored and node.op_type in (*RESHAPED, "Transpose"):
            self.stored[node.output[0]] = self.stored[source]

    def _branch(self, node: NodeProto) -> GraphProto | None:
        """Return the branch that an `If` always takes, or None."""
        if node.op_type != "If" or not node.input or node.input[0] not in self.values:
            return None
        wanted = "then_branch" if self.values[node.input[0]].all() else "else_branch"
        return next((attribute.g for attribute in node.attribute if attribute.name == wanted), None)

    def _rename(self, outer: str, inner: str, node: NodeProto) -> None:
        if inner not in self.types.known:
            got = f"a branch of the node {node.name!r} ({node.op_type}) gives {inner!r}, which nothing computes"
            raise SpecError(self.where, got, "a result that a node gives", "check how the model was made")
        self.types.known[outer] = self.types.known[inner]
        self.renamed[outer] = self.renamed.get(inner, inner)
        if inner in self.constants:
            self.constants.add(outer)
        if inner in self.values:
            self.values[outer] = self.values[inner]

    def _own_name(self, node: NodeProto) -> str:
        base = node.name or next(iter(node.output), "") or node.op_type
        name, number = base, 1
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name

    def _schema(self, node: NodeProto) -> OpSchema | None:
        from onnx import defs

        domain = _domain(node)
        if domain not in self.opsets or not defs.has(node.op_type, self.opsets[domain], domain):
            return None
        return defs.get_schema(node.op_type, self.opsets[domain], domain)

    def _unknown_shape(self, name: str, node: NodeProto | None = None) -> SpecError:
        unknown = node is not None and self._schema(node) is None
        by = f": it is the result of an operator of the unknown type {node.op_type!r}" if node is not None and unknown else ""
        got = f"the shape of the tensor {name!r} cannot be told{by}"
        return SpecError(self.where, got, "a shape for every tensor", "declare it in the model (value_info) when exporting")


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain
