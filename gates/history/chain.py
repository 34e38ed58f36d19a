"""Cumulative drift: the sum of the log point estimates of every release on the way from the anchor to a mapping.

Ten successive +1 % changes all pass a gate against the previous release; their sum does not pass a budget. Releases are chained by
identity: each one's baseline is the candidate of an earlier one, so that a change that was gated five times counts once, and one that
shipped past the gate leaves a gap that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gates.history.rows import ClaimRow, VerdictRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What one released verdict says about one claim of a cell."""

    verdict: VerdictRow
    claim: ClaimRow | None
    """None where that release did not judge the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Drift of one claim since the anchor."""

    anchor: str
    """Identity of the mapping that is counted from."""
    carried: float | None
    """Sum of the logs of the worsenings since then (positive: worse); None where it is not known."""
    verdicts: tuple[str, ...] = ()
    """Digests of the verdicts it was summed over, newest first."""
    gap: str | None = None
    """Why it is not known, in words."""


Cell = tuple[str, str, str]
"""Trace, accelerator, model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Every verdict of a ledger with its claims, in the order they were appended."""

    verdicts: tuple[VerdictRow, ...] = ()
    claims: tuple[ClaimRow, ...] = ()

    def releases(self, cell: Cell, key: str) -> tuple[Release, ...]:
        """Return the releases that judged a cell, oldest first, with what they say about one claim."""
        of_cell = [row for row in self.claims if (row.trace, row.hardware, row.model) == cell]
        judged = {row.verdict for row in of_cell}
        rows = {row.verdict: row for row in of_cell if row.claim_key == key}
        released = [one for one in self.verdicts if one.decision == "release" and one.digest in judged]
        return tuple(Release(verdict=one, claim=rows.get(one.digest)) for one in released)

    def latest_name(self, cell: Cell, candidate: str) -> Cell:
        """Return the cell in which `candidate` was released last on the same accelerator and model, as the only one of its verdict; else
        `cell` itself.
        """
        for verdict in reversed(self.verdicts):
            if verdict.decision == "release" and verdict.candidate == candidate:
                cells = {(row.trace, row.hardware, row.model) for row in self.claims if row.verdict == verdict.digest}
                if len(cells) == 1 and next(iter(cells))[1:] == cell[1:]:
                    return next(iter(cells))
        return cell

    def called(self, cell: Cell) -> History:
        """Return the history with the cells of verdicts that judged one alone, on this accelerator and model, under one trace's name."""
        alone: dict[str, set[Cell]] = {}
        for row in self.claims:
            alone.setdefault(row.verdict, set()).add((row.trace, row.hardware, row.model))
        single = {digest for digest, cells in alone.items() if len(cells) == 1 and next(iter(cells))[1:] == cell[1:]}
        claims = (replace(row, trace=cell[0]) if row.verdict in single else row for row in self.claims)
        return replace(self, claims=tuple(claims))

    def undeclared(self, cell: Cell, declared: Iterable[str]) -> tuple[str, ...]:
        """Return the claims that the ledger holds for a cell and that no plan declares any more; they are named, never judged."""
        known = {row.claim_key for row in self.claims if (row.trace, row.hardware, row.model) == cell}
        return tuple(sorted(known - set(declared)))


def drift_of(releases: Sequence[Release], to: str, anchor: str | None = None) -> Drift:
    """Return a claim's drift from the anchor to the mapping `to`.

    Without a named anchor it is the baseline of the first release that judged the claim, and where there is none `to` itself. A name
    may be the start of a digest. The way is walked backwards: of several releases of one mapping the latest counts.
    """
    first = next((one for one in releases if one.claim is not None), None)
    start = anchor or (first.verdict.baseline if first is not None else to)
    place, carried, passed, end = to, 0.0, [], len(releases)
    while not _is(place, start):
        step = next((index for index in reversed(range(end)) if releases[index].verdict.candidate == place), None)
        if step is None:
            return Drift(anchor=start, carried=None, gap=f"no release of {place[7:19]} lies between it and the anchor {_short(start)}")
        release, end = releases[step], step
        worsening = release.claim.worsening if release.claim is not None else None
        if worsening is None:
            return Drift(anchor=start, carried=None, gap=f"the release of {place[7:19]} did not record it as a ratio")
        carried, place = carried + worsening, release.verdict.baseline
        passed.append(release.verdict.digest)
    return Drift(anchor=place, carried=carried, verdicts=tuple(passed))


def _is(identity: str, name: str) -> bool:
    return identity == name or identity.removeprefix("sha256:").startswith(name.removeprefix("sha256:"))


def _short(name: str) -> str:
    return name.removeprefix("sha256:")[:12]
