"""Which kernel family runs an operator of a graph on a device without systolic arrays, in which arithmetic and with which shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from replay.lowering.op_graph import BatchedMatmulShape, ConvolutionShape, MatmulShape, Op, StreamShape, UnknownShape
from replay.specs.hardware import HardwareSpec
from replay.tiling.families import gemm, stream_shapes, vector_gemm
from replay.tiling.families.arithmetic import FP16_MATRIX, FP16_STORED, FP32, INT8_QUADS, Arithmetic
from replay.tiling.families.convolution import ConvolutionFamily, convolution_shapes
from replay.tiling.families.family import KernelFamily, Shapes
from replay.tiling.families.streams import ELEMENTWISE, EMBEDDING, NORM, QUANTISE, SOFTMAX, TRANSFORM
from replay.tiling.terms import Array

KernelKind = Literal["convolution", "gemm", "batched gemm", "stream", "none"]
BF16_MATRIX = replace(FP16_MATRIX, name="bf16-matrix", matrix_format="bf16")
FP8_MATRIX = Arithmetic(name="fp8-matrix", input_bytes=1.0, output_bytes=2.0, matrix_format="fp8", aligned_elements=16)
INT8_MATRIX = replace(FP8_MATRIX, name="int8-matrix", output_bytes=1.0, matrix_format="int8")
"""Operand rows in 16 bytes, as for 16-bit elements (cuDNN developer guide, tensor core operations)."""
_ARITHMETICS: Mapping[str, tuple[Arithmetic, ...]] = {
    "fp32": (FP32,),
    "fp16": (FP16_MATRIX, FP16_STORED),
    "bf16": (BF16_MATRIX,),
    "fp8": (FP8_MATRIX,),
    "int8": (INT8_MATRIX, INT8_QUADS),
    "uint8": (INT8_MATRIX, INT8_QUADS),
}
"""Format of activations -> ways to multiply them; the first that the device has a rate for is taken."""
_HALVES = ("fp16", "bf16")
_DENSE_FORMATS: Mapping[str | None, str] = {
    **dict.fromkeys(_HALVES, "bf16"),
    **dict.fromkeys(("int8", "uint8"), "int8_weights"),
    **dict.fromkeys(("int4", "uint4"), "int4_weights"),
}
"""Format of weights under 16-bit activations -> format of dense multiplies (one rate for both 16-bit formats)."""
_MEASURED: Mapping[str, tuple[str, ...]] = {
    **{name: (name.lower(),) for name in ("Add", "Sub", "Mul", "Div", "Pow", "Relu", "Gelu", "Tanh", "Softmax")},
    "LayerNormalization": ("ln", "layernorm"),
}
"""Operator type -> its names in the variants of calibrated streams (see `replay.calibration.kinds.streams`)."""

_EIGHT_BITS: Mapping[str | None, str] = {"int8": "int8", "uint8": "int8", "fp8": "fp8"}
"""Narrow format -> variant of calibrated quantisation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpKernel:
    """The kernel that runs an operator, for several numbers of rows."""

    kind: KernelKind
    family: KernelFamily
    variants: tuple[str, ...]
    """Of the family's calibrations, the fitting one first."""
    shapes: Shapes


def op_kernel(op: Op, rows: Array, device: HardwareSpec) -> OpKernel | str:
    """Return the kernel of an operator for each number of rows [rows], or why there is none."""
    shape = op.shape
    if isinstance(shape, UnknownShape):
        return shape.reason
    if isinstance(shape, StreamShape):
        return _stream(op, shape, rows)
    dense = _DENSE_FORMATS.get(op.weights_format) if op.activations_format in _HALVES else None
    if isinstance(shape, MatmulShape) and dense is not None:
        family = gemm.gemm_family(dense, "", device, cold=True)
        shapes = gemm.gemm_shapes(rows, np.asarray(shape.columns), np.asarray(shape.depth))
        return OpKernel(kind="gemm", family=family, variants=(dense,), shapes=shapes)
    ways = _ARITHMETICS.get(op.activations_format or "", ())
    arithmetic = next((way for way in ways if not way.matrix_format or way.matrix_format in device.matrix_flops_per_s), None)
    if arithmetic is None:
        return f"{device.name} has no kernel for {op.activations_format} products"
    if isinstance(shape, ConvolutionShape):
        convolution = ConvolutionFamily(arithmetic=arithmetic)
        return OpKernel(kind="convolution", family=convolution, variants=(arithmetic.name,), shapes=convolution_columns(shape, rows))
    assert isinstance(shape, MatmulShape | BatchedMatmulShape), "decoder graphs have kernels of their own"
    return _vector_gemm(shape, arithmetic, rows)


