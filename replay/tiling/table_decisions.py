"""What tuned tables that a mapping names give: which kernels look tiles up in them, from which batches, and what is of no use."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from replay.lowering.kernel_plan import Decision, Kernel
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec
from replay.specs.tile_table import TileTable, TileTables
from replay.tiling.bins import STEP_PHASES, ProductBin, product_bins
from replay.tiling.tuned_tables import kernel_table, table_problem

FAR_RATIO = 2.0
"""Rows over their nearest batch, or the reverse, beyond which the table does not cover them: no step of the ladder of batches that
vLLM and SGLang tune (1, 2, 4, ... 4096) is wider."""
DEFAULT = "default tiles"


def table_decisions(kernels: tuple[Kernel, ...], hardware: HardwareSpec, mapping: MappingSpec, rows_to: int) -> Iterator[Decision]:
    """Yield a decision for each setting that names tuned tables for products of the plan."""
    products = [kernel for kernel in kernels if kernel.backends]
    for setting in mapping.settings:
        asked = setting.value
        if isinstance(asked, TileTables):
            here = [kernel for kernel in products if mapping.value("gemm.tile_table", layer=kernel.layer_type) is asked]
            problems = [*_idle(asked, here, hardware), *_entry_problems(here, hardware, mapping, rows_to)]
            yield Decision(
                knob=setting.knob,
                requested=", ".join(table.path for table in asked.tables),
                effective="; ".join(_used(here, hardware, mapping)) or DEFAULT,
                reason="; ".join(dict.fromkeys(problems)) or None,
                stage="tiling",
            )


def _used(kernels: list[Kernel], hardware: HardwareSpec, mapping: MappingSpec) -> Iterator[str]:
    """Yield the kernels that look tiles up, and in what."""
    for kernel in kernels:
        table = kernel_table(kernel, hardware, mapping)
        if table is not None:
            batches = [batch for batch, _ in table.batches]
            few = f"batch {batches[0]} for every row count"
            many = f"the nearest of {len(batches)} batches from {min(batches)} to {max(batches)} for each row count"
            yield f"{kernel.id}: {few if len(batches) == 1 else many}"


def _idle(asked: TileTables, kernels: list[Kernel], hardware: HardwareSpec) -> Iterator[str]:
    """Yield why tables are used by nothing."""
    for table in asked.tables:
        found = [table_problem(table, kernel, hardware) for kernel in _alike(table, kernels)]
        if all(found):
            yield f"{table.path} is used by nothing: {found[0] if found else 'no such product is in its scope'}"


def _alike(table: TileTable, kernels: list[Kernel]) -> list[Kernel]:
    """Return the kernels of the kind that a table is for, those of its columns first."""
    kind = [kernel for kernel in kernels if kernel.is_dense == (table.experts_count is None)]
    return sorted(kind, key=lambda kernel: kernel.is_dense and kernel.matmul.columns != table.columns)


def _entry_problems(kernels: list[Kernel], hardware: HardwareSpec, mapping: MappingSpec, rows_to: int) -> Iterator[str]:
    """Yield where entries do not run, and where a table does not cover the rows."""
    for kernel in kernels:
        table = kernel_table(kernel, hardware, mapping)
        if table is not None:
            for bin_ in product_bins(kernel, hardware, mapping, rows_to):
                yield from _bin_problem(kernel, bin_)
            yield from _far(table, rows_to)


def _bin_problem(kernel: Kernel, bin_: ProductBin) -> Iterator[str]:
    phase, rows = dict(STEP_PHASES)[bin_.phase], f"{kernel.id}, rows {bin_.first_row}-{bin_.last_row}"
    if bin_.backend != "matrix":
        yield f"{rows} of {phase}: they run on vector units"
    elif bin_.table is None:
        yield f"{rows} of {phase}: gemm.tile is set and comes first"
    elif bin_.problem is not None:
        yield f"{rows}: the default tile runs, as batch {bin_.table.batch} does not fit ({bin_.problem})"


def _far(table: TileTable, rows_to: int) -> Iterator[str]:
    """Yield the rows whose nearest batch is far from them."""
    for found in table.ranges(rows_to):
        first, last = max(found.first_row, int(FAR_RATIO * found.batch) + 1), min(found.last_row, ceil(found.batch / FAR_RATIO) - 1)
        if found.first_row <= last:
            yield f"rows {found.first_row}-{last} are less than half of batch {found.batch}, the nearest"
        if first <= found.last_row:
            yield f"rows {first}-{found.last_row} are more than twice batch {found.batch}, the nearest"
