"""Model metadata -> `ModelSpec`: Hugging Face `config.json` of decoder-only transformers, dense or mixture of experts.

A field that is not known here is an error: it may change the computation. Where a model family has a built-in default that the file
leaves out and that differs between families, the file must say it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from replay.documents import read_json_object
from replay.errors import SpecError, nearest
from replay.ingress.config_fields import FIXED_FIELDS, HARMLESS_FIELDS, LATENT_FIELDS, SHAPE_FIELDS
from replay.ingress.config_formats import weights_format
from replay.ingress.config_mla import check_latent_document, latent_attention
from replay.ingress.config_values import Fields
from replay.ingress.onnx_file import is_onnx
from replay.names import NAME_RULE, is_safe_name, safe_name
from replay.specs.model import ExpertsSpec, MlaSpec, ModelSpec

_CATALOG = Path(__file__).resolve().parent.parent / "catalog" / "models"

_SIZES = (
    "layers_count", "hidden_size", "query_heads", "kv_heads", "head_size", "intermediate_size", "vocabulary_size", "max_context_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What one `model_type` adds to the plain transformer."""

    qk_norm: bool = False
    attention_bias: bool | None = False
    """None: the file's `attention_bias` says, false when absent."""
    experts_key: str | None = None
    expert_size_key: str = "intermediate_size"
    latent: bool = False
    """Whether it has latent attention, shared experts and first dense layers (DeepSeek)."""
    kv_heads_default: bool = False
    """Whether an absent `num_key_value_heads` means one for each query head."""
    head_size_default: int | None = None
    """Built-in head size of the family, where it is not hidden size / heads."""
    window: str = "none"
    """`none`: no such field is honoured; `stated`: `sliding_window` must be there; `optional`; `switched`: by `use_sliding_window`."""


_DEEPSEEK = _Family(
    attention_bias=None, kv_heads_default=True, experts_key="n_routed_experts", expert_size_key="moe_intermediate_size", latent=True
)
_FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        "llama": _Family(attention_bias=None, kv_heads_default=True),
        "mistral": _Family(window="stated"),
        "mixtral": _Family(experts_key="num_local_experts", window="optional"),
        "qwen2": _Family(attention_bias=True, window="switched"),
        "qwen3": _Family(qk_norm=True, attention_bias=None, head_size_default=128, window="switched"),
        "qwen3_moe": _Family(
            qk_norm=True,
            attention_bias=None,
            experts_key="num_experts",
            expert_size_key="moe_intermediate_size",
            head_size_default=128,
            window="switched",
        ),
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK,
    }
)


def catalog_models() -> tuple[str, ...]:
    """Return the names of the models that ship with the product."""
    return tuple(sorted(path.stem for path in _CATALOG.glob("*.json")))


def read_model(name_or_path: str | Path) -> ModelSpec:
    """Return the model of a catalog name, of a `config.json` file, or of a folder that holds one.

    Raises:
        SpecError: no such model, a field missing, unknown, out of range or at odds with another, or a design that is not supported.
    """
    text = str(name_or_path)
    if text in catalog_models():
        return model_from_config(read_json_object(_CATALOG / f"{text}.json", "a model"), where=text, name=text)
    path = Path(name_or_path)
    if os.path.exists(path / "config.json"):
        path = path / "config.json"
    if not os.path.exists(path):
        known = catalog_models()
        raise SpecError(
            text, f"no such model or file{nearest(text, known)}", f"a config.json or one of {', '.join(known)}", "check the name"
        )
    if is_onnx(path):
        got, fix = "an ONNX model, on which no requests can be replayed", "print its costs with `replay map --model`"
        raise SpecError(text, got, "the config.json of a decoder", fix)
    return model_from_config(read_json_object(path, "a model's config.json"), where=text, name=_model_name(path))


