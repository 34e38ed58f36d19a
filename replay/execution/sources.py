"""Digests of source files, for the names of types by which compiled code is found again."""

from __future__ import annotations

import hashlib
from importlib import resources


def sources_digest(*names: str) -> str:
    """Return what tells one content of files of this package from another."""
    folder = resources.files(__package__)
    return hashlib.sha256(b"".join(folder.joinpath(name).read_bytes() for name in names)).hexdigest()[:16]
