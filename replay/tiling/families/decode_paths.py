"""Which decode attention kernel a software stack runs on a device, and how that kernel cuts the keys: rules, not fitted numbers.

Sources: the open kernels themselves - FlashAttention-2 and -3 (`num_splits_heuristic`, the variable-length entry point), FlashInfer's
decode planner, TensorRT-LLM's XQA heuristic - and, for the closed trtllm-gen kernels, where measured times step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay.specs.hardware import HardwareSpec
from replay.tiling.terms import Array

_HEAD_SIZES = (64, 128)
"""Head sizes up to which the first and the second block of a kernel apply; larger heads take the third."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePath:
    """One decode attention kernel."""

    name: str
    block_keys: tuple[int, int, int]
    """Keys of one step of the inner loop, for head sizes up to 64, up to 128 and above."""
    splits: Callable[[DecodePath, int, Array, Array, Array, Array], Array]
    """(path, units, items, keys, group, head sizes) -> parts the keys of an item are cut into [rows], at least 1."""
    most_splits: int = 1 << 20
    most_head_size: float = 512.0
    """Largest head the kernel supports; stacks run another one above."""
    missing_head_sizes: tuple[float, ...] = ()
    """Heads below that which the kernel lacks all the same."""
    part_keys: float = 256.0
    """Least keys of a part, of kernels that fill the units with parts."""
    parts_per_unit: float = 1.0
    overfills: bool = False
    """Such a kernel rounds the parts up, not down."""
    group_rows: float = 128.0
    """Query heads of one key-value head that an item takes at most."""
    packs_group: bool = True
    """Query heads that share a key-value head share its read; else each query head is an item."""
    row_steps: tuple[float, ...] = ()
    """The rows of an item cost as the next of these, at most the last; none = as they are."""
    sorted_sequences: int = 0
    """Sequences up to which a second kernel on the device lays out the work, one after the other; 0 = there is none."""
    values_in_keys: bool = False
    """For latents: the values are the first part of the keys, and all query heads share them, so that products fill the matrix units."""
    copies: bool = False
    """Queries and outputs are transposed by kernels around it where they are not contiguous: grouped heads, several sequences."""

    def items(self, sequences: Array, query_heads: Array, kv_heads: Array) -> Array:
        """Return the independent pieces of work before any split [rows]."""
        if not self.packs_group:
            return sequences * query_heads
        return np.asarray(sequences * kv_heads * np.ceil(query_heads / kv_heads / self.group_rows))

    def rows(self, query_heads: Array, kv_heads: Array) -> Array:
        """Return the query rows that an item pays for [rows]."""
        if not self.packs_group:
            return np.ones(len(query_heads))
        rows = np.minimum(query_heads / kv_heads, self.group_rows)
        if not self.row_steps:
            return np.asarray(rows)
        steps = np.array(self.row_steps)
        return np.asarray(steps[np.minimum(np.searchsorted(steps, rows), len(steps) - 1)])

    def supports(self, head_sizes: Array) -> npt.NDArray[np.bool_]:
        """Return whether the kernel has these heads [rows]."""
        return np.asarray((head_sizes <= self.most_head_size) & ~np.isin(head_sizes, self.missing_head_sizes))

    def blocks(self, head_sizes: Array) -> Array:
        """Return the keys of one step [rows]."""
        return np.asarray(
            np.select([head_sizes <= size for size in _HEAD_SIZES], self.block_keys[:2], self.block_keys[2]), dtype=np.float64
        )


