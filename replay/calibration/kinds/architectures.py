"""Architectures of the transformers in forward-pass tables: dimensions and element-wise kernels.

Dimensions: BERT-Large (Devlin et al. 2019, section 3), GPT-2 Large (Radford et al. 2019, table 2), OPT-1.3B (Zhang et al. 2022, table 1),
GPT-3 XL (Brown et al. 2020, table 2.1: 24 layers, 24 heads of 128). That table's width of GPT-3 XL, 2048, is not its heads' 3072; here it
is 3072, for a pass of width 2048 would take half of the times that are on record.

Element-wise kernels are those that Hugging Face's eager attention and activations launch one by one (modeling_bert.py, modeling_gpt2.py,
modeling_opt.py, activations.py); names are those of `replay.calibration.kinds.streams`.
"""

from __future__ import annotations

from dataclasses import dataclass

GELU_TANH = ("powu", "mulu", "add", "mulu", "tanh", "addu", "mulu", "mul")
"""``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``, kernel by kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One transformer; every layer is alike."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    joined_qkv: bool
    """One product for queries, keys and values."""
    on_scores: tuple[str, ...]
    """Element-wise kernels between scores and softmax: scaling, mask."""
    activation: str
    """As one kernel."""
    on_feed_forward: tuple[str, ...]
    """Element-wise kernels of the activation, as eager passes launch it."""
    on_queries: tuple[str, ...] = ()
    """Element-wise kernels on the queries."""
    head_transform: bool = False
    """Whether a product and a norm of the width stand before the vocabulary's product."""


ARCHITECTURES = {
    "bert_large": Architecture(
        layers=24,
        width=1024,
        heads=16,
        vocabulary=30522,
        joined_qkv=False,
        on_scores=("divu", "addu"),
        activation="gelu",
        on_feed_forward=("gelu",),
        head_transform=True,
    ),
    "gpt2_large": Architecture(
        layers=36,
        width=1280,
        heads=20,
        vocabulary=50257,
        joined_qkv=True,
        on_scores=("divu", "addu"),
        activation="gelu",
        on_feed_forward=GELU_TANH,
    ),
    "gpt3_xl": Architecture(
        layers=24,
        width=3072,
        heads=24,
        vocabulary=50257,
        joined_qkv=True,
        on_scores=("divu", "addu"),
        activation="gelu",
        on_feed_forward=GELU_TANH,
    ),
    "opt_13": Architecture(
        layers=24,
        width=2048,
        heads=32,
        vocabulary=50272,
        joined_qkv=False,
        on_scores=("addu", "addu"),
        activation="relu",
        on_feed_forward=("relu",),
        on_queries=("mulu",),
    ),
}
