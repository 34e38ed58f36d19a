"""Which kernels a software stack has for dense multiplies, and in what state it was timed: rules by stack and format.

16-bit products run on the vendor's library, which splits the reduction where tiles are few and has a kernel for one row
(matrix times vector). TensorRT-LLM runs per-tensor fp8 on the same library and has split kernels for weight-only products.
The CUTLASS and DeepGEMM kernels for fp8, block-scaled and SmoothQuant products of all stacks do not split.

Timings rotate weights over several buffers, so that small weights may still be in the cache when they come round again:
TensorRT-LLM takes up to five and stops once the cache is exceeded, SGLang and vLLM take six, vLLM's collector for
block-scaled formats one. In a model's step the weights of other layers come between two uses: `COLD`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from replay.tiling.terms import Array

_SPLITTING = {"trtllm": frozenset({"bf16", "fp8", "int8_weights", "int4_weights"}), "": frozenset({"bf16"})}
_BLOCK_SCALED = frozenset({"fp8_block", "nvfp4"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRotation:
    """Buffers of weights that are used in turn."""

    most_copies: float
    stop_bytes: float = inf
    """Copies are added until they hold this much together."""

    def set_bytes(self, weight_bytes: Array) -> Array:
        """Return the bytes of all copies [rows] for weights of `weight_bytes` [rows]."""
        if np.isinf(self.stop_bytes):
            return np.asarray(self.most_copies * weight_bytes)
        return np.asarray(np.clip(np.ceil(self.stop_bytes / weight_bytes), 1.0, self.most_copies) * weight_bytes)


COLD = WeightRotation(most_copies=inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPaths:
    """Kernels to choose among, beside plain output tiles."""

    splits: bool
    """The reduction may be split over units and combined."""
    vector: bool
    """One row of activations has a kernel of its own."""
    rotation: WeightRotation


def gemm_paths(format_name: str, stack: str, cache_bytes: float) -> GemmPaths:
    """Return the paths of a stack (``vllm_0.24.0``; an unknown one is taken for SGLang's kind) as timed on a device with `cache_bytes`."""
    library = stack.split("_", maxsplit=1)[0]
    if library == "trtllm":
        rotation = WeightRotation(most_copies=5.0, stop_bytes=cache_bytes)
    elif library == "vllm" and format_name in _BLOCK_SCALED:
        rotation = WeightRotation(most_copies=1.0)
    else:
        rotation = WeightRotation(most_copies=6.0)
    splitting = _SPLITTING.get(library, _SPLITTING[""])
    return GemmPaths(splits=format_name in splitting, vector=format_name == "bf16", rotation=rotation)
