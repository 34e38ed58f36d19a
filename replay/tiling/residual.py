"""The smooth residual of a calibration: a factor on a family's physical time."""

from __future__ import annotations

import numpy as np

from replay.specs.calibration import ResidualSpec
from replay.tiling.terms import Array

_CHUNK = 65_536


def residual_factor(residual: ResidualSpec | None, features: Array) -> Array:
    """Return the factor [rows] for features [rows, features]: 1 without a residual and far from every centre."""
    if residual is None:
        return np.ones(len(features))
    points = (features - np.array(residual.mean)) / np.array(residual.scale)
    centres, weights = np.array(residual.centres), np.array(residual.weights)
    parts = [basis(points[start : start + _CHUNK], centres, residual.length) @ weights for start in range(0, len(points), _CHUNK)]
    return np.asarray(np.exp(np.concatenate(parts))) if parts else np.ones(0)


def basis(points: Array, centres: Array, length: float) -> Array:
    """Return Gaussian bumps [points, centres] of standardised points around centres."""
    squared = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)[None, :] - 2.0 * points @ centres.T
    return np.asarray(np.exp(-np.maximum(squared, 0.0) / (2.0 * length**2)))
