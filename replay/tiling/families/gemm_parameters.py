"""Calibrated parameters of dense multiplies; rates are shares of the device's figures, so that they carry over between devices."""

from __future__ import annotations

from replay.tiling.families.family import ParameterDefinition
from replay.tiling.families.gemm_formats import GemmFormat
from replay.tiling.families.gemm_paths import GemmPaths


def _scale(name: str, meaning: str, start: float, lower: float, upper: float) -> ParameterDefinition:
    return ParameterDefinition(name=name, meaning=meaning, start=start, lower=lower, upper=upper)


_ALWAYS = (
    _scale("floor_s", "launch, first loads and last stores", 2e-6, 5e-7, 2e-5),
    _scale("compute_efficiency_ratio", "peak reached inside a tile", 0.8, 0.2, 1.5),
    _scale("memory_efficiency_ratio", "DRAM rate reached", 0.8, 0.2, 1.2),
    _scale("step_latency_cycles", "one pipeline step of a tile alone on its unit", 200.0, 10.0, 4000.0),
    _scale("overlap_exponent", "p of the p-norm of execution and memory", 2.8, 1.2, 12.0),
    ParameterDefinition(
        name="wave_smoothness_ratio", meaning="share of waves rounded up", start=0.35, lower=0.0, upper=1.0, logarithmic=False
    ),
    _scale("store_rate_ratio", "DRAM rate that one unit's results are stored at after a tile", 0.01, 1e-3, 0.5),
    _scale("unit_load_ratio", "a unit's cache rate reached by operand loads", 0.6, 0.02, 4.0),
    _scale("cache_rate_ratio", "rate of data found in the cache over the DRAM rate", 2.0, 1.0, 8.0),
    _scale("weights_cache_ratio", "share of the cache that keeps all copies of the weights", 0.7, 0.2, 4.0),
    _scale("activations_cache_ratio", "share of the cache that keeps activations and results between kernels", 0.8, 0.1, 4.0),
)
_SPLIT = (
    _scale("split_combine_s", "second pass that adds the parts of a split", 2.5e-6, 1e-7, 2e-5),
    _scale("combine_rate_ratio", "rate of partial results over the DRAM rate", 1.0, 0.1, 30.0),
)
_VECTOR = (_scale("column_rate_ratio", "a unit's cache rate at which one block streams a column", 0.02, 1e-3, 0.5),)
_NARROWING = (
    _scale("narrowing_floor_s", "kernel that narrows activations", 2e-6, 1e-7, 2e-5),
    _scale("narrowing_rate_ratio", "DRAM rate it reaches", 0.5, 0.02, 4.0),
)
_WIDENING = (_scale("widening_operations", "vector operations to widen one weight", 0.5, 0.01, 20.0),)


def gemm_parameters(format_: GemmFormat, paths: GemmPaths) -> tuple[ParameterDefinition, ...]:
    """Return the parameters of a format's products under a stack's kernels."""
    present = ((_SPLIT, paths.splits), (_VECTOR, paths.vector), (_NARROWING, format_.quantises), (_WIDENING, format_.dequantises))
    return (*_ALWAYS, *(parameter for group, there in present if there for parameter in group))
