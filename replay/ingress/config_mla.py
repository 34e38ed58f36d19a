"""Multi-head latent attention in a `config.json` (DeepSeek-V2, V3 and R1)."""

from __future__ import annotations

from replay.ingress.config_values import Fields
from replay.specs.model import MlaSpec


def latent_attention(fields: Fields) -> MlaSpec:
    """Return the ranks and head sizes of latent attention.

    Raises:
        SpecError: one is missing, out of range or at odds with another.
    """
    if "q_lora_rank" not in fields.config:
        raise fields.bad("q_lora_rank", "a rank, or null where queries come straight from the hidden state")
    found = MlaSpec(
        q_lora_rank=None if fields.config["q_lora_rank"] is None else fields.size("q_lora_rank"),
        kv_lora_rank=fields.size("kv_lora_rank"),
        qk_nope_head_dim=fields.size("qk_nope_head_dim"),
        qk_rope_head_dim=fields.size("qk_rope_head_dim"),
        v_head_dim=fields.size("v_head_dim"),
    )
    _check(fields, found)
    return found


def check_latent_document(fields: Fields, head_size: int) -> None:
    """Raise SpecError where the recorded form of an `MlaSpec`, of a model of such heads, breaks what holds for a file."""
    if fields.config["q_lora_rank"] is not None:
        fields.size("q_lora_rank")
    for field in ("kv_lora_rank", "v_head_dim"):
        fields.size(field)
    if fields.size("qk_nope_head_dim") + fields.size("qk_rope_head_dim") != head_size:
        raise fields.bad("qk_nope_head_dim", f"head_size ({head_size}) less qk_rope_head_dim ({fields.config['qk_rope_head_dim']})")


def _check(fields: Fields, mla: MlaSpec) -> None:
    heads, whole = fields.size("num_attention_heads"), mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if fields.size("num_key_value_heads", heads) != heads:
        raise fields.bad("num_key_value_heads", f"num_attention_heads ({heads}): the latent is expanded for every head")
    if mla.qk_rope_head_dim % 2:
        raise fields.bad("qk_rope_head_dim", "an even number: rotations turn pairs")
    if fields.size("qk_head_dim", whole) != whole:
        raise fields.bad("qk_head_dim", f"qk_nope_head_dim + qk_rope_head_dim ({whole})")
    if fields.size("head_dim", mla.qk_rope_head_dim) != mla.qk_rope_head_dim:
        raise fields.bad("head_dim", f"qk_rope_head_dim ({mla.qk_rope_head_dim}), which is what this model type means by it")
