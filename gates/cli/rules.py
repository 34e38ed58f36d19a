"""What a gate judges by: policy and owners. With a ``git:`` baseline they are the commit's, so that a change cannot loosen its own gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gates.cli.arms import relative_name
from gates.cli.commits import Commit, text_of_file
from gates.cli.inputs import project_folder
from gates.finding import Finding
from gates.project import Project
from replay import documents
from replay.errors import SpecError
from replay.provenance import digest_bytes

if TYPE_CHECKING:
    from gates.owners import OwnerMatch, Owners
    from gates.policy import PolicySpec

Result = TypeVar("Result")

SHIPPED_POLICY = "default policy"
_LOAD_KEYS = ("model", "hardware", "traces", "reference", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Policy and owners as they are used, how artifacts name them, and what to say about where they come from."""

    policy: PolicySpec
    policy_name: str
    owners: Owners
    owners_name: str | None
    owners_digest: str | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One version of the project: the work tree's, or that of the baseline's commit."""

    project: Project | None
    folder: Path
    """Names in artifacts are relative to it."""
    read: Callable[[Path], str | None]
    commit: Commit | None = None

    def name(self, path: Path) -> str:
        plain = relative_name(path, self.folder)
        return plain if self.commit is None or not self.commit.holds(path) else self.commit.label(plain)

    def text(self, path: Path, what: str) -> str | None:
        """Return a file's text; None where a commit lacks it.

        Raises:
            SpecError: the work tree lacks it, or it is empty there.
        """
        return self.read(path) if self.commit is not None else documents.decode(documents.read_bytes(path, what), str(path), what)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    spec: PolicySpec
    name: str
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owners:
    owners: Owners
    name: str | None = None
    digest: str | None = None


def read_rules(
    *, policy: str | None, owners: str | None, project: Project | None, before: Project | None, commit: Commit | None, mapping: Path | None
) -> Rules:
    """Return the rules: those named on the command line, else the commit's where there is one, else the project's.

    `before` is the project at the commit; `mapping` is the file whose CODEOWNERS is the fallback for owners.

    Raises:
        SpecError: a file cannot be used.
    """
    here = _Side(project=project, folder=project_folder(project), read=text_of_file)
    committed = replace(here, project=before, read=commit.text, commit=commit) if commit is not None else None
    findings: list[Finding] = []
    chosen_policy = _chosen_policy(policy, here, committed, findings)
    chosen_owners = _chosen_owners(owners, here, committed, mapping, findings)
    findings += _warned(chosen_owners.owners)
    return Rules(
        policy=chosen_policy.spec,
        policy_name=chosen_policy.name,
        owners=chosen_owners.owners,
        owners_name=chosen_owners.name,
        owners_digest=chosen_owners.digest,
        findings=tuple(findings),
    )


def load_changed(project: Project | None, before: Project | None, given: frozenset[str]) -> Iterator[Finding]:
    """Find what a change sets in the project file about the load it is judged on; `given` are the options of the command line."""
    keys = [key for key in _LOAD_KEYS if key not in given and getattr(project, key, None) != getattr(before, key, None)]
    if keys:
        message = f"the project file differs from that of the baseline's commit in {', '.join(keys)}; the new one was used"
        yield _informs("project_changed", message)


def _chosen_policy(option: str | None, here: _Side, committed: _Side | None, findings: list[Finding]) -> _Policy:
    if option is not None:
        named = _policy_at(Path(option), here)
        if committed is not None and _differ(named, _attempt(lambda: _policy_of(committed))):
            message = f"{named.name}, which --policy names, was used; it is not the policy of the baseline's commit"
            findings.append(_informs("policy_changed", message))
        return named
    if committed is None:
        return _policy_of(here)
    used, now = _policy_of(committed), _attempt(lambda: _policy_of(here))
    if _differ(used, now):
        new = now.name if now else "the new policy, which cannot be read,"
        message = f"{new} differs from the policy of the baseline's commit; {used.name} was used. To use the new one, give --policy"
        findings.append(_informs("policy_changed", message))
    return used


def _differ(one: _Policy, other: _Policy | None) -> bool:
    return other is None or one.spec.digest != other.spec.digest or one.path != other.path


def _policy_of(side: _Side) -> _Policy:
    from gates.policy import default_policy

    text = side.project.policy if side.project else None
    if side.project is None or text is None:
        return _Policy(spec=default_policy(), name=SHIPPED_POLICY)
    return _policy_at(side.project.path_of(text), side)


def _policy_at(path: Path, side: _Side) -> _Policy:
    from gates.policy import default_policy, parse_policy

    text = side.text(path, "a policy file")
    if text is None:
        return _Policy(spec=default_policy(), name=SHIPPED_POLICY)
    where = side.name(path) if side.commit is not None else str(path)
    return _Policy(spec=parse_policy(text, where), name=side.name(path), path=path.resolve())


def _chosen_owners(option: str | None, here: _Side, committed: _Side | None, mapping: Path | None, findings: list[Finding]) -> _Owners:
    if committed is None:
        return _owners_of(here, option, mapping)
    before = _owners_of(committed, None, mapping)
    now = _owners_of(here, option, mapping) if option is not None else _attempt(lambda: _owners_of(here, None, mapping))
    if now is None or _answers(now.owners) != _answers(before.owners):
        used = "those that --owners names were used" if option is not None else "those of the commit were used"
        findings.append(_informs("owners_changed", f"the owners differ from those of the baseline's commit; {used}"))
    return now if now is not None and option is not None else before


def _owners_of(side: _Side, option: str | None, mapping: Path | None) -> _Owners:
    from gates.codeowners import find_codeowners
    from gates.owners import Owners, codeowners_match, parse_owners

    found = find_codeowners(mapping, side.read) if mapping is not None else None
    fallback: OwnerMatch | None = codeowners_match(*found) if found is not None else None
    skipped = found[0].warnings if found is not None else ()
    text = option if option is not None else side.project.owners if side.project else None
    path = None if text is None else Path(text) if option is not None or side.project is None else side.project.path_of(text)
    content = side.text(path, "an owners file (TOML)") if path is not None else None
    if path is None or content is None:
        return _Owners(owners=Owners(fallback=fallback, warnings=skipped))
    name = side.name(path)
    owners = parse_owners(content, name, fallback=fallback)
    return _Owners(owners=replace(owners, warnings=(*owners.warnings, *skipped)), name=name, digest=digest_bytes(content.encode()))


def _answers(owners: Owners) -> list[tuple[str | None, ...]]:
    """Return what the owners say, without the lines that say it."""
    rules: list[tuple[str | None, ...]] = [(rule.kind, rule.pattern, rule.match.owner, rule.match.contact) for rule in owners.rules]
    return rules if owners.fallback is None else [*rules, ("fallback", owners.fallback.owner)]


def _warned(owners: Owners) -> Iterator[Finding]:
    yield from (_informs("owners_rule_matches_nothing", warning) for warning in owners.warnings)


def _attempt(read: Callable[[], Result]) -> Result | None:
    """Return None where the version that is not used cannot be read: it differs from the one that is, and that is all there is to say."""
    try:
        return read()
    except SpecError:
        return None


def _informs(code: str, message: str) -> Finding:
    return Finding(code=code, message=message, effect="informs", stage="release_decision")
