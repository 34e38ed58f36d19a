"""ExpertLoad: how often each expert of a mixture of experts was chosen, recorded beside a trace or stated to be uniform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.errors import SpecError
from replay.provenance import digest_document
from replay.specs.model import ModelSpec

MOST_SHARE = 1.0 + 1e-6
"""Most that a token may choose one expert: it never chooses one twice; what is beyond 1 is rounding of the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Choices of each expert while a trace was served."""

    origin: str
    """Where the figures come from, in words."""
    layers: tuple[tuple[float, ...], ...] = ()
    """[layers with experts, or one row for all of them; experts]. Empty: routing is stated to be uniform."""

    @property
    def is_uniform(self) -> bool:
        """Whether every expert is stated to be chosen equally often."""
        return not self.layers

    def rows_per_token(self, model: ModelSpec) -> npt.NDArray[np.float64]:
        """Return how often a token chooses each expert of a model [layers with experts or 1, experts]; rows sum to its choices.

        Raises:
            SpecError: the record is of a model with other layers or experts, or no token could choose so.
        """
        assert model.experts is not None
        count, choices = model.experts.experts_count, model.experts.experts_per_token
        if self.is_uniform:
            return np.full((1, count), choices / count)
        layers_count = model.layers_count - model.experts.dense_layers_count
        loads = np.array(self.layers, dtype=np.float64)
        if loads.shape not in ((1, count), (layers_count, count)):
            got = f"{loads.shape[0]} layers of {loads.shape[1]} experts"
            raise _unfit(got, f"{layers_count} layers (or one, for all) of {count} experts, as {model.name} has")
        rates: npt.NDArray[np.float64] = loads / loads.sum(axis=1, keepdims=True) * choices
        if rates.max() > MOST_SHARE:
            layer, expert = np.unravel_index(int(rates.argmax()), rates.shape)
            got = f"{rates.max():.3g} choices of expert {expert} by each token in layer {layer}"
            raise _unfit(got, f"at most one, as a token chooses {choices} different experts of {model.name}")
        return np.minimum(rates, 1.0)

    @property
    def digest(self) -> str:
        """Digest of the figures; where they come from does not count."""
        return digest_document([[float(load) for load in row] for row in self.layers])

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form (schema `expert-load.v1`)."""
        head = {"routing": "uniform" if self.is_uniform else "recorded", "origin": self.origin}
        return head if self.is_uniform else {**head, "layers": [list(row) for row in self.layers]}

    @classmethod
    def from_document(cls, document: dict[str, Any], where: str) -> ExpertLoad:
        """Return the load of a JSON form that was checked against the schema.

        Raises:
            SpecError: layers differ in their number of experts, or one has no choice at all.
        """
        layers = tuple(tuple(float(load) for load in row) for row in document.get("layers", ()))
        for number, row in enumerate(layers):
            if len(row) != len(layers[0]) or not sum(row) > 0:
                got = f"layer {number} has {len(row)} experts with {sum(row):g} choices"
                raise SpecError(where, got, f"{len(layers[0])} experts in each layer, and choices", "correct or record it again")
        return cls(origin=document["origin"], layers=layers)


def _unfit(got: str, want: str) -> SpecError:
    return SpecError("the trace's expert_load", got, want, "replay the model that it was recorded with")
