"""Kernel families that shipped calibrations belong to, rebuilt from what an entry says of itself."""

import re

from replay.calibration.kinds.collectives import library_family
from replay.specs.calibration import FamilyCalibration
from replay.specs.hardware import HardwareSpec
from replay.tiling.families import arithmetic, decode_paths, prefill_attention, streams
from replay.tiling.families.convolution import ConvolutionFamily
from replay.tiling.families.decode_attention import DecodeAttention
from replay.tiling.families.experts import EXPERTS
from replay.tiling.families.family import KernelFamily
from replay.tiling.families.gemm import gemm_family
from replay.tiling.families.scales import SCALE_INCREMENT
from replay.tiling.families.vector_gemm import VectorGemmFamily

ALONE = (
    EXPERTS, SCALE_INCREMENT, streams.NORM, streams.SOFTMAX, streams.ELEMENTWISE, streams.ROPE, streams.ACTIVATION,
    streams.RESIDUAL_ADD, streams.QUANTISE,
)  # fmt: skip
"""Families that are the same for every variant."""
ARITHMETICS = {
    one.name: one for one in (arithmetic.FP32, arithmetic.FP16_STORED, arithmetic.FP16_PAIRS, arithmetic.FP16_MATRIX, arithmetic.INT8_QUADS)
}
ATTENTION = re.compile(r"(?P<math>[a-z0-9]+)(?:-(?P<cache>[a-z0-9]+)kv)?-(?P<kernel>[a-z0-9_]+)(?P<window>-window)?")


def family_of(entry: FamilyCalibration, device: HardwareSpec) -> KernelFamily:
    """Return the family of an entry; KeyError where there is none."""
    if entry.family.endswith("attention"):
        return attention_of(entry, device)
    if entry.family == "gemm":
        return gemm_family(entry.variant, entry.stack, device)
    if entry.family == "vector_gemm":
        return VectorGemmFamily(arithmetic=ARITHMETICS[re.sub(r"^fp32-(linear|batched)$", "fp32", entry.variant)])
    if entry.family == "convolution":
        return ConvolutionFamily(arithmetic=ARITHMETICS[entry.variant])
    if entry.family in ("ring_collective", "peer_all_reduce"):
        return library_family(entry.stack, entry.variant.partition("-")[0])
    return {family.name: family for family in ALONE}[entry.family]


def attention_of(entry: FamilyCalibration, device: HardwareSpec) -> KernelFamily:
    """Return the attention family of a variant such as ``bf16-fp8kv-flash3``."""
    parts = ATTENTION.fullmatch(entry.variant)
    assert parts, entry.variant
    value_bytes = {"bf16": 2.0, "fp8": 1.0}
    if entry.family == "decode_attention":
        kv_bytes = value_bytes[parts["cache"] or parts["math"]]
        return DecodeAttention(path=decode_paths.PATHS[parts["kernel"]], kv_bytes=kv_bytes, planned_units=device.units_count)
    path = prefill_attention.PATHS[parts["kernel"]]
    assert not parts["window"] or path.window_apart
    return prefill_attention.PrefillAttention(path=path, math_bytes=value_bytes[parts["math"]])
