"""Timings of streaming kernels: vector operators, quantising to 8 bits, and a mixed list of operators with some multiplies.

- vector: ``gpu, op, B, H, ms`` (and launch geometry, unused), fp32, B rows of H columns; suffix u: with a scalar;
- quantize: ``gpu, op_name, m, k, quant_dtype, ms``, 16-bit to 8-bit, m rows of k columns; the stack is in the file's name;
- operators: ``gpu, op, m, n, k, ms``, fp16: softmax and layer norm of m rows of n columns, gelu of m elements, matmul of m x k with k x n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replay.calibration.kinds.cells import USELESS, Cells, Mask, chosen, counted, device_name, read_cells, stack_of_file, with_rows
from replay.calibration.kinds.gemm import FORMATS as GEMM_FORMATS
from replay.calibration.kinds.gemm import product_set
from replay.calibration.measured import MeasuredSet
from replay.errors import SpecError, nearest
from replay.tiling.families import stream_shapes
from replay.tiling.families.family import KernelFamily, Shapes
from replay.tiling.families.scales import SCALE_INCREMENT
from replay.tiling.families.streams import ELEMENTWISE, NORM, QUANTISE, SOFTMAX
from replay.tiling.terms import Array

FRAMEWORK = "pytorch"
"""Stack of the eager operators; the tables do not give its version."""
INPUTS = {
    "add": 2,
    "sub": 2,
    "mul": 2,
    "div": 2,
    "pow": 2,
    "addu": 1,
    "subu": 1,
    "mulu": 1,
    "divu": 1,
    "powu": 1,
    "relu": 1,
    "gelu": 1,
    "tanh": 1,
}
"""Element-wise operators -> tensors read."""
FP32_BYTES, HALF_BYTES, BYTE = 4.0, 2.0, 1.0
UNRESOLVED_RATIO = 0.05
"""An increment below this share of the static kernel's time is within the repeat noise of the two timings it is the difference of."""
UNRESOLVED = "a difference of two timings within their repeat noise (5 %)"

ShapeRule = Callable[[Array, Array], Shapes]


@dataclass(frozen=True, slots=True)
class VectorKind:
    """Eager vector operators in fp32."""

    name: str = "vector"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are columns of vector operators."""
        return {"gpu", "op", "B", "H"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return one set per device and operator.

        Raises:
            SpecError: columns, operators or devices that cannot be.
        """
        cells = read_cells(table, ("gpu", "op", "B", "H", "ms"), ("grid_x", "block_x"), where)
        rules: dict[str, tuple[KernelFamily, ShapeRule]] = {op: (ELEMENTWISE, _elementwise_rule(FP32_BYTES, INPUTS[op])) for op in INPUTS}
        rules["softmax"] = SOFTMAX, lambda rows, columns: stream_shapes.softmax(rows, columns, element_bytes=FP32_BYTES)
        rules["ln"] = NORM, lambda rows, columns: stream_shapes.norm(rows, columns, element_bytes=FP32_BYTES)
        return _operator_sets(cells, (cells.whole("B"), cells.whole("H")), rules, "fp32")


@dataclass(frozen=True, slots=True)
class OperatorsKind:
    """Eager operators in fp16."""

    name: str = "operators"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are the columns of a mixed list of operators."""
        return columns == {"gpu", "op", "m", "n", "k", "ms"}

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return one set per device and operator.

        Raises:
            SpecError: columns, operators or devices that cannot be.
        """
        cells = read_cells(table, ("gpu", "op", "m", "n", "k", "ms"), (), where)
        rules: dict[str, tuple[KernelFamily, ShapeRule]] = {
            "softmax": (SOFTMAX, lambda rows, columns: stream_shapes.softmax(rows, columns, element_bytes=HALF_BYTES)),
            "layernorm": (NORM, lambda rows, columns: stream_shapes.norm(rows, columns, element_bytes=HALF_BYTES)),
            "gelu": (ELEMENTWISE, _elementwise_rule(HALF_BYTES, 1)),
        }
        return _operator_sets(cells, (cells.whole("m"), cells.whole("n")), rules, "fp16", multiply="matmul")