def model_from_config(config: Mapping[str, Any], *, where: str, name: str) -> ModelSpec:
    """Return the model of a parsed `config.json`; `where` names it in errors."""
    fields = Fields(config=config, where=where)
    family = _family(fields)
    _check_known(fields)
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    mla = _latent(fields, family)
    kv_heads = fields.size("num_key_value_heads", heads if family.kv_heads_default else None)
    if heads % kv_heads:
        raise fields.bad("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    context = fields.size("max_position_embeddings")
    layers = fields.size("num_hidden_layers")
    return ModelSpec(
        name=name,
        layers_count=layers,
        hidden_size=hidden,
        query_heads=heads,
        kv_heads=kv_heads,
        head_size=mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else _head_size(fields, family, hidden, heads),
        intermediate_size=fields.size("intermediate_size"),
        vocabulary_size=fields.size("vocab_size"),
        max_context_tokens=context,
        weights_format=weights_format(fields),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias") if family.attention_bias is None else family.attention_bias,
        qk_norm=family.qk_norm,
        attention_window_tokens=_window_tokens(fields, family, layers),
        experts=_experts(fields, family, layers),
        mla=mla,
    )


def model_from_document(document: Mapping[str, Any], where: str) -> ModelSpec:
    """Return the model of the JSON form that bundles and run directories embed (schema `baseline.v1`), held to a config file's rules.

    Raises:
        SpecError: a figure is out of range or at odds with another.
    """
    fields = Fields(config=document, where=f"{where}: model")
    experts, mla = document["experts"], document["mla"]
    if not all(is_safe_name(part) for part in document["name"].split("/")):
        raise fields.bad("name", f"for each part between slashes {NAME_RULE}")
    for field in _SIZES:
        fields.size(field)
    if document["query_heads"] % document["kv_heads"]:
        raise fields.bad("kv_heads", f"a divisor of query_heads ({document['query_heads']})")
    if document["attention_window_tokens"] is not None:
        fields.size("attention_window_tokens")
    if experts is not None:
        inner = Fields(config=experts, where=f"{where}: model.experts")
        for field in ("experts_count", "experts_per_token", "intermediate_size"):
            inner.size(field)
        if experts["experts_per_token"] > experts["experts_count"]:
            raise inner.bad("experts_per_token", f"at most experts_count ({experts['experts_count']})")
        inner.count("shared_experts_count")
        if inner.count("dense_layers_count") >= document["layers_count"]:
            raise inner.bad("dense_layers_count", f"fewer than layers_count ({document['layers_count']})")
    if mla is not None:
        check_latent_document(Fields(config=mla, where=f"{where}: model.mla"), document["head_size"])
    return ModelSpec.from_document(dict(document))


def _model_name(path: Path) -> str:
    """Return ``publisher/model`` from a file called ``publisher--model[_config].json``, or the folder of a ``config.json``."""
    stem = path.stem if path.stem != "config" else path.resolve().parent.name
    return "/".join(safe_name(part) for part in stem.removesuffix("_config").replace("--", "/", 1).split("/"))


def _family(fields: Fields) -> _Family:
    model_type = fields.config.get("model_type")
    supported = "one of " + ", ".join(_FAMILIES)
    if not isinstance(model_type, str) or model_type not in _FAMILIES:
        hint = nearest(model_type, _FAMILIES) if isinstance(model_type, str) else ""
        raise fields.bad("model_type", supported + hint, "choose a model of a supported family")
    return _FAMILIES[model_type]


def _check_known(fields: Fields) -> None:
    fields.check_known(SHAPE_FIELDS | LATENT_FIELDS | FIXED_FIELDS.keys() | HARMLESS_FIELDS)
    for field, value in fields.config.items():
        if field in FIXED_FIELDS and not any(value is allowed or value == allowed for allowed in FIXED_FIELDS[field]):
            raise fields.bad(field, f"{FIXED_FIELDS[field][0]!r}".lower(), "choose a model of that design")
    for architecture in fields.config.get("architectures") or ():
        if not isinstance(architecture, str) or not architecture.endswith("ForCausalLM"):
            raise fields.bad("architectures", "a causal language model (...ForCausalLM)", "choose a model of that design")


def _head_size(fields: Fields, family: _Family, hidden: int, heads: int) -> int:
    if fields.config.get("head_dim") is not None:
        return fields.size("head_dim")
    if hidden % heads:
        raise fields.bad("hidden_size", f"a multiple of num_attention_heads ({heads}) where head_dim is not given")
    if family.head_size_default not in (None, hidden // heads):
        raise fields.bad(
            "head_dim", f"a head size (hidden size / heads is {hidden // heads}, the family's own is {family.head_size_default})"
        )
    return hidden // heads


def _window_tokens(fields: Fields, family: _Family, layers: int) -> int | None:
    """Return the attention window over all layers; a window over some of them is an error."""
    kinds = fields.config.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or len(set(map(str, kinds))) != 1 or len(kinds) != layers):
        raise fields.bad("layer_types", f"{layers} layers of one type", "choose a model whose layers are alike")
    if kinds and kinds[0] not in ("full_attention", "sliding_attention"):
        raise fields.bad("layer_types", "full_attention or sliding_attention in every layer", "choose a model of that design")
    window = _stated_window(fields, family, layers)
    if kinds and (kinds[0] == "sliding_attention") != (window is not None):
        raise fields.bad("layer_types", f"what sliding_window says ({window})")
    return window


def _stated_window(fields: Fields, family: _Family, layers: int) -> int | None:
    if "use_sliding_window" in fields.config and not fields.flag("use_sliding_window"):
        return None
    if family.window == "switched":
        return _switched_window(fields, layers)
    for field in ("use_sliding_window", "max_window_layers"):
        if fields.config.get(field) is not None:
            raise fields.bad(field, "no such switch in this model type", "correct model_type or remove the field")
    if family.window == "stated" and "sliding_window" not in fields.config:
        raise fields.bad("sliding_window", "a number of tokens, or null (an absent field means 4096 to this family)")
    if fields.config.get("sliding_window") is None:
        return None
    if family.window == "none":
        raise fields.bad("sliding_window", "null for this model type")
    return fields.size("sliding_window")


def _switched_window(fields: Fields, layers: int) -> int | None:
    """Return the window of a family that has one from layer `max_window_layers` on, when `use_sliding_window` says so."""
    if not fields.flag("use_sliding_window"):
        return None
    first = fields.config.get("max_window_layers")
    if type(first) is not int or not (first == 0 or first >= layers):
        raise fields.bad(
            "max_window_layers", f"0 or at least {layers}: a window over some layers only is not modelled", "choose another model"
        )
    return fields.size("sliding_window") if first == 0 else None


def _latent(fields: Fields, family: _Family) -> MlaSpec | None:
    if family.latent:
        return latent_attention(fields)
    for field in LATENT_FIELDS:
        if fields.config.get(field) is not None:
            raise fields.bad(field, "no such field in this model type", "correct model_type or remove the field")
    return None


def _experts(fields: Fields, family: _Family, layers: int) -> ExpertsSpec | None:
    own = {family.experts_key, "num_experts_per_tok", family.expert_size_key} if family.experts_key else set()
    for field in ("num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size"):
        if field not in own and fields.config.get(field) is not None:
            raise fields.bad(field, "no such field in this model type", "correct model_type or remove the field")
    if fields.config.get("decoder_sparse_step") not in (None, 1):
        raise fields.bad("decoder_sparse_step", "1: dense layers among the sparse ones are not modelled", "choose another model")
    if fields.config.get("mlp_only_layers") not in (None, []):
        raise fields.bad("mlp_only_layers", "an empty list: dense layers among the sparse ones are not modelled", "choose another model")
    if family.experts_key is None:
        return None
    experts, chosen = fields.size(family.experts_key), fields.size("num_experts_per_tok")
    if chosen > experts:
        raise fields.bad("num_experts_per_tok", f"at most {family.experts_key} ({experts})")
    dense = fields.count("first_k_dense_replace") if family.latent else 0
    if dense >= layers:
        raise fields.bad("first_k_dense_replace", f"fewer than num_hidden_layers ({layers})")
    return ExpertsSpec(
        experts_count=experts,
        experts_per_token=chosen,
        intermediate_size=fields.size(family.expert_size_key),
        shared_experts_count=_shared_experts(fields) if family.latent else 0,
        dense_layers_count=dense,
    )


def _shared_experts(fields: Fields) -> int:
    if "n_shared_experts" not in fields.config:
        raise fields.bad("n_shared_experts", "a number of experts, or null for none")
    return 0 if fields.config["n_shared_experts"] is None else fields.count("n_shared_experts")
