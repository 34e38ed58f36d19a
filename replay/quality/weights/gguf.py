"""GGUF files (llama.cpp, format versions 2 and 3): metadata, a table of tensors, then the tensors at aligned places.

Block formats hold 32 values behind a 16-bit scale: Q4_0 and Q8_0 mean ``d * q``, Q4_1 ``d * q + m``; the low halves of a block's bytes come
first (ggml's quantisation formats).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from replay import documents
from replay.errors import SpecError
from replay.quality.elements import Values
from replay.quality.weights.stored_tensor import StoredTensor

MAGIC = b"GGUF"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9
_BLOCK = 32
_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34), 30: ("BF16", 1, 2)}
"""Type number -> name, values in a block, bytes of a block."""
_MOST = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class _Info:
    name: str
    shape: tuple[int, ...]
    """As NumPy has it: the slowest dimension first, where the file has it last."""
    kind: int
    offset: int


class GgufFile:
    """One file: `metadata` by key, and its tensors."""

    def __init__(self, path: Path) -> None:
        """Read metadata and the table of tensors.

        Raises:
            SpecError: it is no such file, or is cut short.
        """
        self._where = str(path)
        self._data = documents.read_bytes(path, "a GGUF file")
        self._place = 4
        try:
            if self._data[:4] != MAGIC or self._number("<I") not in (2, 3):
                raise self._broken("no GGUF file of version 2 or 3")
            tensors_count, keys_count = self._number("<Q"), self._number("<Q")
            self.metadata: dict[str, Any] = {self._text(): self._value(self._number("<I")) for _ in range(keys_count)}
            self._infos = [self._info() for _ in range(tensors_count)]
        except (struct.error, UnicodeDecodeError, MemoryError) as error:
            raise self._broken("a table of contents that is cut short or broken") from error
        alignment = self.metadata.get("general.alignment", 32)
        self._start = -(-self._place // alignment) * alignment

    def tensors(self) -> Iterator[StoredTensor]:
        """Yield the tensors as float32.

        Raises:
            SpecError: one is of a type that is not read, or reaches over the end of the file.
        """
        for info in self._infos:
            place = f"{self._where}: {info.name}"
            if info.kind not in _TYPES:
                known = ", ".join(name for name, _, _ in _TYPES.values())
                raise SpecError(place, f"the tensor type number {info.kind}", f"one of {known}", "convert the file to one of these types")
            name, block, block_bytes = _TYPES[info.kind]
            count, first = math.prod(info.shape), self._start + info.offset
            size = count // block * block_bytes
            if count % block or first + size > len(self._data):
                raise self._broken(f"{info.name} with {size} bytes from {first} on in a file of {len(self._data)}")
            raw = np.frombuffer(self._data, dtype=np.uint8, count=size, offset=first)
            yield StoredTensor(
                name=info.name, values=_decoded(raw.reshape(-1, block_bytes), name).reshape(info.shape), stored_as=name.lower()
            )

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._place)
        self._place += struct.calcsize(form)
        return value

    def _text(self) -> str:
        length = self._number("<Q")
        if length > len(self._data) - self._place:
            raise self._broken("a text longer than the file")
        text = self._data[self._place : self._place + length].decode()
        self._place += length
        return text

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._number("<I"), self._number("<Q")
            if count > len(self._data) - self._place:
                raise self._broken("a list longer than the file")
            return [self._value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise self._broken(f"a value of type number {kind}")
        return self._number(_SCALARS[kind])

    def _info(self) -> _Info:
        name, dimensions = self._text(), self._number("<I")
        shape = tuple(self._number("<Q") for _ in range(min(dimensions, 8)))
        if dimensions > 4 or math.prod(shape) > _MOST:
            raise self._broken(f"{name[:60]!a} with {dimensions} dimensions {shape}")
        return _Info(name=name, shape=shape[::-1], kind=self._number("<I"), offset=self._number("<Q"))

    def _broken(self, got: str) -> SpecError:
        return SpecError(self._where, got, "a whole GGUF file", "download or convert it again")


def _decoded(blocks: npt.NDArray[np.uint8], name: str) -> Values:
    """Return the values of blocks [blocks, bytes] -> [blocks * values]."""
    if name in ("F32", "F16"):
        return blocks.reshape(-1).view("<f4" if name == "F32" else "<f2").astype(np.float32)
    if name == "BF16":
        return (blocks.reshape(-1).view("<u2").astype(np.uint32) << 16).view(np.float32)
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    if name == "Q8_0":
        return (scale * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)).astype(np.float32).reshape(-1)
    halves = blocks[:, -_BLOCK // 2 :]
    codes = np.concatenate([halves & 15, halves >> 4], axis=1).astype(np.float32)
    if name == "Q4_0":
        return (scale * (codes - 8)).astype(np.float32).reshape(-1)
    least = np.ascontiguousarray(blocks[:, 2:4]).view("<f2").astype(np.float32)
    return (scale * codes + least).astype(np.float32).reshape(-1)
