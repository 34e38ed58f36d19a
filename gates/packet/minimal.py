"""The smallest window of a trace that still shows a regression: what an engineer replays first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gates.attribution.severity import by_severity, worsening
from gates.judge import judge
from replay.ingress.normalize import slice_trace

if TYPE_CHECKING:
    import pyarrow as pa

    from gates.gate import JudgedCell
    from gates.plan import PlannedCell
    from replay.ingress.trace import Trace
    from replay.specs.mapping import MappingSpec

Document = dict[str, Any]
Shows = Callable[["Trace"], Document | None]
"""Returns the claim on a window where it is beyond its margin there, else None."""
SLICE = "minimal-slice"
_FEWEST = 16
"""Requests below which a window is not halved any further: fewer do not fill a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimalSlice:
    """A window of a trace, and the claim that is beyond its margin on it."""

    requests: pa.Table
    start_s: float
    """Its first arrival in the trace that it was cut from."""
    claim: Document

    def to_document(self) -> Document:
        """Return the JSON form that lies beside the requests."""
        kept = ("id", "baseline", "candidate", "ratio", "difference", "margin", "unit")
        return {"start_s": self.start_s, "requests": self.requests.num_rows, "claim": {name: self.claim[name] for name in kept}}


def minimal_slice(cell: JudgedCell, planned: PlannedCell, mappings: tuple[MappingSpec, MappingSpec]) -> MinimalSlice | None:
    """Return the smallest window, found by halving, on which the worst disproved claim of a regression is beyond its margin.

    Each window is replayed under both mappings as a trace of its own, from an empty server. None where nothing was disproved, the
    trace has no arrivals, or no half of it shows the regression: then the trace itself is what shows it.
    """
    ids = {claim.id for claim in planned.replayed.claims}
    claims = [claim.to_document() for claim in cell.verdict.claims if claim.outcome == "disproved" and claim.id in ids]
    disproved = by_severity(claims)
    trace = cell.replayer.trace
    if cell.verdict.basis != "regression" or not disproved or not trace.has_arrivals:
        return None
    alone = replace(planned, claims=tuple(claim for claim in planned.claims if claim.id == disproved[0]["id"]))

    def shows(window: Trace) -> Document | None:
        runs = [cell.replayer.run_on(window, mapping) for mapping in mappings]
        claim = judge(alone, runs[0], runs[1])[0].to_document()
        worse = worsening(claim)
        few = claim["n_beyond"] is not None and claim["n_beyond"] < planned.policy.minimum_beyond
        return claim if worse is not None and worse > claim["margin"] and not few else None

    found = _halved(trace, shows)
    return None if found is None else MinimalSlice(requests=found[0].requests, start_s=found[1], claim=found[2])


def _halved(trace: Trace, shows: Shows) -> tuple[Trace, float, Document] | None:
    """Return the last window of successive halvings that shows it, where it starts, and its claim."""
    first, count = 0, trace.requests.num_rows
    found: tuple[Trace, float, Document] | None = None
    while count >= 2 * _FEWEST:
        for start in _starts(first, count):
            window, start_s = _window(trace, start, count // 2)
            claim = shows(window)
            if claim is not None:
                first, found = start, (window, start_s, claim)
                break
        else:
            break
        count //= 2
    return found


def _starts(first: int, count: int) -> Iterator[int]:
    """Yield where the halves of a window start: the first, the last, and the one between."""
    yield from (first, first + count - count // 2, first + count // 4)


def _window(trace: Trace, start: int, count: int) -> tuple[Trace, float]:
    start_s = float(trace.requests["arrival_s"][start].as_py())
    return slice_trace(trace, start_s=start_s, max_requests=count), start_s
