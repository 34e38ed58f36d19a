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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer (Llama, Mistral, Qwen families; dense or mixture of experts)."""

    name: str
    layers_count: int
    hidden_size: int
    query_heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    vocabulary_size: int
    max_context_tokens: int
    weights_format: str
    """Format of the checkpoint (`bf16`, `fp16`, `fp32`, `fp8`)."""
    tied_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normalised per head (Qwen3)."""
    attention_window_tokens: int | None = None
    """Sliding window over all layers, or None for full attention."""
    experts: ExpertsSpec | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form that is digested and embedded in bundles."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> ModelSpec:
        """Return the spec of a JSON form made by `to_document`."""
        fields = dict(document)
        if fields.get("experts") is not None:
            fields["experts"] = ExpertsSpec(**fields["experts"])
        return cls(**fields)

    @property
    def digest(self) -> str:
        """Digest of every figure."""
        return digest_document(self.to_document())
