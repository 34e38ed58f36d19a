"""A GRU encoder and decoder in NumPy (Cho et al. 2014): the encoder's last state starts a decoder that feeds its likeliest token back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from replay.quality.elements import Values
from replay.quality.model import Answer, Observer, Tokens
from replay.quality.numerics import Numerics
from replay.quality.prepared import PreparedWeights
from replay.quality.weights.checkpoint import Checkpoint

START, STOP = 2, 3
"""Tokens that begin and end an answer, in the vocabularies of published checkpoints of this kind (g2p-en)."""


class RecurrentModel:
    """One checkpoint of a GRU encoder and decoder. Its cells are products of layer type `mlp`, its output layer is `lm_head`."""

    max_context_tokens: int | None = None
    layer_types: Sequence[str] = ("mlp", "lm_head", "all")

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint, which must be of a recurrent model."""
        self._weights = PreparedWeights(checkpoint.tensors)

    @property
    def vocabulary_size(self) -> int:
        """Number of input symbols."""
        return len(self._weights.tensors["enc_emb"])

    def labels(self, tokens: Tokens, answer: Tokens) -> Tokens:
        """Return the answer and its end."""
        return [*answer, STOP]

    def states(self, numerics: Numerics, tokens: Tokens, labels: Tokens, observe: Observer | None = None) -> Values:
        """Return the decoder's states [labels, size] where it is fed the labels."""
        state, states = self._encoded(numerics, [tokens], observe), []
        for token in [START, *labels[:-1]]:
            state = self._cell(numerics, "dec", np.array([token]), state, observe)
            states.append(state)
        return np.concatenate(states)

    def logits(self, numerics: Numerics, states: Values) -> Values:
        """Return the logits of states [states, symbols]."""
        return self._weights.product("fc_w", "lm_head", states, numerics, "decode") + self._weights.tensors["fc_b"]

    def answers(self, numerics: Numerics, probes: Sequence[Tokens], length: int) -> list[Answer]:
        """Return the likeliest answers without their end; all sequences run together."""
        state = self._encoded(numerics, probes)
        fed, running = np.full(len(probes), START), np.ones(len(probes), dtype=np.bool_)
        answers: list[list[int]] = [[] for _ in probes]
        for _ in range(length):
            state = self._cell(numerics, "dec", fed, state)
            fed = self.logits(numerics, state).argmax(axis=1)
            running &= fed != STOP
            for place in np.flatnonzero(running):
                answers[place].append(int(fed[place]))
            if not running.any():
                break
        return [Answer(tokens=answer) for answer in answers]

    def _encoded(self, numerics: Numerics, probes: Sequence[Tokens], observe: Observer | None = None) -> Values:
        """Return the encoder's last state of each probe [probes, size]; shorter ones keep theirs while longer ones go on."""
        state = np.zeros((len(probes), self._weights.tensors["enc_w_hh"].shape[1]), dtype=np.float32)
        for place in range(max(map(len, probes))):
            inside = np.array([place < len(probe) for probe in probes])
            fed = np.array([probe[place] if place < len(probe) else 0 for probe in probes])
            state = np.where(inside[:, None], self._cell(numerics, "enc", fed, state, observe), state)
        return state

    def _cell(self, numerics: Numerics, side: str, fed: np.ndarray[tuple[int], np.dtype[np.int64]], state: Values,
              observe: Observer | None = None) -> Values:  # fmt: skip
        tensors = self._weights.tensors
        embedded = _stored(tensors[f"{side}_emb"][fed], numerics)
        own = self._multiply(numerics, f"{side}_w_ih", embedded, observe) + tensors[f"{side}_b_ih"]
        past = self._multiply(numerics, f"{side}_w_hh", state, observe) + tensors[f"{side}_b_hh"]
        size = state.shape[1]
        reset, update = (1 / (1 + np.exp(-(own + past)[:, first : first + size])) for first in (0, size))
        new = np.tanh(own[:, 2 * size :] + reset * past[:, 2 * size :])
        mixed = (1 - update) * new + update * state
        return _stored(mixed, numerics)

    def _multiply(self, numerics: Numerics, name: str, rows: Values, observe: Observer | None) -> Values:
        def run(other: Numerics) -> Values:
            return self._weights.product(name, "mlp", rows, other, "decode")

        output = run(numerics)
        if observe is not None:
            observe("mlp", name, output, run)
        return output


def _stored(values: Values, numerics: Numerics) -> Values:
    return values if numerics.stream is None else numerics.stream.stored(values)
