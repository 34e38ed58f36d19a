"""Models of served measurements: their dimensions, and the formats that a server runs them in.

Dimensions are those of the published ``config.json`` of each model. In gpt-oss layers with a window of 128 tokens alternate with full
attention; as nothing else differs, a step takes the mean of what it takes with each in every layer. Its experts are mxfp4 in every
checkpoint, whatever format a table names: 4-bit weights here, multiplied in 16 bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from replay.ingress.model_config import read_model
from replay.specs.model import ExpertsSpec, ModelSpec

CATALOG = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
}
GPT_OSS = "openai/gpt-oss-120b"
GPT_OSS_WINDOW_TOKENS = 128
_GPT_OSS = ModelSpec(
    name="gpt-oss-120b",
    layers_count=36,
    hidden_size=2880,
    query_heads=64,
    kv_heads=8,
    head_size=64,
    intermediate_size=2880,
    vocabulary_size=201088,
    max_context_tokens=131072,
    weights_format="bf16",
    attention_bias=True,
    experts=ExpertsSpec(experts_count=128, experts_per_token=4, intermediate_size=2880),
)
_PROJECTIONS = ("qkv", "output_proj", "mlp", "moe")
"""Layer types that a quantised checkpoint narrows; the head stays in 16 bit."""
_FORMATS = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as a server runs it."""

    name: str
    layers: tuple[ModelSpec, ...]
    """The model with all layers alike, once for each kind of layer; kinds are equally many."""
    format_name: str
    settings: tuple[str, ...]
    """Lines of a mapping's section of formats."""


def served_model(path: str, products: str) -> ServedModel | str:
    """Return the model of a name in formats of a table (`products`: that of dense products, empty for the checkpoint's), or why not."""
    if path == GPT_OSS:
        if products != "nvfp4":
            return "gpt-oss in another format than its 4-bit experts"
        windowed = replace(_GPT_OSS, attention_window_tokens=GPT_OSS_WINDOW_TOKENS)
        return ServedModel(name=_GPT_OSS.name, layers=(_GPT_OSS, windowed), format_name="mxfp4", settings=('"weights@moe" = "int4"',))
    if path not in CATALOG:
        return f"no description of the model {path!r}"
    model = read_model(CATALOG[path])
    if not products or products == model.weights_format.removesuffix("_block"):
        return ServedModel(name=model.name, layers=(model,), format_name=model.weights_format, settings=())
    if products not in _FORMATS:
        return f"{model.name} in {products}"
    settings = tuple(f'"{side}@{layer}" = "{_FORMATS[products]}"' for side in ("weights", "activations") for layer in _PROJECTIONS)
    return ServedModel(name=model.name, layers=(model,), format_name=_FORMATS[products], settings=settings)
