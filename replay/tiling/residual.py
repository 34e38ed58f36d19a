"""The residual of a calibration: a factor on a family's physical time, of smooth bumps or by a small network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from replay.specs.calibration import NetworkResidualSpec, Residual
from replay.tiling.terms import Array

_CHUNK = 65_536


def residual_factor(residual: Residual | None, features: Array) -> Array:
    """Return the factor [rows] for features [rows, features]: 1 without a residual and far from everything that it was fitted on."""
    if residual is None or not len(features):
        return np.ones(len(features))
    points = (features - np.array(residual.mean)) / np.array(residual.scale)
    starts = range(0, len(points), _CHUNK)
    if isinstance(residual, NetworkResidualSpec):
        parts = [_network(residual, points[start : start + _CHUNK]) for start in starts]
    else:
        centres, weights = np.array(residual.centres), np.array(residual.weights)
        parts = [basis(points[start : start + _CHUNK], centres, residual.length) @ weights for start in starts]
    return np.asarray(np.exp(np.concatenate(parts)))


def basis(points: Array, centres: Array, length: float) -> Array:
    """Return Gaussian bumps [points, centres] of standardised points around centres."""
    squared = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)[None, :] - 2.0 * points @ centres.T
    return np.asarray(np.exp(-np.maximum(squared, 0.0) / (2.0 * length**2)))


def activations(points: Array, layers: Sequence[tuple[Array, Array]]) -> list[Array]:
    """Return the input and the output of every layer [points, outputs] of (weights [inputs, outputs], biases [outputs])."""
    found = [points]
    for index, (weights, biases) in enumerate(layers):
        sums = found[-1] @ weights + biases
        found.append(np.tanh(sums) if index < len(layers) - 1 else sums)
    return found


def _network(residual: NetworkResidualSpec, points: Array) -> Array:
    """Return the logarithm of the factor [points] at standardised points [points, features]."""
    inside = np.clip(points, residual.lower, residual.upper)
    fading = np.exp(-((points - inside) ** 2).sum(axis=1) / 2.0)
    layers = [(np.array(layer.weights), np.array(layer.biases)) for layer in residual.layers]
    return np.asarray(fading * activations(inside, layers)[-1][:, 0])
