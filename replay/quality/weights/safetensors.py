"""Safetensors files: an 8-byte length, a JSON header of that length (name -> dtype, shape, range of bytes), then the tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from replay import documents
from replay.errors import SpecError
from replay.quality.weights.stored_tensor import StoredTensor

_FORMATS = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_safetensors(path: Path) -> Iterator[StoredTensor]:
    """Yield the tensors of a file as float32.

    Raises:
        SpecError: it is no such file, is cut short, or a tensor is of a type that is not read.
    """
    data = np.frombuffer(documents.read_bytes(path, "a safetensors file"), dtype=np.uint8)
    where = str(path)
    length = int(data[:8].view("<u8")[0]) if len(data) >= 8 else 0
    if not 2 <= length <= len(data) - 8:
        raise _broken(where, f"a header of {length} bytes in a file of {len(data)}")
    header = documents.parse_json(documents.decode(data[8 : 8 + length].tobytes(), where, "a header"), where)
    if not isinstance(header, dict):
        raise _broken(where, "a header that is no object")
    body = data[8 + length :]
    for name, about in header.items():
        if name != "__metadata__":
            yield _tensor(name, about, body, where)


def _tensor(name: str, about: Any, body: npt.NDArray[np.uint8], where: str) -> StoredTensor:
    place = f"{where}: {name}"
    kind = about.get("dtype") if isinstance(about, dict) else None
    if kind not in _TYPES:
        raise SpecError(place, f"the tensor type {kind}", "one of " + ", ".join(_TYPES), "take a checkpoint that is not quantised")
    shape, offsets = about.get("shape"), about.get("data_offsets")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise _broken(place, "a shape or data_offsets that are no lists of whole numbers")
    first, last = offsets
    size = math.prod(shape) * int(_TYPES[kind][2:])
    if last - first != size or last > len(body):
        raise _broken(place, f"bytes {first} to {last} of {len(body)} for a tensor of {size} bytes")
    raw = body[first:last].view(_TYPES[kind]).reshape(shape)
    values = (raw.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else raw.astype(np.float32)
    return StoredTensor(name=name, values=values, stored_as=_FORMATS[kind])


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def _broken(where: str, got: str) -> SpecError:
    return SpecError(where, got, "a whole safetensors file", "download or export it again")
