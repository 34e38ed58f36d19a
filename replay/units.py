"""Conversions at the door and for printing; inside, every figure is in base units (seconds, bytes, FLOPs, hertz)."""

from __future__ import annotations

MILLISECOND_S = 1e-3
MICROSECOND_S = 1e-6
GIB_BYTES = 1024**3
MIB_BYTES = 1024**2

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def format_seconds(seconds: float) -> str:
    """Return a duration for people: ``1.23 s``, ``45.6 ms``, ``7.8 us``."""
    magnitude = abs(seconds)
    if magnitude >= 1.0 or magnitude == 0.0:
        return f"{seconds:.3g} s" if magnitude < 1000 else f"{seconds:.0f} s"
    if magnitude >= MILLISECOND_S:
        return f"{seconds / MILLISECOND_S:.3g} ms"
    return f"{seconds / MICROSECOND_S:.3g} us"


def format_bytes(count: float) -> str:
    """Return a size for people in binary units: ``15.0 GiB``, ``3.2 MiB``, ``12 B``."""
    for size, unit in ((GIB_BYTES, "GiB"), (MIB_BYTES, "MiB"), (1024, "KiB")):
        if abs(count) >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.0f} B"


def format_si(value: float, unit: str) -> str:
    """Return a figure for people with an SI prefix: ``312 TFLOP/s``."""
    for size, prefix in _SI:
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