@dataclass(frozen=True, slots=True)
class QuantizeKind:
    """Quantising 16-bit rows to 8 bits: with a given scale, and what finding a scale per row adds."""

    name: str = "quantize"

    def recognises(self, columns: frozenset[str]) -> bool:
        """Return whether these are columns of quantisation."""
        return {"gpu", "op_name", "quant_dtype", "m", "k"} <= columns

    def read(self, table: pa.Table, where: str) -> tuple[MeasuredSet, ...]:
        """Return one set per device, operation and format.

        Raises:
            SpecError: columns, operations or devices that cannot be.
        """
        cells = read_cells(table, ("gpu", "op_name", "m", "k", "quant_dtype", "ms"), (), where)
        names, devices, formats = cells.text("op_name"), cells.text("gpu"), cells.text("quant_dtype")
        _known(names, ("scale_matrix", "compute_scale"), f"{where}: op_name")
        _known(formats, ("fp8", "int8"), f"{where}: quant_dtype")
        seconds, usable, useless = cells.seconds("ms")
        sizes = cells.whole("m"), cells.whole("k")
        static = _static_seconds(devices, formats, sizes, names, seconds)
        sets = []
        for short in sorted(set(devices.tolist())):
            for form in sorted(set(formats.tolist())):
                for name in ("compute_scale", "scale_matrix"):
                    rows = (devices == short) & (formats == form) & (names == name)
                    unresolved = np.zeros(len(rows), dtype=np.bool_)
                    if name == "compute_scale":
                        unresolved = usable & ~(seconds > UNRESOLVED_RATIO * static)
                    part = _measured(
                        SCALE_INCREMENT if name == "compute_scale" else QUANTISE,
                        lambda rows, columns: stream_shapes.quantise(rows, columns, from_bytes=HALF_BYTES, to_bytes=BYTE),
                        sizes,
                        seconds,
                        rows & usable & ~unresolved,
                        (device_name(short, where), stack_of_file(where), form),
                        ((USELESS, rows & useless), (UNRESOLVED, rows & unresolved)),
                    )
                    sets.append(part)
        return with_rows(sets, where)


VECTOR_KIND, OPERATORS_KIND, QUANTIZE_KIND = VectorKind(), OperatorsKind(), QuantizeKind()


def _elementwise_rule(element_bytes: float, inputs: float) -> ShapeRule:
    def rule(rows: Array, columns: Array) -> Shapes:
        shapes = stream_shapes.elementwise(rows * columns, inputs=inputs, element_bytes=element_bytes)
        return {**shapes, "rows": rows, "columns": columns}

    return rule


def _operator_sets(
    cells: Cells,
    sizes: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    rules: dict[str, tuple[KernelFamily, ShapeRule]],
    format_name: str,
    *,
    multiply: str | None = None,
) -> tuple[MeasuredSet, ...]:
    """Return one set per device and operator of a table with the columns gpu, op and ms; of `multiply` rows k is the depth."""
    devices, names = cells.text("gpu"), cells.text("op")
    _known(names, (*rules, *filter(None, [multiply])), f"{cells.where}: op")
    seconds, usable, useless = cells.seconds("ms")
    sets = []
    for short in sorted(set(devices.tolist())):
        hardware = device_name(short, cells.where)
        for name, (family, rule) in rules.items():
            rows = (devices == short) & (names == name)
            place = (hardware, FRAMEWORK, f"{format_name}-{name}")
            sets.append(_measured(family, rule, sizes, seconds, rows & usable, place, ((USELESS, rows & useless),)))
        if multiply is not None:
            rows = (devices == short) & (names == multiply)
            three = chosen((*sizes, cells.whole("k", rows)), rows & usable)
            left = counted([(USELESS, rows & useless)])
            sets.append(product_set((hardware, FRAMEWORK, GEMM_FORMATS[format_name]), three, seconds[rows & usable], skipped=left))
    return with_rows(sets, cells.where)


def _measured(
    family: KernelFamily,
    rule: ShapeRule,
    sizes: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    seconds: Array,
    rows: Mask,
    place: tuple[str, str, str],
    counts: tuple[tuple[str, Mask], ...],
) -> MeasuredSet:
    """Return the set of some rows, perhaps none; `place` is (hardware, stack, variant)."""
    hardware, stack, variant = place
    return MeasuredSet(
        family=family,
        hardware=hardware,
        stack=stack,
        variant=variant,
        shapes=rule(sizes[0][rows].astype(np.float64), sizes[1][rows].astype(np.float64)),
        seconds=seconds[rows],
        group_key=chosen(sizes, rows),
        skipped=counted(counts),
    )


def _static_seconds(
    devices: npt.NDArray[np.str_],
    formats: npt.NDArray[np.str_],
    sizes: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    names: npt.NDArray[np.str_],
    seconds: Array,
) -> Array:
    """Return the time [rows] of the static kernel at each row's device, format and size; 0 where it was not timed."""
    keys = list(zip(devices.tolist(), formats.tolist(), sizes[0].tolist(), sizes[1].tolist(), strict=True))
    known = {key: float(time) for key, time, name in zip(keys, seconds, names, strict=True) if name == "scale_matrix"}
    return np.array([known.get(key, 0.0) for key in keys])


def _known(names: npt.NDArray[np.str_], known: tuple[str, ...], where: str) -> None:
    for name in sorted(set(names.tolist())):
        if name not in known:
            raise SpecError(where, f"{name!r}{nearest(name, known)}", "one of " + ", ".join(known), "name one of these")
