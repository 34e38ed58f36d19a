"""What each field of a Hugging Face `config.json` means to the operators' shapes: read, fixed, or harmless. Any other field is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

SHAPE_FIELDS = frozenset(
    {
        "architectures",
        "attention_bias",
        "decoder_sparse_step",
        "dtype",
        "head_dim",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "max_position_embeddings",
        "max_window_layers",
        "mlp_only_layers",
        "model_type",
        "moe_intermediate_size",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "num_hidden_layers",
        "num_key_value_heads",
        "num_local_experts",
        "quantization_config",
        "sliding_window",
        "tie_word_embeddings",
        "torch_dtype",
        "use_sliding_window",
        "vocab_size",
    }
)
"""Fields that `model_config` reads or checks against each other."""

FIXED_FIELDS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "hidden_act": ("silu",),
        "mlp_bias": (False, None),
        "is_encoder_decoder": (False, None),
        "add_cross_attention": (False, None),
    }
)
"""Fields with the only values under which the operator graph of stage 2 is right; the first one is named in errors."""

HARMLESS_FIELDS = frozenset(
    {
        "_attn_implementation",
        "_name_or_path",
        "attention_dropout",
        "attn_implementation",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "embd_pdrop",
        "eos_token_id",
        "finetuning_task",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "label2id",
        "max_length",
        "name_or_path",
        "norm_topk_prob",
        "original_max_position_embeddings",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "resid_pdrop",
        "return_dict",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "sep_token_id",
        "task_specific_params",
        "tokenizer_class",
        "transformers_version",
        "unsloth_version",
        "use_cache",
    }
)
"""Fields that change no shape, no byte and no FLOP of inference."""

QUANTIZATION_FIELDS = frozenset(
    {"activation_scheme", "fmt", "ignored_layers", "kv_cache_scheme", "modules_to_not_convert", "quant_method", "weight_block_size"}
)
"""Fields of `quantization_config` in an fp8 checkpoint."""
