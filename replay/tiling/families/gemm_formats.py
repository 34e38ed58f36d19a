"""Number formats of dense matrix multiplies: bytes of each operand, which peak applies, and what work comes beside the product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from replay.errors import SpecError, nearest
from replay.specs.hardware import HardwareSpec

RESULT_BYTES = 2.0
"""Results are 16-bit in every format."""
SOURCE_BYTES = 2.0
"""Activations arrive in 16 bits; a format that narrows them does so in a kernel before the product."""
NVFP4_BYTES = 0.5 + 1.0 / 16.0
"""Four bits an element and an 8-bit scale for each 16 of them."""
GROUPED_INT4_BYTES = 0.5 + 2.0 / 128.0
"""Four bits an element and a 16-bit scale for each group of 128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmFormat:
    """How the operands of a product are stored and multiplied."""

    name: str
    weight_bytes: float
    """Of one weight, its share of scales included."""
    activation_bytes: float
    """Of one activation as the product reads it."""
    peak: str
    """Format whose matrix rate the product runs at."""
    step_elements: int
    """Reduction depth of one pipeline step: 128 bytes of a row of activations, the width of a shared-memory swizzle."""
    quantises: bool = False
    """16-bit activations are narrowed on the fly, in series with the product."""
    dequantises: bool = False
    """Weights are widened inside the product, on the vector units."""

    def flops_per_s(self, device: HardwareSpec) -> float:
        """Return the dense peak of a device.

        Raises:
            SpecError: its description has no rate for the format; none is made up.
        """
        if self.peak not in device.matrix_flops_per_s:
            raise SpecError(
                f"{device.name}: matrix_flops_per_s",
                f"no rate for {self.peak}, which {self.name} multiplies run at",
                "one of " + ", ".join(sorted(device.matrix_flops_per_s)),
                "describe the rate with its source, or take a format that the device has",
            )
        return device.matrix_flops_per_s[self.peak]


_FORMATS = (
    GemmFormat(name="bf16", weight_bytes=2.0, activation_bytes=2.0, peak="bf16", step_elements=64),
    GemmFormat(name="fp8", weight_bytes=1.0, activation_bytes=1.0, peak="fp8", step_elements=128, quantises=True),
    GemmFormat(name="fp8_block", weight_bytes=1.0, activation_bytes=1.0, peak="fp8", step_elements=128, quantises=True),
    GemmFormat(name="int8_smooth", weight_bytes=1.0, activation_bytes=1.0, peak="int8", step_elements=128, quantises=True),
    GemmFormat(name="int8_weights", weight_bytes=1.0, activation_bytes=2.0, peak="bf16", step_elements=64, dequantises=True),
    GemmFormat(name="int4_weights", weight_bytes=GROUPED_INT4_BYTES, activation_bytes=2.0, peak="bf16", step_elements=64, dequantises=True),
    GemmFormat(name="nvfp4", weight_bytes=NVFP4_BYTES, activation_bytes=NVFP4_BYTES, peak="fp4", step_elements=256, quantises=True),
)
GEMM_FORMATS: Mapping[str, GemmFormat] = {entry.name: entry for entry in _FORMATS}


def gemm_format(name: str) -> GemmFormat:
    """Return the format of a name.

    Raises:
        SpecError: there is none of that name.
    """
    if name not in GEMM_FORMATS:
        known = ", ".join(GEMM_FORMATS)
        raise SpecError("gemm format", f"unknown format {name!r}{nearest(name, GEMM_FORMATS)}", f"one of {known}", "correct the name")
    return GEMM_FORMATS[name]
