"""What a description of power and heat must satisfy beyond its schema."""

from __future__ import annotations

from collections.abc import Callable

from replay.errors import SpecError
from replay.specs.hardware import HardwareSpec


def check_power(hardware: HardwareSpec, place: Callable[[str], str]) -> None:
    """Refuse figures of which one rules out the other; `place` names where a key stands.

    Raises:
        SpecError: the first contradiction.
    """
    power = hardware.power
    if power is None:
        return
    if power.min_clock_hz > hardware.clock_hz:
        got = f"the lowest clock, {power.min_clock_hz:g} Hz, is above clock_hz"
        raise SpecError(place("power.min_clock_hz"), got, f"at most {hardware.clock_hz:g} Hz", "correct one of the clocks")
    if power.idle_w >= power.cap_w:
        got = f"the board draws {power.idle_w:g} W while nothing runs, and its limit is {power.cap_w:g} W"
        raise SpecError(place("power.idle_w"), got, "idle_w below cap_w", "correct one of them")
    idle_c = power.ambient_c + power.thermal_resistance_k_per_w * power.idle_w
    if idle_c >= power.throttle_c:
        got = f"the board idles at {idle_c:g} degrees and must not grow warmer than {power.throttle_c:g}"
        raise SpecError(place("power.throttle_c"), got, f"more than {idle_c:g} degrees Celsius", "correct the cooling or the limit")
