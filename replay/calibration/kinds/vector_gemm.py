"""Timings of matrix multiplies by the classic libraries.

- vector_gemm: ``gpu, B, M, N, K, ms`` (launch geometry and kernel name are there, and unused): B products of M x N with N x K in
  fp32 on the vector units; one product is a linear layer, several are a batched multiply, and the library has kernels for each;
- deepbench_gemm: ``gpu, kind, precision, m, n, k, transA, transB, ms``, column-major as in BLAS; `kind` is train or infer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.kinds import classic
from replay.calibration.kinds.cells import Cells, read_cells
from replay.calibration.measured import MeasuredSet
from replay.errors import SpecError
from replay.tiling.families.arithmetic import FP16_MATRIX, FP16_STORED, FP32, INT8_QUADS, Arithmetic
from replay.tiling.families.vector_gemm import VectorGemmFamily, gemm_shapes

FRAMEWORK = "pytorch"
"""Stack of eager multiplies; the tables do not give its version."""
ARITHMETICS: dict[str, Arithmetic] = {
    classic.FP32: FP32,
    classic.STORED_HALF: FP16_STORED,
    classic.MATRIX_HALF: FP16_MATRIX,
    classic.QUADS: INT8_QUADS,
}
"""What a benchmark's multiplies run in: 8-bit ones on the vector units, since their operands are not laid out for the matrix units."""


@dataclass(frozen=True, slots=True)
class VectorGemmKind:
    """Eager linear layers and batched multiplies in fp32."""

    name: str = "vector_gemm"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are columns of batched multiplies."""
        return {"gpu", "B", "M", "N", "K", "ms"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return a set per device for linear layers and one for batched multiplies.

        Raises:
            SpecError: columns, sizes, devices or times that cannot be.
        """
        geometry = ("tile", "grid_x", "grid_y", "grid_z", "block_x", "kernel")
        cells = read_cells(table, ("gpu", "B", "M", "N", "K", "ms"), geometry, where)
        hardware, undescribed = classic.devices(cells)
        count, rows, depth, columns = (cells.whole(name) for name in ("B", "M", "N", "K"))
        shapes = gemm_shapes(rows, columns, depth, count=count)
        variants = np.where(count == 1, "fp32-linear", "fp32-batched")
        stacks = np.full(len(rows), FRAMEWORK)
        family = VectorGemmFamily(arithmetic=FP32)
        whole = shapes, (count, rows, depth, columns)
        return classic.split_sets(cells, "ms", (hardware, stacks, variants), lambda place: family, whole, undescribed)


@dataclass(frozen=True, slots=True)
class DeepBenchGemmKind:
    """Multiplies of the DeepBench suite in several arithmetics."""

    name: str = "deepbench_gemm"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are columns of DeepBench multiplies."""
        return {"gpu", "precision", "transA", "transB", "m", "n", "k"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return a set per device, suite and arithmetic.

        Raises:
            SpecError: columns, sizes, devices, worksheets or times that cannot be.
        """
        cells = read_cells(table, ("gpu", "kind", "precision", "m", "n", "k", "transA", "transB", "ms"), (), where)
        hardware, undescribed = classic.devices(cells)
        sizes = cells.whole("m"), cells.whole("n"), cells.whole("k")
        left, right = (_transposed(cells, name) for name in ("transA", "transB"))
        arithmetics = classic.precisions(cells)
        variants = np.array([ARITHMETICS[name].name for name in arithmetics.tolist()])
        families = {arithmetic.name: VectorGemmFamily(arithmetic=arithmetic) for arithmetic in ARITHMETICS.values()}
        stacks = np.char.add("deepbench_", cells.text("kind"))
        shapes = gemm_shapes(*sizes, left=left, right=right)
        key = (*sizes, left.astype(np.int64), right.astype(np.int64))
        return classic.split_sets(cells, "ms", (hardware, stacks, variants), lambda place: families[place[2]], (shapes, key), undescribed)


def _transposed(cells: Cells, name: str) -> npt.NDArray[np.float64]:
    """Return 1 where an operand is stored transposed [rows], else 0.

    Raises:
        SpecError: a cell is neither N nor T.
    """
    texts = cells.text(name)
    odd = np.flatnonzero(~np.isin(texts, ("N", "T")))
    if len(odd):
        raise SpecError(f"{cells.where}: {name}, row {odd[0] + 2}", repr(str(texts[odd[0]])), "N or T", "correct the cell")
    return np.asarray(texts == "T", dtype=np.float64)


VECTOR_GEMM_KIND, DEEPBENCH_GEMM_KIND = VectorGemmKind(), DeepBenchGemmKind()
