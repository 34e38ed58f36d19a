"""A Llama-like transformer in NumPy: RMS norms, rotary embeddings, grouped-query attention with a cache, gated feed-forward blocks.

Weights, activations and cache are rounded where a device stores them: the cache when keys and values are written, activations as they reach
a product, and what passes between operations to the 16-bit format of the mapping.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from replay.quality.attention import attend
from replay.quality.elements import Values
from replay.quality.model import Answer, Observer, Tokens
from replay.quality.numerics import LAYERS, Numerics
from replay.quality.prepared import PreparedWeights
from replay.quality.weights.checkpoint import Checkpoint

_PROMPT_ROWS = 1024
"""Prompt tokens worked on at once."""


@dataclass(slots=True)
class _Cache:
    """Keys and values of one sequence, by layer [tokens, kv heads, size]."""

    layers: list[tuple[Values, Values]]
    tokens: int = 0


@dataclass(slots=True)
class _Step:
    """Tokens of several sequences that run together, as in a server's step."""

    tokens: list[Tokens]
    caches: list[_Cache]
    phase: str
    observe: Observer | None = None
    rows: list[slice] = field(default_factory=list)

    def __post_init__(self) -> None:
        edges = itertools.accumulate(map(len, self.tokens), initial=0)
        self.rows = [slice(first, last) for first, last in itertools.pairwise(edges)]

    @property
    def positions(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.concatenate([cache.tokens + np.arange(len(own)) for own, cache in zip(self.tokens, self.caches, strict=True)])


class LlamaModel:
    """One checkpoint of a dense Llama-like model."""

    layer_types: Sequence[str] = (*LAYERS, "attention", "all")

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint, which must be of a transformer."""
        assert checkpoint.spec is not None
        self._spec = checkpoint.spec
        self._weights = PreparedWeights(checkpoint.tensors)
        self._epsilon = np.float32(checkpoint.norm_epsilon)
        self._frequencies = checkpoint.rope_base ** -(np.arange(0, self._spec.head_size, 2) / self._spec.head_size)
        self._head = "model.embed_tokens.weight" if self._spec.tied_embeddings else "lm_head.weight"

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens."""
        return self._spec.vocabulary_size

    @property
    def max_context_tokens(self) -> int | None:
        """Longest sequence."""
        return self._spec.max_context_tokens

    def labels(self, tokens: Tokens, answer: Tokens) -> Tokens:
        """Return the probe's tokens from the second on: each is predicted from those before."""
        return tokens[1:]

    def states(self, numerics: Numerics, tokens: Tokens, labels: Tokens, observe: Observer | None = None) -> Values:
        """Return the states after each token but the last [tokens - 1, hidden], after the last norm."""
        return self._prompt(numerics, tokens, self._empty_cache(), observe)[:-1]

    def logits(self, numerics: Numerics, states: Values) -> Values:
        """Return the logits of states [states, vocabulary]."""
        return self._weights.product(self._head, "lm_head", states, numerics, "decode")

    def answers(self, numerics: Numerics, probes: Sequence[Tokens], length: int) -> list[Answer]:
        """Return the likeliest continuations, and the states of the prompts; all sequences decode together."""
        caches = [self._empty_cache() for _ in probes]
        states = [self._prompt(numerics, probe, cache) for probe, cache in zip(probes, caches, strict=True)]
        last = np.concatenate([own[-1:] for own in states])
        answers = [Answer(tokens=[], states=own[:-1]) for own in states]
        for place in range(length):
            for answer, token in zip(answers, self.logits(numerics, last).argmax(axis=1), strict=True):
                answer.tokens.append(int(token))
            if place < length - 1:
                last = self._step(numerics, _Step([answer.tokens[-1:] for answer in answers], caches, "decode"))
        return answers

    def _empty_cache(self) -> _Cache:
        nothing = np.zeros((0, self._spec.kv_heads, self._spec.head_size), dtype=np.float32)
        return _Cache([(nothing, nothing)] * self._spec.layers_count)

    def _prompt(self, numerics: Numerics, tokens: Tokens, cache: _Cache, observe: Observer | None = None) -> Values:
        pieces = [tokens[first : first + _PROMPT_ROWS] for first in range(0, len(tokens), _PROMPT_ROWS)]
        return np.concatenate([self._step(numerics, _Step([piece], [cache], "prefill", observe)) for piece in pieces])

    def _step(self, numerics: Numerics, step: _Step) -> Values:
        """Return the states after the tokens of a step [rows, hidden], and extend their caches."""
        hidden = _stored(self._weights.tensors["model.embed_tokens.weight"][np.concatenate(step.tokens).astype(np.int64)], numerics)
        angles = step.positions[:, None] * self._frequencies
        rotation = np.cos(angles).astype(np.float32)[:, None], np.sin(angles).astype(np.float32)[:, None]
        for layer in range(self._spec.layers_count):
            place = f"model.layers.{layer}."
            hidden = _stored(hidden + self._attention(numerics, step, hidden, layer, rotation), numerics)
            normed = self._norm(numerics, hidden, f"{place}post_attention_layernorm.weight")
            multiply = partial(self._multiply, numerics, step, "mlp")
            gate, up = multiply(f"{place}mlp.gate_proj", normed), multiply(f"{place}mlp.up_proj", normed)
            with np.errstate(over="ignore", invalid="ignore"):
                gated = _stored(gate / (1 + np.exp(-gate)) * up, numerics)
            hidden = _stored(hidden + multiply(f"{place}mlp.down_proj", gated), numerics)
        for own, cache in zip(step.tokens, step.caches, strict=True):
            cache.tokens += len(own)
        return self._norm(numerics, hidden, "model.norm.weight")

    def _attention(self, numerics: Numerics, step: _Step, hidden: Values, layer: int, rotation: tuple[Values, Values]) -> Values:
        spec, place = self._spec, f"model.layers.{layer}.self_attn."
        normed = self._norm(numerics, hidden, f"model.layers.{layer}.input_layernorm.weight")
        queries, keys, values = (
            self._multiply(numerics, step, "qkv", f"{place}{name}_proj", normed).reshape(len(hidden), -1, spec.head_size) for name in "qkv"
        )
        if spec.qk_norm:
            queries, keys = (self._norm(numerics, part, f"{place}{name}_norm.weight") for part, name in ((queries, "q"), (keys, "k")))
        queries, keys = (_stored(_rotated(part, rotation), numerics) for part in (queries, keys))
        outputs = []
        for rows, cache in zip(step.rows, step.caches, strict=True):
            before = cache.layers[layer]

            def attended(
                other: Numerics, rows: slice = rows, before: tuple[Values, Values] = before
            ) -> tuple[Values, tuple[Values, Values]]:
                form = other.cache()
                new = [part[rows] if form is None else form.stored(part[rows]) for part in (keys, values)]
                after = np.concatenate([before[0], new[0]]), np.concatenate([before[1], new[1]])
                parts = other.parts("kv_split", "attention", phase=step.phase, rows=len(hidden))
                window = spec.attention_window_tokens
                return _stored(attend(queries[rows], *after, window=window, parts=parts, stored=other.stream), other), after

            output, cache.layers[layer] = attended(numerics)
            outputs.append(output)
            _tell(step.observe, "attention", place, output, lambda other, run=attended: run(other)[0])  # type: ignore[misc]
        return self._multiply(numerics, step, "output_proj", f"{place}o_proj", np.concatenate(outputs))

    def _multiply(self, numerics: Numerics, step: _Step, layer: str, name: str, rows: Values) -> Values:
        def run(other: Numerics) -> Values:
            return self._weights.product(f"{name}.weight", layer, rows, other, step.phase)

        output = run(numerics)
        _tell(step.observe, layer, name, output, run)
        bias = self._weights.tensors.get(f"{name}.bias")
        return _stored(output if bias is None else output + bias, numerics)

    def _norm(self, numerics: Numerics, rows: Values, name: str) -> Values:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = rows / np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True, dtype=np.float32) + self._epsilon)
            normed = np.asarray(scaled * self._weights.tensors[name], dtype=np.float32)
        return _stored(normed, numerics)


def _stored(values: Values, numerics: Numerics) -> Values:
    return values if numerics.stream is None else numerics.stream.stored(values)


def _rotated(rows: Values, rotation: tuple[Values, Values]) -> Values:
    """Return rows [tokens, heads, size] turned by their positions; the halves of a head are the two coordinates."""
    cosine, sine = rotation
    half = rows.shape[-1] // 2
    first, second = rows[..., :half], rows[..., half:]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _tell(observe: Observer | None, layer: str, name: str, output: Values, run: Callable[[Numerics], Values]) -> None:
    if observe is not None:
        observe(layer, name, output, run)
