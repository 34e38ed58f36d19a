"""Reverts narrower than a whole knob: the baseline's value for one layer type, phase, range of rows or accelerator alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gates.attribution.trials import Trials
from replay.specs.knobs import KNOBS, KnobDefinition, Value
from replay.specs.mapping import MappingSpec, Setting
from replay.specs.scopes import EVERYWHERE, PHASES, Scope, parse_scope
from replay.specs.tile_table import TileTables

SMALL_ROWS = 64
"""Rows that split steps in two: up to here products of one layer read weights that hardly more than one tile of rows uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowerRevert:
    """Knobs to set back, some of them for part of the work only; verified as the whole revert is."""

    knobs: tuple[str, ...]
    """Undone wherever they hold."""
    settings: tuple[Setting, ...]
    """What is added to the mapping instead of undoing a whole knob: the baseline's value in a narrower scope."""
    mapping: MappingSpec

    @property
    def scoped(self) -> dict[str, Value]:
        """The added settings by knob id."""
        return {setting.knob: setting.value for setting in self.settings}


Place = tuple[str | None, str | None]
"""Layer type and phase; None where there is no such one."""


def narrower_revert(trials: Trials, knobs: tuple[str, ...], place: Place, *, by_chip: bool) -> NarrowerRevert | None:
    """Return a narrower revert that releases, as that of all `knobs` does; None where none of those tried does.

    One knob after the other is narrowed, the others undone whole or narrowed already. Tried are the layer type and phase where the
    bottleneck grew (`place`), then every layer type and phase, alone, then few or many rows; and with `by_chip`, where other accelerators
    are judged too, this accelerator alone.
    """
    whole, settings = list(knobs), list[Setting]()
    for knob in knobs:
        others = frozenset(whole) - {knob}
        start = trials.mapping(others)
        for setting in _candidates(trials, knob, place, by_chip=by_chip):
            mapping = replace(start, settings=(*start.settings, *settings, setting))
            if trials.seems_to_release(mapping):
                # Only the first that seems to is confirmed, for a confirmation is a gate of its own.
                if trials.confirmed(mapping):
                    whole.remove(knob)
                    settings.append(setting)
                break
    if not settings:
        return None
    start = trials.mapping(whole)
    return NarrowerRevert(knobs=tuple(whole), settings=tuple(settings), mapping=replace(start, settings=(*start.settings, *settings)))


def _candidates(trials: Trials, knob: str, place: Place, *, by_chip: bool) -> Iterator[Setting]:
    name, marker, text = knob.partition("@")
    scope = parse_scope(text) if marker else EVERYWHERE
    own = [setting for mapping in (trials.baseline, trials.candidate) for setting in mapping.settings if setting.name == name]
    if any(setting.knob != knob for setting in own):
        return  # narrower or wider settings of the same knob decide places too: which one is undone would not be told by one scope
    value = trials.baseline.value(name, layer=scope.layer, phase=scope.phase, rows=scope.rows_from or None)
    if isinstance(value, TileTables):
        return
    layers = tuple(dict.fromkeys(trials.replayer.table(trials.candidate).kernels["layer_type"].to_pylist()))
    for narrower in dict.fromkeys(_scopes(KNOBS[name], scope, place, layers)):
        yield Setting(name=name, scope=narrower, value=value)
    if by_chip and scope.chip is None:
        yield Setting(name=name, scope=replace(scope, chip=trials.replayer.hardware.name), value=value)


def _scopes(definition: KnobDefinition, scope: Scope, place: Place, layers: tuple[str, ...]) -> Iterator[Scope]:
    """Yield narrower scopes that the knob takes, those where the bottleneck grew first."""
    free_layers = [layer for layer in definition.layers if layer in layers] if scope.layer is None else []
    free_phases = list(PHASES) if definition.phases and scope.phase is None else []
    at_layers = [place[0]] if place[0] in free_layers else []
    at_phases = [place[1]] if place[1] in free_phases else []
    for layer, phase in itertools.product(at_layers, at_phases):
        if (layer, phase) != ("lm_head", "prefill"):
            yield replace(scope, layer=layer, phase=phase)
    for layer in (*at_layers, *free_layers):
        if (layer, scope.phase) != ("lm_head", "prefill"):
            yield replace(scope, layer=layer)
    for phase in (*at_phases, *free_phases):
        if (scope.layer, phase) != ("lm_head", "prefill"):
            yield replace(scope, phase=phase)
    if definition.rows and scope.rows_from == 0 and scope.rows_to is None:
        yield replace(scope, rows_to=SMALL_ROWS)
        yield replace(scope, rows_from=SMALL_ROWS + 1)
