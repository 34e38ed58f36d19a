"""Values of small constant tensors: shapes further down an exported graph depend on them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from replay.errors import SpecError

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

COMPUTED_ELEMENTS = 4096
"""Tensors that describe shapes are far smaller; larger ones are weights, and nobody needs their values."""
COMPUTED = (
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Floor", "Gather", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pow", "Range",
    "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "ScatterElements", "ScatterND", "Slice", "Split", "Sqrt",
    "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
"""Operators whose result is computed where every operand is known and small."""
_PLAIN = ("FLOAT", "DOUBLE", "FLOAT16", "BOOL", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64")
"""Element types that numpy holds by itself."""

Values = Mapping[str, Any]
"""Names of tensors -> arrays."""


def tensor_value(tensor: TensorProto, where: str) -> Any:
    """Return the array of a stored tensor, or None where it is large, of a special type, or in another file.

    Raises:
        SpecError: its bytes do not make the shape it declares.
    """
    from onnx import TensorProto, numpy_helper

    special = tensor.data_location == TensorProto.EXTERNAL or not is_element_type(tensor.data_type)
    if special or TensorProto.DataType.Name(tensor.data_type) not in _PLAIN or prod(tensor.dims) > COMPUTED_ELEMENTS:
        return None
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        got = f"the bytes of the weight {tensor.name!r} do not make the shape it declares"
        raise SpecError(where, got, "as many elements as the shape says", "export it again") from error


def is_element_type(number: int) -> bool:
    """Return whether a number is one of ONNX's element types."""
    from onnx import TensorProto

    return number in TensorProto.DataType.values()


def constant_value(node: NodeProto, where: str) -> Any:
    """Return the array of a `Constant` node, or None where nobody needs it."""
    attribute = node.attribute[0] if node.attribute else None
    if attribute is None or attribute.name.startswith(("sparse", "value_string")):
        return None
    if attribute.name == "value":
        return tensor_value(attribute.t, where)
    return next(iter(evaluated(node, {}, {"": 13}).values()), None)  # a number or a list of them


def evaluated(node: NodeProto, values: Values, opsets: Mapping[str, int]) -> Values:
    """Return the results of a node whose operands are known, by the reference implementation; nothing where that cannot."""
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(node, opsets=dict(opsets)).run(None, {name: values[name] for name in node.input if name})
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, ArithmeticError):
        return {}  # inference may still know the shape
    return dict(zip(node.output, map(np.asarray, results), strict=False))
