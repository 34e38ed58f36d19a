"""Named random streams: one independent generator per name, so that adding a consumer never shifts another."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of the stream `name` under `seed`; the same pair always gives the same draws."""
    import numpy as np

    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return np.random.default_rng(np.frombuffer(key, dtype=np.uint32))
