"""Arrays of a GRU encoder and decoder: `enc_` and `dec_` before emb, w_ih, w_hh, b_ih and b_hh; fc_w and fc_b."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from replay import documents
from replay.errors import SpecError
from replay.quality.elements import Values
from replay.quality.weights.stored_tensor import StoredTensor

_CELLS = ("emb", "w_ih", "w_hh", "b_ih", "b_hh")
_NAMES = (*(f"{side}_{cell}" for side in ("enc", "dec") for cell in _CELLS), "fc_w", "fc_b")


def read_recurrent(path: Path) -> list[StoredTensor]:
    """Return the arrays of an .npz file.

    Raises:
        SpecError: it is none, or an array is missing or of a shape that does not go with the others.
    """
    where = str(path)
    data = documents.read_bytes(path, "an .npz of a GRU encoder and decoder")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise SpecError(where, "it is no archive of NumPy arrays", "an .npz of a GRU encoder and decoder", "download it again") from error
    for name in _NAMES:
        array = found.get(name)
        dimensions = 1 if name.rpartition("_")[0].endswith("_b") or name == "fc_b" else 2
        if array is None or array.dtype not in (np.float32, np.float16) or array.ndim != dimensions:
            want = f"float arrays {', '.join(_NAMES)}"
            raise SpecError(where, f"no float array {name}", want, "take weights of a GRU encoder and decoder")
    tensors = {name: found[name].astype(np.float32) for name in _NAMES}
    _check_shapes(tensors, where)
    return [
        StoredTensor(name=name, values=tensors[name], stored_as="fp32" if found[name].dtype == np.float32 else "fp16") for name in _NAMES
    ]


def _check_shapes(tensors: Mapping[str, Values], where: str) -> None:
    hidden = tensors["enc_w_hh"].shape[-1]
    expected: dict[str, tuple[int, ...]] = {"fc_w": (len(tensors["dec_emb"]), hidden), "fc_b": (len(tensors["dec_emb"]),)}
    for side in ("enc", "dec"):
        wide = tensors[f"{side}_emb"].shape[-1]
        shapes = {"w_ih": (3 * hidden, wide), "w_hh": (3 * hidden, hidden), "b_ih": (3 * hidden,), "b_hh": (3 * hidden,)}
        expected |= {f"{side}_{cell}": shape for cell, shape in shapes.items()}
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise SpecError(f"{where}: {name}", f"the shape {tensors[name].shape}", f"{shape}", "take the arrays of one model")
