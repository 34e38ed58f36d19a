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

LATENT_FIELDS = frozenset(
    {
        "first_k_dense_replace",
        "kv_lora_rank",
        "n_routed_experts",
        "n_shared_experts",
        "q_lora_rank",
        "qk_head_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    }
)
"""Shape fields of DeepSeek's families, which no other family has."""

FIXED_FIELDS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "hidden_act": ("silu",),
        "mlp_bias": (False, None),
        "moe_layer_freq": (1, None),
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
        "aux_loss_alpha",
        "bos_token_id",
        "chunk_size_feed_forward",
        "embd_pdrop",
        "eos_token_id",
        "ep_size",
        "finetuning_task",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "label2id",
        "max_length",
        "n_group",
        "name_or_path",
        "norm_topk_prob",
        "num_nextn_predict_layers",
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
        "rope_interleave",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "routed_scaling_factor",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "scoring_func",
        "sep_token_id",
        "seq_aux",
        "task_specific_params",
        "tokenizer_class",
        "topk_group",
        "topk_method",
        "transformers_version",
        "unsloth_version",
        "use_cache",
    }
)
"""Fields that change no shape, no byte and no FLOP of inference as it is replayed. `num_nextn_predict_layers` is among them: layers
that predict further tokens are only loaded for speculative decoding, which is not."""

QUANTIZATION_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "fp8": frozenset(
            {
                "activation_scheme", "fmt", "ignored_layers", "kv_cache_scheme", "modules_to_not_convert", "quant_method",
                "weight_block_size",
            }
        ),
        "awq": frozenset(
            {
                "backend", "bits", "do_fuse", "exllama_config", "fuse_max_seq_len", "group_size", "modules_to_not_convert", "quant_method",
                "version", "zero_point",
            }
        ),
        "gptq": frozenset(
            {
                "backend", "batch_size", "bits", "block_name_to_quantize", "checkpoint_format", "damp_percent", "dataset", "desc_act",
                "exllama_config", "group_size", "is_marlin_format", "lm_head", "max_input_length", "meta", "model_file_base_name",
                "model_name_or_path", "model_seqlen", "modules_to_not_convert", "pack_dtype", "pad_token_id", "quant_method", "quant_type",
                "static_groups", "sym", "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama",
            }
        ),
        "modelopt": frozenset(
            {
                "config_groups", "exclude_modules", "group_size", "has_zero_point", "ignore", "kv_cache_quant_algo", "kv_cache_scheme",
                "pre_quant_scale", "producer", "quant_algo", "quant_method",
            }
        ),
    }
)  # fmt: skip
"""Fields of `quantization_config` by its `quant_method`."""
