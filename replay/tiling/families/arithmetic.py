"""What a kernel multiplies with: bytes of an element, and which units of the device at which rate."""

from __future__ import annotations

from dataclasses import dataclass

from replay.errors import SpecError
from replay.specs.hardware import HardwareSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """One way to multiply and add: on the vector units, several narrow elements a lane, or on the matrix units."""

    name: str
    input_bytes: float
    output_bytes: float
    vector_ratio: float = 1.0
    """Operations per operation of fp32 on the vector units, for those that run there."""
    matrix_format: str = ""
    """Format of the matrix units that do the work; empty = vector units."""
    aligned_elements: int = 1
    """Elements per row of an operand come in multiples of this; shorter rows are padded."""

    def flops_per_s(self, device: HardwareSpec) -> float:
        """Return the dense peak.

        Raises:
            SpecError: the device's description has no rate for the matrix format; none is made up.
        """
        if not self.matrix_format:
            return self.vector_ratio * device.vector_flops_per_s
        if self.matrix_format not in device.matrix_flops_per_s:
            raise SpecError(
                f"{device.name}: matrix_flops_per_s",
                f"no rate for {self.matrix_format}",
                "one of " + ", ".join(sorted(device.matrix_flops_per_s)),
                "describe the rate with its source, or take a format that the device has",
            )
        return device.matrix_flops_per_s[self.matrix_format]


FP32 = Arithmetic(name="fp32", input_bytes=4.0, output_bytes=4.0)
FP16_STORED = Arithmetic(name="fp16-stored", input_bytes=2.0, output_bytes=2.0)
"""Kept in 16 bits, computed in 32 on the vector units."""
FP16_PAIRS = Arithmetic(name="fp16-pairs", input_bytes=2.0, output_bytes=2.0, vector_ratio=2.0)
"""Two 16-bit elements a lane (Pascal's half2)."""
INT8_QUADS = Arithmetic(name="int8-quads", input_bytes=1.0, output_bytes=4.0, vector_ratio=4.0)
"""Four 8-bit products a lane, summed in 32 bits (the dp4a instruction): the fall-back where operands do not suit the matrix units."""
FP16_MATRIX = Arithmetic(name="fp16-matrix", input_bytes=2.0, output_bytes=2.0, matrix_format="fp16", aligned_elements=8)
"""Matrix units, summed in 32 bits; channels in eights (cuDNN developer guide, tensor core operations)."""
