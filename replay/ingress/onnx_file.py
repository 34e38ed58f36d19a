"""ONNX files: told by their first bytes, read without the weights that they may keep in files beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from replay.documents import read_bytes
from replay.errors import SpecError

if TYPE_CHECKING:
    from onnx import ModelProto

_WHAT = "an ONNX model"
_VERSION_TAG = 0x08
_LARGEST_VERSION = 0x7F
_NEXT_TAGS = frozenset((0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72))
"""Fields of a model in the protobuf encoding: producer and its version, domain, version, text, graph, operator sets, metadata."""


def is_onnx(path: Path) -> bool:
    """Return whether a file begins as serialised ONNX models do: with a small IR version, then another field of a model."""
    try:
        if not path.is_file():  # what is read from a pipe is gone
            return False
        with path.open("rb") as file:
            head = file.read(3)
    except (OSError, ValueError):  # whoever reads it says why it cannot be read
        return False
    return len(head) == 3 and head[0] == _VERSION_TAG and 1 <= head[1] <= _LARGEST_VERSION and head[2] in _NEXT_TAGS


def read_onnx(path: Path) -> ModelProto:
    """Return the model in a file; weights in other files are neither needed nor opened.

    Raises:
        SpecError: the package `onnx` is not installed, or the file is no ONNX model or holds no operator.
    """
    data = read_bytes(path, _WHAT)
    try:
        from google.protobuf.message import DecodeError
        from onnx import load_model_from_string
    except ImportError as error:
        got = "an ONNX model, and the package onnx that reads it is not installed"
        raise SpecError(str(path), got, "the optional dependency", "pip install 'replay-gate[onnx]'") from error
    try:
        model = load_model_from_string(data)
    except DecodeError as error:
        got = "it is not a whole ONNX model (it ends early, or is of another kind)"
        raise SpecError(str(path), got, _WHAT, "export or copy it again") from error
    if not model.opset_import:
        raise SpecError(str(path), "a model that names no operator set", _WHAT, "check how it was exported")
    if not model.graph.node:
        raise SpecError(str(path), "a model without operators", "an ONNX model with a graph", "check how it was exported")
    return model
