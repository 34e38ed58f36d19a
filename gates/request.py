"""What a gate is asked: two arms, the cells to judge them on, a policy and owners - all read and checked already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gates.finding import Finding
from gates.owners import Owners
from gates.policy import PolicySpec
from replay.provenance import TraceKind, digest_document
from replay.specs.hardware import HardwareSpec
from replay.specs.mapping import MappingSpec
from replay.specs.model import ModelSpec

if TYPE_CHECKING:
    from gates.checks.drift import HistoryInput
    from gates.selfcheck.document import CitedSelfcheck
    from replay.ingress.measured.measured_run import MeasuredRun
    from replay.ingress.quality.result import QualityResult
    from replay.ingress.trace import Trace

Evaluated = tuple["QualityResult", "QualityResult"] | None
"""Quality results of the baseline and of the candidate, where there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCell:
    """One (trace, accelerator) that a bundle or run directory was made on."""

    trace_name: str
    trace_digest: str
    trace_kind: TraceKind
    trace_locator: str
    """Where the trace lies as seen from the project."""
    hardware: HardwareSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side: a mapping, and how people name where it came from."""

    mapping: MappingSpec
    label: str
    """A path relative to the project, or ``git:REF:path``."""
    text: str | None = None
    """The mapping file's text, where there is one to patch."""
    file: str | None = None
    """Name of that file, relative to the project."""
    commits: Mapping[int, str] = field(default_factory=dict)
    """Commit that last changed each line of the file, where the other side is a commit."""
    model: ModelSpec | None = None
    """The model that a bundle or run directory was made for."""
    recorded: tuple[RecordedCell, ...] = ()
    """What a bundle or run directory was made on; every cell it is judged on has to be among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One (trace, accelerator, model) on which the arms are judged."""

    trace: Trace
    trace_name: str
    """How artifacts name the file."""
    model: ModelSpec
    hardware: HardwareSpec
    trace_locator: str | None = None
    """Where the trace lies as seen from the project, where it is a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityInput:
    """Evaluations of both arms. The candidate's is read only when the plan is made."""

    baseline_name: str
    baseline: QualityResult
    candidate_name: str
    read_candidate: Callable[[], QualityResult]
    """Raises InputError where it cannot be used."""

    def read(self) -> tuple[QualityResult, QualityResult]:
        """Return both results, the candidate's read now."""
        return self.baseline, self.read_candidate()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """Everything a gate decides on; the verdict depends on nothing else."""

    baseline: Arm
    candidate: Arm
    cells: tuple[Cell, ...]
    policy: PolicySpec
    policy_name: str
    owners: Owners
    owners_name: str | None
    owners_digest: str | None
    seed: int
    jobs: int = 1
    as_of: str | None = None
    """ISO time that ages are counted from, where the policy limits one or the command line gives it."""
    selfcheck: CitedSelfcheck | None = None
    """The self-check that the verdict cites."""
    reference: Trace | None = None
    """Recent traffic that every trace is compared with."""
    reference_name: str | None = None
    reference_locator: str | None = None
    quality: QualityInput | None = None
    """Evaluations of both arms."""
    findings: tuple[Finding, ...] = ()
    """About the inputs as a whole; they count in every cell."""
    history: HistoryInput | None = None
    """Earlier verdicts, where the policy has a budget for drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredArm:
    """One side that was measured: its runs, each with how artifacts name its file, and the mapping it says it ran."""

    label: str
    runs: tuple[tuple[str, MeasuredRun], ...]
    mapping: MappingSpec | None = None
    mapping_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArchive:
    """Earlier runs of one configuration: what they say about how much runs differ."""

    label: str
    sets: tuple[tuple[tuple[str, MeasuredRun], ...], ...]
    """Runs with how artifacts name their file; those of one set are repeats under one load, and sets may differ in anything else."""

    @property
    def digest(self) -> str:
        """Digest of which runs are in which set, and of what their files and steps are."""
        return digest_document([[run.facts.to_document() for _, run in one] for one in self.sets])

    def under(self, load: tuple[float | None, int | None, str | None]) -> list[list[MeasuredRun]]:
        """Return the sets' runs under one load, without sets that have none."""
        found = ([run for _, run in one if run.load == load] for one in self.sets)
        return [runs for runs in found if runs]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRequest:
    """Everything a gate of measured runs decides on. The candidate is read only when the plan is made."""

    baseline: MeasuredArm
    read_candidate: Callable[[], MeasuredArm]
    """Raises InputError where the candidate cannot be used."""
    policy: PolicySpec
    policy_name: str
    owners: Owners
    owners_name: str | None
    owners_digest: str | None
    seed: int
    as_of: str | None = None
    findings: tuple[Finding, ...] = ()
    history: HistoryInput | None = None
    quality: QualityInput | None = None
    trace: Trace | None = None
    """What both arms were driven with, where the command line names it."""
    trace_name: str | None = None
    trace_locator: str | None = None
    hardware: str | None = None
    """Name on the command line; else what the baseline's file says."""
    archive: RunArchive | None = None
    model: str | None = None
