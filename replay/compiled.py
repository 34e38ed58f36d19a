"""Compilation of inner loops; importing it loads the compiler, so only modules that hold a loop do, and they are imported late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic

_NO_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile on first use, without fast-math and without the interpreter's lock.

    The machine code is kept beside the source, else in the user's cache, else not at all, as folders can be written. It is found
    again by the time stamp of the function's own file and by the types of its arguments, and contains the parts it calls: where
    those stand in other files, a type must change with them (`replay.execution.loop_arrays.STATE` does).
    """
    try:
        return cast(_Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:  # numba found no folder to keep the code in
        return cast(_Function, numba.njit(nogil=True, error_model="numpy")(function))


def inlined_part(function: _Function) -> _Function:
    """Compile as `compiled_part` does, always in place: for what is called from one place in every step."""
    return cast(_Function, numba.njit(nogil=True, error_model="numpy", forceinline=True, **_NO_WRAPPERS)(function))


def compiled_part(function: _Function) -> _Function:
    """Compile as part of the functions that call it: nothing is kept for it alone, and only compiled code can call it."""
    return cast(_Function, numba.njit(nogil=True, error_model="numpy", **_NO_WRAPPERS)(function))


def _borrowed(_context: Any, array: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        fields = context.make_array(signature.args[0])(context, builder, arguments[0])
        fields.meminfo = fields.meminfo.type(None)
        fields.parent = fields.parent.type(None)
        return fields._getvalue()

    return array(array), build


borrowed = cast(Callable[[Any], Any], intrinsic(_borrowed))
"""Return the same array without an owner, so that handing it on costs no atomic reference count; the caller must keep it alive."""
