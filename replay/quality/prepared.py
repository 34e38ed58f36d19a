"""Weights as a mapping stores them, each made once."""

from __future__ import annotations

from collections.abc import Mapping

from replay.quality.elements import Values
from replay.quality.numerics import Numerics
from replay.quality.products import product
from replay.quality.tensor_formats import two_of_four


class PreparedWeights:
    """A checkpoint's matrices by name in the formats that were asked for; it keeps what it made."""

    def __init__(self, tensors: Mapping[str, Values]) -> None:
        """Keep tensors by name, matrices as [outputs, inputs]."""
        self.tensors = tensors
        self._made: dict[tuple[str, str, bool], Values] = {}

    def matrix(self, name: str, layer: str, numerics: Numerics) -> Values:
        """Return a matrix as a layer type stores it: pruned first, then rounded."""
        form, sparse = numerics.weights(layer), numerics.is_sparse(layer)
        key = (name, str(form), sparse)
        if key not in self._made:
            values = two_of_four(self.tensors[name]) if sparse else self.tensors[name]
            self._made[key] = values if form is None else form.stored(values)
        return self._made[key]

    def product(self, name: str, layer: str, rows: Values, numerics: Numerics, phase: str) -> Values:
        """Return rows [n, inputs] times a matrix -> [n, outputs], not yet rounded to what is stored between products."""
        form = numerics.activations(layer)
        parts = numerics.parts("split_k", layer, phase=phase, rows=len(rows))
        stored = rows if form is None else form.stored(rows)
        return product(stored, self.matrix(name, layer, numerics), numerics.accumulation(layer), parts)