def _vector_gemm(shape: MatmulShape | BatchedMatmulShape, arithmetic: Arithmetic, rows: Array) -> OpKernel:
    single = isinstance(shape, MatmulShape)
    if isinstance(shape, MatmulShape):
        each, count = rows, np.ones(len(rows))
    else:
        each, count = np.full(len(rows), float(shape.rows)), rows * shape.count
    return OpKernel(
        kind="gemm" if single else "batched gemm",
        family=vector_gemm.VectorGemmFamily(arithmetic=arithmetic),
        variants=(f"{arithmetic.name}-{'linear' if single else 'batched'}", arithmetic.name),
        shapes=vector_gemm.gemm_shapes(each, np.asarray(shape.columns), np.asarray(shape.depth), count=count),
    )


def _stream(op: Op, shape: StreamShape, rows: Array) -> OpKernel:
    """Return the kernel of a pass; its bytes per element are those of the operator's traffic."""
    traffic = op.traffic
    assert traffic is not None
    columns = np.full(len(rows), float(shape.columns))
    family: KernelFamily
    match shape.kind:
        case "norm":
            family, base = NORM, stream_shapes.norm(rows, columns, element_bytes=1.0)
        case "softmax":
            family, base = SOFTMAX, stream_shapes.softmax(rows, columns, element_bytes=1.0)
        case "quantise":
            family, base = QUANTISE, stream_shapes.quantise(rows, columns, from_bytes=1.0, to_bytes=1.0)
        case _:
            family = {"elementwise": ELEMENTWISE, "embedding": EMBEDDING, "transform": TRANSFORM}[shape.kind]
            base = stream_shapes.elementwise(rows * columns, inputs=1.0, element_bytes=1.0)
    by_format = tuple(f"{op.activations_format}-{name}" for name in _MEASURED.get(op.layer_type, ()))
    return OpKernel(
        kind="stream",
        family=family,
        variants=(_EIGHT_BITS.get(op.activations_format, ""),) if shape.kind == "quantise" else by_format,
        shapes={
            **base,
            "rows": rows,
            "columns": columns,
            "read_bytes": (rows * traffic.read_bytes + traffic.shared_bytes) / (rows * columns),
            "written_bytes": traffic.written_bytes / columns,
        },
    )


def convolution_columns(shape: ConvolutionShape, images: Array) -> Shapes:
    """Return the shapes that `ConvolutionFamily` needs for a number of images [rows], channels outermost (ONNX is NCHW)."""
    above, left, below, right = shape.padding
    sizes = {
        "channels": shape.in_channels,
        "filters": shape.out_channels,
        "rows": shape.in_size[0],
        "columns": shape.in_size[1],
        "filter_rows": shape.kernel[0],
        "filter_columns": shape.kernel[1],
    }
    found = convolution_shapes(
        images=images,
        **{name: np.asarray(float(size)) for name, size in sizes.items()},
        row_padding=(above + below) / 2.0,
        column_padding=(left + right) / 2.0,
        row_stride=shape.stride[0],
        column_stride=shape.stride[1],
        dilation=max(shape.dilation),
        groups=shape.groups,
    )
    result = {"result_rows": shape.out_size[0], "result_columns": shape.out_size[1]}
    return {**found, **{name: np.full(len(images), float(size)) for name, size in result.items()}}
