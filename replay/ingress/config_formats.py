"""Number format of a checkpoint's weights, from the `torch_dtype` and the `quantization_config` of its `config.json`."""

from __future__ import annotations

import re
from types import MappingProxyType

from replay.errors import SpecError
from replay.ingress.config_fields import QUANTIZATION_FIELDS
from replay.ingress.config_values import Fields

_STATED = MappingProxyType({"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"})
_ALGORITHMS = MappingProxyType({"FP8": "fp8", "NVFP4": "nvfp4"})
BLOCK_SIZE = [128, 128]
"""Weights of a block that share a scale, in fp8 checkpoints with block scales; the only size that kernels are priced for."""
GROUP_SIZE = 128
"""Weights that share a scale in int4 checkpoints; the format's bytes contain that share."""
_UNCONVERTED = re.compile(r".*(lm_head|embed_tokens|norm|gate|router)\*?")
"""Modules that stay in 16 bit in quantised checkpoints: lowering takes it for granted."""


def weights_format(fields: Fields) -> str:
    """Return the format of the weights of a parsed `config.json`.

    Raises:
        SpecError: no known format, or modules in several.
    """
    field = "dtype" if "torch_dtype" not in fields.config and "dtype" in fields.config else "torch_dtype"
    stated = fields.config.get(field)
    if not isinstance(stated, str) or stated not in _STATED:
        raise fields.bad(field, "one of " + ", ".join(_STATED))
    quantization = fields.config.get("quantization_config")
    if quantization is None:
        return _STATED[stated]
    if not isinstance(quantization, dict):
        raise fields.bad("quantization_config", "an object or null")
    inner = Fields(config=quantization, where=f"{fields.where}: quantization_config")
    method = quantization.get("quant_method")
    if not isinstance(method, str) or method not in QUANTIZATION_FIELDS:
        raise inner.bad("quant_method", "one of " + ", ".join(QUANTIZATION_FIELDS), "choose an unquantised checkpoint or one of those")
    inner.check_known(QUANTIZATION_FIELDS[method])
    _check_unconverted(inner)
    return _fp8(inner) if method == "fp8" else _modelopt(inner) if method == "modelopt" else _int4(inner)


def _fp8(fields: Fields) -> str:
    if fields.config.get("fmt", "e4m3") != "e4m3":
        raise fields.bad("fmt", "'e4m3'", "choose an e4m3 checkpoint")
    block = fields.config.get("weight_block_size")
    if block not in (None, BLOCK_SIZE):
        raise fields.bad("weight_block_size", f"{BLOCK_SIZE}, or null for one scale a tensor", "choose another checkpoint")
    return "fp8" if block is None else "fp8_block"


def _int4(fields: Fields) -> str:
    """Return the format of AWQ and GPTQ checkpoints."""
    for field, only in (("bits", 4), ("group_size", GROUP_SIZE)):
        if fields.config.get(field) != only:
            raise fields.bad(field, str(only), f"choose a 4-bit checkpoint with groups of {GROUP_SIZE}")
    if fields.config.get("lm_head") not in (None, False):
        raise fields.bad("lm_head", "false", "choose a checkpoint whose LM head is not converted")
    return "int4"


def _modelopt(fields: Fields) -> str:
    algorithm = fields.config.get("quant_algo")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise fields.bad("quant_algo", "one of " + ", ".join(_ALGORITHMS), "choose another checkpoint")
    return _ALGORITHMS[algorithm]


def _check_unconverted(fields: Fields) -> None:
    """Raise SpecError where further modules than the usual ones stay in 16 bit."""
    for field in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
        names = fields.config.get(field) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise fields.bad(field, "a list of module names")
        others = [name for name in names if not _UNCONVERTED.fullmatch(name)]
        if others:
            raise SpecError(
                f"{fields.where}: {field}",
                f"{others[0][:60]!a} stays in 16 bit beside converted layers",
                "no modules but the LM head, embeddings, norms and routers",
                "remove the list, and set formats.weights for those layers in the mapping",
            )
