"""Llama-like models in GGUF files: their metadata as a config.json, their tensors by usual names and in usual order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from replay.errors import SpecError
from replay.quality.weights.stored_tensor import StoredTensor

_KEYS = {
    "num_hidden_layers": "block_count", "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base", "rms_norm_eps": "attention.layer_norm_rms_epsilon", "vocab_size": "vocab_size",
}  # fmt: skip
"""Field of a config.json -> key of a GGUF file, behind the architecture."""
_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def config_of(metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the config.json that a file's metadata amounts to, but for what its tensors tell.

    Raises:
        SpecError: it is not of a Llama-like model with plain rotary embeddings.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise SpecError(where, f"the architecture {architecture}", "llama", "take a Llama-like model, or its safetensors files")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise SpecError(where, f"rotary embeddings scaled by {scaling}", "plain rotary embeddings", "choose a model of that design")
    config = {field: metadata[f"llama.{key}"] for field, key in _KEYS.items() if f"llama.{key}" in metadata}
    config.setdefault("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())))
    return {"model_type": "llama", "torch_dtype": "float16", **config}


def renamed(tensor: StoredTensor, config: Mapping[str, Any]) -> StoredTensor:
    """Return a GGUF tensor by its usual name; the rows of queries and keys, which the format interleaves, in their usual order."""
    parts = tensor.name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _NAMES:
        name = f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.{parts[3]}"
    else:
        name = f"{_OUTSIDE.get(parts[0], parts[0])}.{parts[-1]}"
    values = tensor.values
    if parts[-2] in ("attn_q", "attn_k"):
        heads = config.get("num_attention_heads" if parts[-2] == "attn_q" else "num_key_value_heads", config.get("num_attention_heads"))
        if isinstance(heads, int) and heads and not len(values) % (2 * heads):
            split = values.reshape(heads, len(values) // heads // 2, 2, *values.shape[1:])
            values = np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))
    return StoredTensor(name=name, values=values, stored_as=tensor.stored_as)
