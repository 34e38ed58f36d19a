"""What the probe asks of a model, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from replay.quality.elements import Values
from replay.quality.numerics import Numerics

Tokens = Sequence[int]
Observer = Callable[[str, str, Values, Callable[[Numerics], Values]], None]
"""Told of each product and attention: layer type, name, its output, and what would give the output of other numerics on the same inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model answers to a probe."""

    tokens: list[int]
    states: Values | None = None
    """What `ProbeModel.states` gives for the probe, where it was made on the way."""


class ProbeModel(Protocol):
    """A model that can be run under any numerics."""

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that a probe may hold."""
        ...

    @property
    def layer_types(self) -> Sequence[str]:
        """Layer types that it has, of those that numerics are stated for."""
        ...

    @property
    def max_context_tokens(self) -> int | None:
        """Longest probe with its answer; None where any length will do."""
        ...

    def labels(self, tokens: Tokens, answer: Tokens) -> Tokens:
        """Return the tokens that `states` predict: those of the probe itself, or where it is another language, the answer."""
        ...

    def states(self, numerics: Numerics, tokens: Tokens, labels: Tokens, observe: Observer | None = None) -> Values:
        """Return the states [labels, size] that `logits` turns into predictions of the labels."""
        ...

    def logits(self, numerics: Numerics, states: Values) -> Values:
        """Return the logits of states [states, vocabulary of the labels]."""
        ...

    def answers(self, numerics: Numerics, probes: Sequence[Tokens], length: int) -> list[Answer]:
        """Return the likeliest continuation of each probe, token by token, at most `length` tokens."""
        ...
