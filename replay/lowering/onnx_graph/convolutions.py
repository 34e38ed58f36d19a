"""Rules for convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from replay.errors import SpecError
from replay.lowering.onnx_graph.parts import part, unknown
from replay.lowering.onnx_graph.tensors import Node, Tensor
from replay.lowering.op_graph import ConvolutionShape, Op

SPATIAL_AXES = (1, 2)


def convolution(node: Node, filters: int = 1) -> tuple[Op, ...]:
    """Return a convolution whose weights are its operand number `filters`."""
    pixels, weights, result = node.operands[0], node.inputs[filters], node.outputs[0]
    assert weights is not None
    groups = node.attributes.get("group", 1)
    if groups < 1:
        raise SpecError(f"the node {node.name!r} ({node.op_type})", f"group = {groups}", "1 or more groups", "check how it was exported")
    _check_channels(node, pixels.sizes[1], weights.sizes[1] * groups)
    return _shaped(node, weights, pixels, result, _shape(node, pixels, result, weights, (pixels.sizes[1], weights.sizes[0], groups)))


def quantised_convolution(node: Node) -> tuple[Op, ...]:
    """Return a convolution whose operands each come with a scale and a zero point."""
    return convolution(node, 3)


def transposed_convolution(node: Node) -> tuple[Op, ...]:
    """Return a transposed convolution as the convolution that it is the gradient of: the same products, ends exchanged."""
    pixels, weights, result = node.operands[0], node.operands[1], node.outputs[0]
    groups = node.attributes.get("group", 1)
    _check_channels(node, pixels.sizes[1], weights.sizes[0])
    channels = (weights.sizes[1] * groups, weights.sizes[0], groups)
    return _shaped(node, weights, pixels, result, _shape(node, result, pixels, weights, channels))


def _check_channels(node: Node, given: int, wanted: int) -> None:
    if given != wanted:
        got = f"{given} channels meet filters for {wanted}"
        raise SpecError(f"the node {node.name!r} ({node.op_type})", got, "as many channels as the filters have", "check the model")


def _shape(node: Node, wide: Tensor, narrow: Tensor, weights: Tensor, channels: tuple[int, int, int]) -> ConvolutionShape | None:
    """Return the shape of a convolution from `wide` to `narrow` pixels, or None where it has another number of spatial axes."""
    if len(wide.sizes) - 2 not in SPATIAL_AXES:
        return None
    kernel, in_size, out_size = _pair(weights.sizes[2:]), _pair(wide.sizes[2:]), _pair(narrow.sizes[2:])
    stride, dilation = _pair(node.attributes.get("strides", (1, 1))), _pair(node.attributes.get("dilations", (1, 1)))
    return ConvolutionShape(
        in_channels=channels[0],
        out_channels=channels[1],
        groups=channels[2],
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=_padding(node, tuple(zip(in_size, out_size, kernel, stride, dilation, strict=True))),
        in_size=in_size,
        out_size=out_size,
    )


def _shaped(node: Node, weights: Tensor, pixels: Tensor, result: Tensor, shape: ConvolutionShape | None) -> tuple[Op, ...]:
    if shape is None:
        return unknown(node, f"a convolution over {len(pixels.sizes) - 2} axes")
    if {pixels.batch_dimension, result.batch_dimension} - {0, None} or weights.batch_dimension is not None:
        return unknown(node, "the batch is not the first axis of its pixels")
    formats = weights.format, pixels.format
    return (part(node, shape, rows=pixels.sizes[0], reads=node.operands, writes=node.outputs, formats=formats),)


def _padding(node: Node, axes: Sequence[tuple[int, ...]]) -> tuple[int, int, int, int]:
    """Return pixels added above, left, below and right."""
    automatic = node.attributes.get("auto_pad", "NOTSET")
    if not automatic.startswith("SAME"):
        given = tuple(node.attributes.get("pads", ())) if automatic == "NOTSET" else ()
        half = len(given) // 2
        return (*_pair(given[:half], 0), *_pair(given[half:], 0))
    total = [max((out_size - 1) * stride + (taps - 1) * dilation + 1 - in_size, 0) for in_size, out_size, taps, stride, dilation in axes]
    less, more = [pixels // 2 for pixels in total], [pixels - pixels // 2 for pixels in total]
    first, last = (less, more) if automatic == "SAME_UPPER" else (more, less)
    return (first[0], first[1], last[0], last[1])


def _pair(values: Sequence[int], absent: int = 1) -> tuple[int, int]:
    """Return (rows, columns) of values for one or two axes."""
    padded = (*([absent] * (2 - len(values))), *values)
    return padded[0], padded[1]
