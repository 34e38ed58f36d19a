"""The mapping file of a tuned mapping: every line that was tuned says why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from replay.errors import InvariantError
from replay.specs.knobs import Value
from replay.specs.mapping import MappingSpec, Setting, parse_mapping
from replay.specs.scopes import UNBOUNDED_ROWS
from replay.specs.toml_text import toml_key, toml_value
from replay.tuning.candidates import AUTO
from replay.tuning.moves import Move, RangeGain
from replay.tuning.tails import METRICS, TailTuned
from replay.tuning.tune import Tuned
from replay.units import format_seconds

Why = Callable[[Setting], Iterable[str]]


def tuned_text(tuned: Tuned, mapping_name: str, heading: Iterable[str]) -> str:
    """Return the TOML text of a mapping tuned for the time of steps; `heading` says what for."""
    gain = f"{format_seconds(tuned.before_s)} -> {format_seconds(tuned.after_s)} ({tuned.after_s / tuned.before_s - 1.0:+.2%})"
    lines = [
        *heading,
        f"Time of all steps as predicted: {gain}. Every gain below is a prediction too: judge the change with `replay gate`.",
    ]
    lines += list(_back_to_auto([kept.move for kept in tuned.kept], tuned.before_s))
    if not tuned.kept:
        lines.append("Nothing wins by more than 0.1 % of the time of what it governs: the settings are those given.")

    def why(setting: Setting) -> Iterator[str]:
        gains = [gain for kept in tuned.kept for gain in _gains_of(setting, kept.move)]
        if gains:
            yield _gain_text(gains, tuned.before_s)

    return _text(tuned.mapping, mapping_name, lines, why)


def tail_text(tuned: TailTuned, mapping_name: str, heading: Iterable[str]) -> str:
    """Return the TOML text of a mapping tuned for tails."""
    change = _tails_text(tuned.before.seconds, tuned.after.seconds)
    lines = [
        *heading,
        f"p99 after {tuned.replays_count} replays: {change}. Gains below are predictions: judge the change with `replay gate`.",
    ]
    for kept in tuned.kept:
        if kept.move is not None and any(gain.value == AUTO for gain in kept.move.gains):
            lines.append(f"{kept.move} goes back to auto: {_tails_text(kept.before.seconds, kept.after.seconds)}")
    if not tuned.kept:
        lines.append("Nothing improves the p99s by more than 0.1 % without a loss in one of them: the settings are those given.")

    def why(setting: Setting) -> Iterator[str]:
        for kept in tuned.kept:
            if kept.knob == setting.knob if kept.move is None else any(_gains_of(setting, kept.move)):
                yield f"p99 {_tails_text(kept.before.seconds, kept.after.seconds)} when it was set"

    return _text(tuned.mapping, mapping_name, lines, why)


def _text(mapping: MappingSpec, name: str, heading: Iterable[str], why: Why) -> str:
    """Return the file.

    Raises:
        InvariantError: it does not parse to the mapping.
    """
    lines = [*(f"# {line}" for line in heading), f"name = {toml_value(name)}"]
    for section in dict.fromkeys(setting.name.split(".")[0] for setting in mapping.settings):
        lines += ["", f"[{section}]"]
        for setting in mapping.settings:
            if setting.name.split(".")[0] == section:
                lines += [f"# {reason}" for reason in why(setting)]
                lines.append(f"{toml_key(setting.knob.split('.', 1)[1])} = {toml_value(setting.value)}")
    text = "\n".join(lines) + "\n"
    known = {table.path: table for table in mapping.tables}
    if parse_mapping(text, name, lambda path: known[path].text).digest != mapping.digest:
        raise InvariantError("the text of the tuned mapping does not parse to it")
    return text


def _gains_of(setting: Setting, move: Move) -> Iterator[RangeGain]:
    """Yield the gains of a move that a setting makes."""
    scope = setting.scope
    if move.knob != setting.name or (move.place is not None and scope.layer not in (None, move.place.layer)):
        return
    if move.place is not None and scope.phase not in (None, move.place.phase):
        return
    last = UNBOUNDED_ROWS if scope.rows_to is None else scope.rows_to
    for gain in move.gains:
        if gain.value == setting.value and scope.rows_from <= gain.last_row and gain.first_row <= last:
            yield gain


def _back_to_auto(moves: list[Move], total_s: float) -> Iterator[str]:
    for move in moves:
        gains = [gain for gain in move.gains if gain.value == AUTO]
        if gains:
            yield f"{move} goes back to auto: {_gain_text(gains, total_s)}"


def _gain_text(gains: list[RangeGain], total_s: float) -> str:
    """Return what gains come to: what was set before, the share of the traffic's time, and what is saved of it and of all."""
    before_s, after_s = sum(gain.before_s for gain in gains), sum(gain.after_s for gain in gains)
    was = ", ".join(dict.fromkeys(_shown(gain.was) for gain in gains))
    saved = 1.0 - after_s / before_s
    whole = f"{(before_s - after_s) / total_s:.2%} of all"
    return f"was {was}; {before_s / total_s:.1%} of the time of all steps, {saved:.1%} less there = {whole}"


def _shown(value: Value) -> str:
    if isinstance(value, tuple) and len(value) > 3:
        return f"{len(value)} sizes"
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _tails_text(before: dict[str, float], after: dict[str, float]) -> str:
    there = [name for name in METRICS if before.get(name) and name in after]
    return ", ".join(f"{name.removesuffix('_s').upper()} {after[name] / before[name] - 1.0:+.1%}" for name in there)
