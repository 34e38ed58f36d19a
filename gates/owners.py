"""Owners: who answers for a knob, a layer type or a stage - from the owners file, else from the mapping file's CODEOWNERS."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gates.codeowners import Codeowners
from gates.finding import CODES
from replay import documents
from replay.errors import InvariantError, nearest
from replay.specs.knobs import KNOBS, STAGES
from replay.specs.scopes import LAYER_TYPES, parse_scope

UNOWNED = "unowned"
_WHAT = "an owners file (TOML)"
_VOCABULARY = {"knob": tuple(KNOBS), "check": tuple(sorted(CODES)), "layer": LAYER_TYPES, "stage": STAGES}
"""What a rule of each kind can match, from the narrowest kind to the widest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerMatch:
    """Who owns a finding, and by which line; `source` is None where nobody does."""

    owner: str
    contact: str | None = None
    escalation: str | None = None
    """Whom to call where the contact does not answer."""
    source: str | None = None
    """``owners.toml:12`` or ``.github/CODEOWNERS:3``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRule:
    """One rule of an owners file."""

    kind: str
    """`knob`, `check`, `layer` or `stage`."""
    pattern: str
    """Over knob ids, codes of findings, layer types or stage ids: ``*`` is any text, ``?`` any one character, the rest is literal."""
    match: OwnerMatch

    def covers(self, text: str) -> bool:
        """Return whether the pattern covers a knob id (or its name without the scope), code, layer type or stage id."""
        return _covers(self.pattern, text) or (self.kind == "knob" and _covers(self.pattern, text.partition("@")[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """The rules of an owners file and what is owned where none matches."""

    rules: tuple[OwnerRule, ...] = ()
    fallback: OwnerMatch | None = None
    """Owner of the mapping file by CODEOWNERS."""
    warnings: tuple[str, ...] = ()
    """Rules that can match nothing."""

    def of(self, finding: str) -> OwnerMatch:
        """Return the owner of a finding: a knob id, a layer type (``moe`` or ``layer:moe``) or a stage id.

        A knob is matched by knob rules first, then by its scope's layer type, then by its stage; within a kind the last rule
        that matches wins.
        """
        return self._first(_places(finding))

    def of_check(self, code: str, stage: str) -> OwnerMatch:
        """Return the owner of a finding of a check: by its code, else by the stage that it is about."""
        return self._first([("check", code), ("stage", stage)])

    def _first(self, places: list[tuple[str, str]]) -> OwnerMatch:
        for kind, text in places:
            for rule in reversed(self.rules):
                if rule.kind == kind and rule.covers(text):
                    return rule.match
        return self.fallback or OwnerMatch(owner=UNOWNED)


def parse_owners(text: str, where: str, *, fallback: OwnerMatch | None = None) -> Owners:
    """Return the owners of a TOML text; `where` names the file in errors and sources.

    Raises:
        SpecError: it is not TOML or violates the schema `owners.v1`.
    """
    document = documents.parse_toml(text, where)
    documents.check(document, "owners.v1", where, text)
    headers = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*rules\s*\]\]", line)]
    rules, warnings = [], []
    for index, entry in enumerate(document["rules"]):
        place = f"{where}:{headers[index]}" if len(headers) == len(document["rules"]) else where
        prefix, _, pattern = entry["match"].rpartition(":")
        match = OwnerMatch(owner=entry["team"], contact=entry.get("contact"), escalation=entry.get("escalation"), source=place)
        rule = OwnerRule(kind=prefix or "knob", pattern=pattern, match=match)
        problem = _problem(rule)
        if problem:
            warnings.append(f"{place}: {entry['match']!r} matches nothing: {problem}")
        rules.append(rule)
    return Owners(rules=tuple(rules), fallback=fallback, warnings=tuple(warnings))


def read_owners(path: Path, *, fallback: OwnerMatch | None = None) -> Owners:
    """Return the owners of a file (see `parse_owners`); sources and errors carry the path as given."""
    return parse_owners(documents.decode(documents.read_bytes(path, _WHAT), str(path), _WHAT), str(path), fallback=fallback)


def codeowners_match(codeowners: Codeowners, path: PurePosixPath) -> OwnerMatch | None:
    """Return who owns a repository path by CODEOWNERS, or None where nobody does."""
    rule = codeowners.rule_of(path)
    if rule is None or not rule.owners:
        return None
    return OwnerMatch(owner=" ".join(rule.owners), source=f"{codeowners.where}:{rule.line}")


def _places(finding: str) -> list[tuple[str, str]]:
    """Return (kind, text) to look up, the narrowest first."""
    prefix, _, text = finding.rpartition(":")
    name, _, scope = finding.partition("@")
    if name in KNOBS:
        layer = parse_scope(scope).layer if scope else None
        return [("knob", finding), *([("layer", layer)] if layer else []), ("stage", KNOBS[name].stage)]
    for kind in ("layer", "stage"):
        if prefix in ("", kind) and text in _VOCABULARY[kind]:
            return [(kind, text)]
    raise InvariantError(f"{finding!r} is neither a knob id, a layer type nor a stage, so it has no owner")


def _covers(pattern: str, text: str) -> bool:
    wild = {"*": ".*", "?": "."}
    return re.fullmatch("".join(wild.get(character, re.escape(character)) for character in pattern), text) is not None


def _problem(rule: OwnerRule) -> str | None:
    """Return why a rule can match nothing, or None; what stands before ``@`` must match a knob's name by itself."""
    known = _VOCABULARY[rule.kind]
    name, at, scope = rule.pattern.partition("@")
    if not any(_covers(name, text) for text in known) or (at and rule.kind != "knob"):
        return f"no {rule.kind} is called so{nearest(name, known)}"
    return _scope_problem(scope) if at and "*" not in scope and "?" not in scope else None


def _scope_problem(scope: str) -> str | None:
    try:
        parse_scope(scope)
    except ValueError as error:
        return str(error)
    return None