def _flash2_splits(path: DecodePath, units: int, items: Array, keys: Array, group: Array, head_sizes: Array) -> Array:
    """FlashAttention-2: the fewest parts that fill waves of two items a unit to 85 % of the best; only where queries are grouped."""
    slots = 2 * units
    pairs = np.stack([items, np.ceil(keys / path.blocks(head_sizes))], axis=1)
    (distinct_items, blocks), back = _distinct(pairs)
    parts = np.arange(1, min(path.most_splits, slots) + 1)[:, None]
    waves = distinct_items * parts / slots
    useful = (np.ceil(blocks / parts) != np.ceil(blocks / np.maximum(parts - 1, 1))) & (parts <= blocks) | (parts == 1)
    filled = np.where(useful, waves / np.ceil(waves), 0.0)
    chosen = parts[np.argmax(useful & (filled >= 0.85 * filled.max(axis=0)), axis=0), 0]
    return np.where((items >= 0.8 * slots) | (group <= 1), 1.0, chosen[back])


def _distinct(pairs: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return the distinct rows of `pairs` [rows, 2], transposed, and where each row went: few pairs are worth trying every split."""
    keys = pairs[:, 0] * 2.0**24 + pairs[:, 1]
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    return pairs[first].T, back.reshape(-1)


def _flash3_splits(path: DecodePath, units: int, items: Array, keys: Array, group: Array, head_sizes: Array) -> Array:
    """FlashAttention-3: every unit takes an equal number of blocks, a tenth more than its share."""
    blocks = np.ceil(keys / path.blocks(head_sizes))
    per_unit = np.maximum(np.ceil(1.1 * items * blocks / units), 1.0)
    return np.clip(np.ceil(blocks / per_unit), 1.0, path.most_splits)


def _filling_splits(path: DecodePath, units: int, items: Array, keys: Array, group: Array, head_sizes: Array) -> Array:
    """As many parts as give every unit its `parts_per_unit`, none of fewer than `part_keys` keys."""
    wanted = path.parts_per_unit * units / items
    wanted = np.ceil(wanted) if path.overfills else np.floor(wanted)
    return np.clip(wanted, 1.0, np.ceil(keys / path.part_keys))


FLASH2 = DecodePath(
    name="flash2", block_keys=(256, 128, 64), splits=_flash2_splits, most_splits=128, most_head_size=256, group_rows=64.0, copies=True
)
FLASH3 = DecodePath(
    name="flash3",
    block_keys=(128, 192, 192),
    splits=_flash3_splits,
    most_splits=128,
    most_head_size=256,
    sorted_sequences=1 << 20,
    row_steps=(64.0, 128.0),
)
FLASH3_CAPTURED = replace(FLASH3, name="flash3_captured", most_splits=32, sorted_sequences=992)
"""As vLLM captures it in a graph: 32 parts are reserved, and the layout kernel gives up above 992 sequences."""
FLASHINFER = DecodePath(name="flashinfer", block_keys=(128, 128, 128), splits=_filling_splits, missing_head_sizes=(192.0,))
FLASHINFER_WIDE = replace(FLASHINFER, name="flashinfer_wide")
"""Its prompt kernel with tiles of 64 rows, which vLLM runs where a key-value head has more than 16 query heads."""
TRTLLM_GEN = DecodePath(
    name="trtllm_gen",
    block_keys=(128, 128, 128),
    splits=_filling_splits,
    part_keys=512.0,
    overfills=True,
    row_steps=(8.0, 16.0, 32.0),
    missing_head_sizes=(192.0,),
)
XQA = DecodePath(name="xqa", block_keys=(128, 128, 128), splits=_filling_splits, part_keys=128.0, parts_per_unit=4.0, overfills=True)
XQA_FP8 = replace(XQA, name="xqa_fp8")
"""Its kernel for an fp8 cache, of other matrix instructions than the one for 16-bit caches and heads of 64."""
XQA_FP8_WIDE = replace(XQA, name="xqa_fp8_wide")
"""The same with more than 8 query heads a key-value head: a larger tile, of which fewer fit a unit."""
MASKED = DecodePath(name="masked_multihead", block_keys=(128, 128, 128), splits=_filling_splits, parts_per_unit=2.0, packs_group=False)
FLASH_MLA = DecodePath(
    name="flash_mla", block_keys=(64, 64, 64), splits=_flash3_splits, most_head_size=576, group_rows=64.0, values_in_keys=True
)
"""DeepSeek's kernel for Hopper: tiles of 64 query heads x 64 keys, whose blocks a planner deals evenly to the units. It stands for the
kernels of other devices too."""
_GROUPED = (FLASH2, FLASH3, FLASH3_CAPTURED, FLASHINFER, FLASHINFER_WIDE, TRTLLM_GEN, XQA, XQA_FP8, XQA_FP8_WIDE)
PATHS = {path.name: path for path in (*_GROUPED, MASKED, FLASH_MLA)}

WIDE_GROUP = 16
"""Query heads of a key-value head that FlashInfer's smallest tile holds."""
XQA_16_BIT_HEAD = 64
"""Heads up to which TensorRT-LLM runs the same grouped kernel whatever the cache's format (measured times)."""
XQA_FP8_GROUP = 8
"""Query heads of a key-value head up to which its fp8 kernel has its smaller tile."""
MASKED_FALLBACK_GROUP = 32
"""Query heads of a key-value head above which TensorRT-LLM has no grouped decode kernel and falls back to one item a query head."""


def decode_paths(
    stack: str,
    kv_format: str,
    device: HardwareSpec,
    *,
    sequences: Array,
    keys: Array,
    query_heads: Array,
    kv_heads: Array,
    head_sizes: Array,
) -> npt.NDArray[np.str_]:
    """Return the name of the kernel that a stack (``vllm_0.24.0``) runs for each shape [rows]."""
    generation, framework = hardware_generation(device), stack.split("_", maxsplit=1)[0]
    group = query_heads / kv_heads
    names = np.full(len(keys), FLASH2.name, dtype=object)
    if framework == "trtllm":
        names[:] = TRTLLM_GEN.name
        if generation != "blackwell":
            names = np.where(
                _takes_xqa(device.units_count, sequences, keys, kv_heads, group), _xqa(kv_format, group, head_sizes), MASKED.name
            )
        names[group > MASKED_FALLBACK_GROUP] = MASKED.name
    elif generation == "blackwell":
        names[:] = TRTLLM_GEN.name
    elif generation == "hopper":
        names[:] = FLASH3_CAPTURED.name if framework == "vllm" else FLASH3.name
    elif framework != "vllm":
        names[:] = FLASHINFER.name
    elif kv_format != "bf16":
        names[:] = np.where(group > WIDE_GROUP, FLASHINFER_WIDE.name, FLASHINFER.name)
    return names.astype(str)


def _xqa(kv_format: str, group: Array, head_sizes: Array) -> npt.NDArray[np.object_]:
    """Return which of TensorRT-LLM's grouped kernels runs for each shape [rows]."""
    names = np.full(len(group), XQA.name, dtype=object)
    if kv_format == "fp8":
        names[head_sizes > XQA_16_BIT_HEAD] = XQA_FP8.name
        names[(head_sizes > XQA_16_BIT_HEAD) & (group > XQA_FP8_GROUP)] = XQA_FP8_WIDE.name
    return names


def _takes_xqa(units: int, sequences: Array, keys: Array, kv_heads: Array, group: Array) -> npt.NDArray[np.bool_]:
    """TensorRT-LLM takes its grouped kernel once its parts of 128 keys fill a quarter of the units."""
    parts = sequences * kv_heads * np.maximum(np.floor(keys / 128.0), 1.0)
    return np.asarray((group > 1) & (4.0 * parts >= units))


def hardware_generation(device: HardwareSpec) -> str:
    """Return the kernel generation of a device by what it can do: fp4 products, else fp8 and Hopper's unit memory, else neither."""
    if "fp4" in device.matrix_flops_per_s:
        return "blackwell"
    return "hopper" if "fp8" in device.matrix_flops_per_s and device.unit_memory_bytes >= 200e3 else "ampere"
