"""Which tuned table a kernel looks its tile up in, and why a table or an entry is of no use to it.

A table made for another shape, format or device is what the stacks never find, as they look it up by that name: they run their
default without a word. Here the default runs too, and the decision says so.
"""

from __future__ import annotations

import re

from replay.lowering.kernel_plan import Kernel
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec
from replay.specs.tile_table import TableEntry, TileTable, TileTables
from replay.tiling.families.gemm_formats import GemmFormat
from replay.tiling.families.gemm_tiles import STAGES, operand_bytes, tile_problem

LANES, THREAD_REGISTERS = 32, 255
"""Threads of a warp and registers of a thread (CUDA C++ Programming Guide, technical specifications)."""
AMD_LANES, AMD_THREAD_REGISTERS = 64, 512
"""The same of a wavefront (AMD CDNA 3 instruction set architecture, vector registers)."""
_DTYPES = {
    "": (("bf16", "fp16"), ("bf16", "fp16")),
    "fp8_w8a8": (("fp8",), ("fp8",)),
    "int8_w8a8": (("int8",), ("int8",)),
    "int8_w8a16": (("int8",), ("bf16", "fp16")),
    "int4_w4a16": (("int4",), ("bf16", "fp16")),
}
"""`dtype` of a table's name -> formats of weights and activations."""
_BLOCK_DTYPE, _BLOCK_SHAPE = "fp8_w8a8", "128,128"
"""fp8 with a scale for each block has the same `dtype`, and says its block."""


def kernel_table(kernel: Kernel, hardware: HardwareSpec, mapping: MappingSpec) -> TileTable | None:
    """Return the first table set for a product's layer type that is for it, or None."""
    tables = mapping.value("gemm.tile_table", layer=kernel.layer_type)
    named = tables.tables if isinstance(tables, TileTables) else ()
    return next((table for table in named if table_problem(table, kernel, hardware) is None), None)


def table_problem(table: TileTable, kernel: Kernel, hardware: HardwareSpec) -> str | None:
    """Return why a product does not look its tile up in a table, or None."""
    if kernel.is_dense != (table.experts_count is None):
        return f"it is not for {'one product' if kernel.is_dense else 'experts'}"
    made, has = _shape_words(table), _kernel_words(kernel)
    if made != has:
        return f"made for {made}; {kernel.id} is {has} on each rank"
    if not _is_device(table.device_name, hardware.name):
        return f"made for {table.device_name}; this is {hardware.name}"
    if not _is_format(table, kernel):
        made_format = table.dtype or "16 bit"
        block = f" in blocks of {table.block_shape}" if table.block_shape else ""
        return f"made for {made_format}{block}; {kernel.id} multiplies {kernel.weights_format} by {kernel.activations_format}"
    return None


def _shape_words(table: TileTable) -> str:
    experts = table.experts_count is not None
    return f"{table.experts_count} experts {table.columns} wide" if experts else f"{table.columns} columns {table.depth} deep"


def _kernel_words(kernel: Kernel) -> str:
    if kernel.is_dense:
        return f"{kernel.matmul.columns} columns {kernel.matmul.depth} deep"
    return f"{kernel.experts.experts_count} experts {kernel.experts.width} wide"


def entry_problem(table: TileTable, entry: TableEntry, format_: GemmFormat, hardware: HardwareSpec) -> str | None:
    """Return why an entry cannot run on a unit, or None: its stages in unit memory, its results in the registers of its threads."""
    problem = tile_problem(entry.tile, format_, hardware)
    if problem is not None:
        return problem
    name, needed = "x".join(map(str, entry.tile)), operand_bytes(entry.tile, format_, held_stages(entry))
    if needed > hardware.unit_memory_bytes:
        have = f"{hardware.name} has {hardware.unit_memory_bytes:.0f}"
        return f"tile {name} in {entry.stages} stages needs {needed:.0f} bytes of unit memory, {have}"
    registers = entry.rows * entry.columns / threads_count(table, entry)
    most = AMD_THREAD_REGISTERS if _is_amd(table) else THREAD_REGISTERS
    if registers > most:
        return f"tile {name} needs {registers:.0f} registers of each thread for its results, a thread has {most}: it spills"
    return None


def held_stages(entry: TableEntry) -> int:
    """Return the operand stages that an entry holds at once: one less than it names, as Triton's pipeliner loads that many ahead.

    Tables tuned on an A100 have entries that fit its shared memory with that many and not with one more.
    """
    return max(entry.stages - 1, STAGES)


def threads_count(table: TileTable, entry: TableEntry) -> int:
    """Return the threads that compute a tile."""
    return entry.warps * (AMD_LANES if _is_amd(table) else LANES)


def _is_amd(table: TileTable) -> bool:
    return table.device_name.upper().startswith("AMD")


def _is_device(table_name: str, hardware_name: str) -> bool:
    """Return whether a device name of a driver (``NVIDIA_A100-SXM4-80GB``) means an accelerator (``a100-sxm-80gb``).

    The chip must be named in both, and memory size and form factor agree where both say them.
    """
    theirs, ours = _words(table_name), _words(hardware_name)
    chip = next((word for word in theirs if re.search(r"\d", word)), "")
    if chip not in ours:
        return False
    for kind in (r"\d+gb", r"sxm|pcie|nvl"):
        said = [{word for word in words if re.fullmatch(kind, word)} for words in (theirs, ours)]
        if all(said) and said[0] != said[1]:
            return False
    return True


def _words(name: str) -> list[str]:
    words = re.split(r"[^a-z0-9]+", name.lower())
    return ["sxm" if re.fullmatch(r"sxm\d", word) else word for word in words]


def _is_format(table: TileTable, kernel: Kernel) -> bool:
    pair = (kernel.weights_format, kernel.activations_format)
    if table.block_shape:
        return (table.dtype, table.block_shape) == (_BLOCK_DTYPE, _BLOCK_SHAPE) and pair == ("fp8_block", "fp8_block")
    weights, activations = _DTYPES.get(table.dtype, ((), ()))
    return pair[0] in weights and pair[1] in activations
