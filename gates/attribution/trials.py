"""Hybrids of two mappings, each replayed and judged once: the experiment every statement about a cause rests on.

A hybrid is named by the set of changed knobs that are *reverted*: the empty set is the candidate, the full set the baseline,
all but one the baseline with only that knob changed. Both arms of every trial see the same trace and seed, so differences
are due to the knobs alone (common random numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gates.claim import Claim
from replay.assembly.run import Run
from replay.errors import SpecError
from replay.pipeline import Replayer
from replay.specs.knobs import Stage
from replay.specs.mapping import KnobChange, MappingSpec, diff


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the gate says about one mapping against the baseline in one cell."""

    decision: str
    basis: str
    claims: tuple[Claim, ...]


Judge = Callable[[MappingSpec, Run], Judgement]
"""The cell's gate (claims, findings, decision) for a mapping and its run, against the cell's baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One hybrid, judged; `problem` instead of a judgement where the hybrid cannot be built (knobs that need each other)."""

    reverted: frozenset[str]
    mapping: MappingSpec
    judgement: Judgement | None
    problem: str | None

    def value(self, claim_id: str) -> float | None:
        """Return the hybrid's value of a claim's metric, in the claim's unit."""
        claims = self.judgement.claims if self.judgement is not None else ()
        return next((claim.candidate for claim in claims if claim.id == claim_id), None)


class Trials:
    """All hybrids of one cell; each is replayed and judged at most once."""

    def __init__(
        self,
        *,
        replayer: Replayer,
        baseline: MappingSpec,
        candidate: MappingSpec,
        judge: Judge,
        judgement: Judgement,
        confirm: Judge | None = None,
    ) -> None:
        """`judgement` is the candidate's own, which the gate has already.

        `judge` may be quick, for every hybrid is judged; what releases by it does so only if `confirm`, the full gate, says so too.
        """
        self.replayer, self.baseline, self.candidate = replayer, baseline, candidate
        self._confirm, self._confirmed = confirm, dict[frozenset[str], bool]()
        self.changes: dict[str, KnobChange] = {change.knob: change for change in diff(baseline, candidate)}
        self._judge = judge
        self._trials = {frozenset[str](): Trial(reverted=frozenset(), mapping=candidate, judgement=judgement, problem=None)}

    @property
    def knobs(self) -> frozenset[str]:
        """Every knob that differs."""
        return frozenset(self.changes)

    @property
    def judgement(self) -> Judgement:
        """The candidate's judgement."""
        judgement = self._trials[frozenset()].judgement
        assert judgement is not None
        return judgement

    def mapping(self, reverted: Iterable[str]) -> MappingSpec:
        """Return the candidate with some knobs as the baseline has them; with all of them it is the baseline itself."""
        chosen = frozenset(reverted)
        if chosen == self.knobs:
            return self.baseline
        return self.candidate.reverted(chosen, self.baseline) if chosen else self.candidate

    def only(self, changed: Iterable[str]) -> MappingSpec:
        """Return the baseline with only these knobs as the candidate has them."""
        return self.mapping(self.knobs - frozenset(changed))

    def judged(self, reverted: Iterable[str]) -> Trial:
        """Return the judged hybrid with these knobs reverted."""
        key = frozenset(reverted)
        if key not in self._trials:
            self._trials[key] = self._try(key)
        return self._trials[key]

    def judged_mapping(self, mapping: MappingSpec) -> Judgement | None:
        """Return what the gate says about a hybrid, None where it cannot be built."""
        reverted = frozenset(change.knob for change in diff(mapping, self.candidate))
        return self.judged(reverted).judgement

    def releases(self, reverted: Iterable[str]) -> bool:
        """Return whether the full gate would release the hybrid with these knobs reverted."""
        key = frozenset(reverted)
        if key not in self._confirmed:
            trial = self.judged(key)
            found = trial.judgement is not None and trial.judgement.decision == "release"
            self._confirmed[key] = found and self.confirmed(trial.mapping)
        return self._confirmed[key]

    def seems_to_release(self, mapping: MappingSpec) -> bool:
        """Return whether the quick gate would release a mapping that need not be a hybrid."""
        try:
            return self._judge(mapping, self.replayer.run(mapping)).decision == "release"
        except SpecError:
            return False

    def confirmed(self, mapping: MappingSpec) -> bool:
        """Return whether the full gate, too, releases a mapping that the quick one does."""
        return self._confirm is None or self._confirm(mapping, self.replayer.run(mapping)).decision == "release"

    def of_stages(self, *stages: Stage) -> frozenset[str]:
        """Return the changed knobs that these stages own."""
        return frozenset(knob for knob, change in self.changes.items() if change.definition.stage in stages)

    def _try(self, reverted: frozenset[str]) -> Trial:
        mapping = self.mapping(reverted)
        try:
            judgement = self._judge(mapping, self.replayer.run(mapping))
        except SpecError as error:
            return Trial(reverted=reverted, mapping=mapping, judgement=None, problem=str(error))
        return Trial(reverted=reverted, mapping=mapping, judgement=judgement, problem=None)


Effects = Mapping[str, float]
"""Harm of each knob: how much worse the explained metric is with it, in the unit of the claim's margin (see `worsening`)."""
