"""Compilation of inner loops; importing it loads the compiler, so only modules that hold a loop do, and they are imported late."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile on first use, without fast-math and without the interpreter's lock.

    The machine code is kept beside the source, else in the user's cache, else not at all, as folders can be written.
    """
    try:
        return cast(_Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no folder to keep the code in
        return cast(_Function, numba.njit(nogil=True)(function))
