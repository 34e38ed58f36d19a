"""ModelSpec: the figures of a decoder-only transformer that decide its operators' shapes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from replay.provenance import digest_document


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """A mixture-of-experts feed-forward block."""

    experts_count: int
    experts_per_token: int
    intermediate_size: int
    """Width of one expert."""
    shared_experts_count: int = 0
    """Experts of the same width that every token runs through beside the chosen ones."""
    dense_layers_count: int = 0
    """First layers with a plain feed-forward block, of the model's `intermediate_size`, instead of experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2, DeepSeek-AI 2024, section 2.1): one latent and one rotary key stand for all heads."""

    q_lora_rank: int | None
    """Size of the latent that queries are made from; None where they come straight from the hidden state."""
    kv_lora_rank: int
    """Size of the latent that keys and values are made from, which is cached."""
    qk_nope_head_dim: int
    """Part of a query or key of one head that carries no position."""
    qk_rope_head_dim: int
    """Part that is rotated; all heads share that of the keys, which is cached beside the latent."""
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer (Llama, Mistral, Qwen and DeepSeek families; dense or mixture of experts)."""

    name: str
    layers_count: int
    hidden_size: int
    query_heads: int
    kv_heads: int
    head_size: int
    """Of a query and a key."""
    intermediate_size: int
    vocabulary_size: int
    max_context_tokens: int
    weights_format: str
    """Format of the checkpoint (`bf16`, `fp16`, `fp32`, `fp8`, `fp8_block`, `int4`, `nvfp4`)."""
    tied_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normalised per head (Qwen3)."""
    attention_window_tokens: int | None = None
    """Sliding window over all layers, or None for full attention."""
    experts: ExpertsSpec | None = None
    mla: MlaSpec | None = None
    """Latent attention, or None where every head has (or shares) keys and values of its own."""

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form that is digested and embedded in bundles."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> ModelSpec:
        """Return the spec of a JSON form made by `to_document`."""
        fields = dict(document)
        if fields.get("experts") is not None:
            fields["experts"] = ExpertsSpec(**fields["experts"])
        if fields.get("mla") is not None:
            fields["mla"] = MlaSpec(**fields["mla"])
        return cls(**fields)

    @property
    def digest(self) -> str:
        """Digest of every figure."""
        return digest_document(self.to_document())
