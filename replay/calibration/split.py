"""Which shape groups a fit may see: a fixed hash of the group's key, the same for every device, stack and format."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from replay.seeds import stream

FOLDS = 3
FITTED_SHARE_RATIO = 0.6
RULE = (
    "shape groups (all rows of one key) are fitted where the first 8 bytes of sha256(key), as a fraction of 2^64, are below 0.6; "
    "errors are over the other groups"
)


def fitted_mask(keys: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.bool_]:
    """Return [rows] which rows belong to fitted groups; `keys` are the columns that make a group's key ([rows] each)."""
    table = np.stack([np.asarray(column, dtype=np.int64) for column in keys], axis=1)
    groups, inverse = np.unique(table, axis=0, return_inverse=True)
    chosen = np.array([_fraction(tuple(int(part) for part in group)) < FITTED_SHARE_RATIO for group in groups])
    return np.asarray(chosen[inverse.reshape(-1)])


def cross_validation_folds(groups: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """Return the fold [rows] that a residual's cross-validation leaves the row's group out in; `groups` [rows] numbers them.

    Every fold has as many groups as another, or one more or fewer.
    """
    present, numbered = np.unique(groups, return_inverse=True)
    return np.asarray((stream(seed, "calibration/folds").permutation(len(present)) % FOLDS)[numbered.reshape(-1)])


def _fraction(key: tuple[int, ...]) -> float:
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64
