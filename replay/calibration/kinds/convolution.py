"""Timings of convolutions of the DeepBench suite: forward, pixels with channels outermost (NCHW), algorithm chosen by the library.

Columns: ``gpu, kind, precision, w, h, c, n, k, filter_w, filter_h, pad_w, pad_h, stride_w, stride_h, fwd_ms``: n images of w x h
pixels with c channels, k filters; `kind` is train or infer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from replay.calibration.kinds import classic
from replay.calibration.kinds.cells import Cells, read_cells
from replay.calibration.measured import MeasuredSet
from replay.errors import SpecError
from replay.tiling.families.arithmetic import FP16_MATRIX, FP16_PAIRS, FP32, INT8_QUADS, Arithmetic
from replay.tiling.families.convolution import ConvolutionFamily, convolution_shapes
from replay.tiling.terms import Array

ARITHMETICS: dict[str, Arithmetic] = {
    classic.FP32: FP32,
    classic.STORED_HALF: FP16_PAIRS,
    classic.MATRIX_HALF: FP16_MATRIX,
    classic.QUADS: INT8_QUADS,
}
"""What a benchmark's convolutions run in: with pixels kept in 16 bits the direct kernels reach twice the fp32 rate (public timings)."""
SIZES = ("w", "h", "c", "n", "k", "filter_w", "filter_h", "stride_w", "stride_h")
PADDINGS = ("pad_w", "pad_h")


@dataclass(frozen=True, slots=True)
class ConvolutionKind:
    """The kind of these tables."""

    name: str = "convolution"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are columns of convolutions."""
        return {"gpu", "precision", "fwd_ms", *SIZES} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return a set per device, suite and arithmetic.

        Raises:
            SpecError: columns, sizes, devices, worksheets or times that cannot be.
        """
        cells = read_cells(table, ("gpu", "kind", "precision", *SIZES, *PADDINGS, "fwd_ms"), (), where)
        hardware, undescribed = classic.devices(cells)
        sizes = {name: cells.whole(name).astype(np.float64) for name in SIZES}
        sizes |= {name: _padding(cells, name) for name in PADDINGS}
        variants = np.array([ARITHMETICS[name].name for name in classic.precisions(cells).tolist()])
        families = {arithmetic.name: ConvolutionFamily(arithmetic=arithmetic) for arithmetic in ARITHMETICS.values()}
        stacks = np.char.add("deepbench_", cells.text("kind"))
        shapes = convolution_shapes(
            images=sizes["n"],
            channels=sizes["c"],
            filters=sizes["k"],
            rows=sizes["h"],
            columns=sizes["w"],
            filter_rows=sizes["filter_h"],
            filter_columns=sizes["filter_w"],
            row_padding=sizes["pad_h"],
            column_padding=sizes["pad_w"],
            row_stride=sizes["stride_h"],
            column_stride=sizes["stride_w"],
        )
        small = np.flatnonzero((shapes["result_rows"] < 1) | (shapes["result_columns"] < 1))
        if len(small):
            raise SpecError(
                f"{where}: row {small[0] + 2}", "a filter larger than the padded pixels", "a result of at least one pixel", "correct it"
            )
        key = tuple(column.astype(np.int64) for column in sizes.values())
        return classic.split_sets(
            cells, "fwd_ms", (hardware, stacks, variants), lambda place: families[place[2]], (shapes, key), undescribed
        )


def _padding(cells: Cells, name: str) -> Array:
    """Return a column of whole numbers from 0 on [rows].

    Raises:
        SpecError: a cell is empty, no whole number, or negative.
    """
    values = cells.numbers(name)
    odd = np.flatnonzero(~((values >= 0) & (np.floor(values) == values)))
    if len(odd):
        raise SpecError(f"{cells.where}: {name}, row {odd[0] + 2}", f"{values[odd[0]]:g}", "a whole number from 0 on", "correct the cell")
    return values


CONVOLUTION_KIND = ConvolutionKind()
