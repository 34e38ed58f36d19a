"""How far each layer type's formats alone take its outputs from the baseline's, given the baseline's inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from replay.quality.elements import Values
from replay.quality.numerics import Numerics


@dataclass(slots=True)
class _Sums:
    signal: float = 0.0
    noise: float = 0.0

    def add(self, output: Values, other: Values) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            self.signal += float(np.square(output, dtype=np.float64).sum())
            self.noise += float(np.square(output.astype(np.float64) - other).sum())

    @property
    def relative(self) -> float:
        """Root of noise over signal; infinite where the outputs are not finite."""
        if not math.isfinite(self.noise):
            return math.inf
        return math.sqrt(self.noise / self.signal) if self.signal else 0.0


@dataclass(slots=True)
class LayerErrors:
    """An `Observer` of the baseline's run that computes each output a second time as the candidate would, from the same inputs."""

    candidate: Numerics
    _layers: dict[str, dict[str, _Sums]] = field(default_factory=dict)

    def __call__(self, layer: str, name: str, output: Values, run: Callable[[Numerics], Values]) -> None:
        """Count one product or attention."""
        self._layers.setdefault(layer, {}).setdefault(name, _Sums()).add(output, run(self.candidate))

    def rows(self) -> list[dict[str, object]]:
        """Return layer types, the worst first: root-mean-square error over signal, that in dB (SQNR), and the worst of its products."""
        found = []
        for layer, products in self._layers.items():
            whole = _Sums(sum(sums.signal for sums in products.values()), sum(sums.noise for sums in products.values()))
            worst = max(products, key=lambda name: products[name].relative)
            found.append((whole.relative, layer, worst, products[worst].relative))
        return [
            {
                "layer_type": layer,
                "relative_error": _finite(relative),
                "sqnr_db": _decibels(relative),
                "worst": worst.strip("."),
                "worst_relative_error": _finite(worst_relative),
            }
            for relative, layer, worst, worst_relative in sorted(found, key=lambda row: -row[0])
        ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _decibels(relative: float) -> float | None:
    """Return the ratio of signal to noise in dB; None where there is no noise, or nothing but noise."""
    return -20 * math.log10(relative) if 0 < relative < math.inf else None
