"""A knob's settings as what they mean - a value for every place and row - and back to few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from replay.specs.knobs import KNOBS, Value
from replay.specs.mapping import MappingSpec, Setting
from replay.specs.scopes import EVERYWHERE, PHASES, UNBOUNDED_ROWS, Phase, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a knob may have a value of its own."""

    layer: str
    phase: Phase

    def __str__(self) -> str:
        return f"{self.layer}.{self.phase}"


Ranges = tuple[tuple[int, int, Value], ...]
"""(first row, last row, value), from row 1 to UNBOUNDED_ROWS without gaps."""


def places(knob: str, layers: tuple[str, ...]) -> tuple[Place, ...]:
    """Return the places at which a tiling knob is asked for in a model with these layer types of products."""
    if knob.startswith("gemm."):
        every = (Place(layer=layer, phase=phase) for layer in layers for phase in reversed(PHASES))
        return tuple(place for place in every if (place.layer, place.phase) != ("lm_head", "prefill"))
    phases = tuple(reversed(PHASES)) if KNOBS[knob].phases else (PHASES[1],)
    return tuple(Place(layer="attention", phase=phase) for phase in phases)


def ranges_at(mapping: MappingSpec, knob: str, place: Place) -> Ranges:
    """Return a knob's value at a place for every row, on the mapping's chip."""
    return tuple(mapping.row_bins(knob, layer=place.layer, phase=place.phase, rows_to=UNBOUNDED_ROWS))


def with_ranges(mapping: MappingSpec, knob: str, wanted: Mapping[Place, Ranges]) -> MappingSpec:
    """Return the mapping with a knob's values on its chip, at all the places that `wanted` has; other chips' settings stay."""
    return _with_settings(mapping, knob, tuple(_settings(knob, wanted)))


def with_value(mapping: MappingSpec, knob: str, value: Value) -> MappingSpec:
    """Return the mapping with one value of a knob on its chip; the default is not written."""
    settings = () if value == KNOBS[knob].default else (Setting(name=knob, scope=EVERYWHERE, value=value),)
    return _with_settings(mapping, knob, settings)


def without(mapping: MappingSpec, knob: str) -> MappingSpec:
    """Return the mapping with a knob's default everywhere on its chip."""
    return _with_settings(mapping, knob, ())


def _with_settings(mapping: MappingSpec, knob: str, settings: tuple[Setting, ...]) -> MappingSpec:
    kept = tuple(s for s in mapping.settings if s.name != knob or s.scope.chip not in (None, mapping.chip))
    return replace(mapping, settings=(*kept, *settings))


def _settings(knob: str, wanted: Mapping[Place, Ranges]) -> Iterator[Setting]:
    """Yield a setting for each range that has not the default; phases of a layer type that agree share theirs."""
    definition = KNOBS[knob]
    for layer in dict.fromkeys(place.layer for place in wanted):
        there = {place.phase: ranges for place, ranges in wanted.items() if place.layer == layer}
        alike = len(set(there.values())) == 1 and (len(there) > 1 or not definition.phases or layer == "lm_head")
        for phase, ranges in there.items():
            if alike and phase != next(iter(there)):
                continue
            for first, last, value in ranges:
                if value != definition.default:
                    scope = Scope(
                        layer=layer if layer in definition.layers else None,
                        phase=None if alike else phase,
                        rows_from=first if first > 1 else 0,
                        rows_to=None if last == UNBOUNDED_ROWS else last,
                    )
                    yield Setting(name=knob, scope=scope, value=value)
