"""Number formats of single values: what a value becomes when it is stored in one. `ml_dtypes` does the casts of floating formats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.errors import SpecError

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A number format; one that saturates takes values beyond its largest one to that, as conversions of narrow formats do."""

    name: str
    dtype: str | None
    """Of NumPy or `ml_dtypes`; None for whole numbers."""
    largest: float
    saturates: bool = True
    has_nan: bool = True

    def stored(self, values: Values) -> Values:
        """Return what values [any shape] are once stored: the nearest that the format holds, ties to even. NaN stays NaN, for it must be
        seen, also where the format has none.

        Raises:
            SpecError: `ml_dtypes` is not installed.
        """
        bounded = np.clip(values, -self.largest, self.largest) if self.saturates else values
        if self.dtype is None:
            return np.rint(bounded)
        with np.errstate(over="ignore"):  # 16-bit formats overflow to infinity, as they do on devices
            stored = bounded.astype(_dtype(self.dtype)).astype(np.float32)
        return stored if self.has_nan else np.where(np.isnan(values), np.float32(np.nan), stored)


ELEMENTS = {
    element.name: element
    for element in (
        Element(name="bf16", dtype="bfloat16", largest=3.3895313892515355e38, saturates=False),
        Element(name="fp16", dtype="float16", largest=65504.0, saturates=False),
        Element(name="fp8_e4m3", dtype="float8_e4m3fn", largest=448.0),
        Element(name="fp8_e5m2", dtype="float8_e5m2", largest=57344.0),
        Element(name="fp4_e2m1", dtype="float4_e2m1fn", largest=6.0, has_nan=False),
        Element(name="int8", dtype=None, largest=127.0),
        Element(name="int4", dtype=None, largest=7.0),
    )
}
"""By name. Whole numbers are symmetric: -128 and -8 are not used, as of scales that are the largest value over 127 or 7."""


def _dtype(name: str) -> np.dtype[np.generic]:
    if name == "float16":
        return np.dtype(np.float16)
    try:
        import ml_dtypes
    except ImportError as error:
        got, fix = "the library ml_dtypes is missing, which casts to narrow formats", "pip install 'replay-gate[quality]'"
        raise SpecError("replay quality", got, "the extra quality", fix) from error
    found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
    return found
