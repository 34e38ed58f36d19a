"""Model and accelerator descriptions for tests: the real ones are too large to work by hand."""

from replay.ingress.model_config import read_model
from replay.specs.hardware import HardwareSpec, HostCosts, LinkSpec
from replay.specs.mapping import MappingSpec, parse_mapping
from replay.specs.model import ExpertsSpec, ModelSpec

LLAMA_8B = ModelSpec(
    name="llama-3.1-8b",
    layers_count=32,
    hidden_size=4096,
    query_heads=32,
    kv_heads=8,
    head_size=128,
    intermediate_size=14336,
    vocabulary_size=128256,
    max_context_tokens=131072,
    weights_format="bf16",
)
MIXTRAL = ModelSpec(
    name="mixtral",
    layers_count=32,
    hidden_size=4096,
    query_heads=32,
    kv_heads=8,
    head_size=128,
    intermediate_size=14336,
    vocabulary_size=32000,
    max_context_tokens=32768,
    weights_format="bf16",
    experts=ExpertsSpec(experts_count=8, experts_per_token=2, intermediate_size=14336),
)
SMALL_EXPERTS = ModelSpec(
    name="m-moe",
    layers_count=48,
    hidden_size=2048,
    query_heads=32,
    kv_heads=4,
    head_size=128,
    intermediate_size=6144,
    vocabulary_size=151936,
    max_context_tokens=40960,
    weights_format="bf16",
    experts=ExpertsSpec(experts_count=128, experts_per_token=8, intermediate_size=768),
)
DEEPSEEK_V3 = read_model("deepseek-v3")


def mapping(*lines: str) -> MappingSpec:
    """Return a mapping of TOML lines below a name."""
    return parse_mapping("\n".join(['name = "test"', *lines]), "mapping.toml")


def round_hardware(**changes: object) -> HardwareSpec:
    """Return an accelerator with round figures: 100 units, 100 TFLOP/s, 1 TB/s; no kernel of it is calibrated."""
    figures: dict[str, object] = {
        "name": "round",
        "units_count": 100,
        "clock_hz": 1e9,
        "matrix_flops_per_s": {"bf16": 100e12, "fp8": 200e12},
        "vector_flops_per_s": 10e12,
        "memory_bytes": 80e9,
        "memory_bytes_per_s": 1e12,
        "cache_bytes": 40e6,
        "unit_memory_bytes": 200e3,
        "unit_registers_bytes": 256e3,
        "unit_cache_bytes_per_s": 1e15,
        "link": LinkSpec(bytes_per_s=100e9, latency_s=10e-6),
        "host_link_bytes_per_s": 20e9,
        "host": HostCosts(launch_s=5e-6, graph_launch_s=15e-6),
        "sources": {},
    }
    return HardwareSpec(**{**figures, **changes})
