"""gate(request) -> verdict: plan, replay both arms cell by cell, judge, find the cause, write it down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gates.attribution.cause import CauseQuestion, find_cause
from gates.attribution.patch import MappingFile
from gates.attribution.trials import Judgement
from gates.checks import Evidence, run_checks
from gates.finding import Finding
from gates.judge import judge
from gates.plan import Plan, PlannedCell, cell_of, make_plan
from gates.request import Cell, GateRequest
from gates.statement import InputRecord
from gates.sustained import sustained_figures
from gates.verdict import CellVerdict, Verdict, cell_verdict, combine, decide_cell
from replay.pipeline import Replayer

if TYPE_CHECKING:
    from replay.assembly.run import Run
    from replay.specs.mapping import MappingSpec

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCell:
    """A cell's verdict with the runs it rests on."""

    replayer: Replayer
    baseline: Run
    candidate: Run
    verdict: CellVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The verdict, the plan it followed and the evidence behind it."""

    request: GateRequest
    verdict: Verdict
    plan: Plan
    cells: tuple[JudgedCell, ...]
    inputs: tuple[InputRecord, ...]


def gate(request: GateRequest, progress: Progress) -> GateResult:
    """Return the verdict on `request.candidate` against `request.baseline`.

    The baselines are replayed first, and the plan is made and digested from them; only then is the candidate replayed.

    Raises:
        SpecError: a mapping cannot be lowered for the model, or the policy cannot be met by any data.
        TraceError: a trace has no arrival times.
    """
    replayers = [Replayer(trace=cell.trace, model=cell.model, hardware=cell.hardware, seed=request.seed) for cell in request.cells]
    with ThreadPoolExecutor(max_workers=request.jobs) as pool:
        progress(f"replaying the baseline {request.baseline.label} on {len(replayers)} trace and accelerator pairs")
        baselines = list(pool.map(lambda replayer: replayer.run(request.baseline.mapping), replayers))
        plan = make_plan(request.policy, [cell_of(run) for run in baselines], request.seed, as_of=request.as_of)
        progress(f"replaying the candidate {request.candidate.label}; plan {plan.digest[7:19]}")
        judging = partial(_judge_cell, request, progress)
        judged = tuple(pool.map(judging, request.cells, plan.cells, replayers, baselines))
    return GateResult(
        request=request, verdict=combine(cell.verdict for cell in judged), plan=plan, cells=judged, inputs=tuple(_inputs(request))
    )


def _judge_cell(
    request: GateRequest, progress: Progress, cell: Cell, planned: PlannedCell, replayer: Replayer, baseline: Run
) -> JudgedCell:
    own = (*request.findings, *_foreign_trace(cell))

    def findings_on(run: Run) -> tuple[Finding, ...]:
        evidence = Evidence(baseline=baseline, candidate=run, provenance=cell.trace.provenance, policy=request.policy, as_of=request.as_of)
        return (*own, *run_checks(evidence))

    def judgement_of(_: MappingSpec, run: Run) -> Judgement:
        claims = judge(planned, baseline, run)
        decision, basis = decide_cell(claims, findings_on(run))
        return Judgement(decision=decision, basis=basis, claims=claims)

    candidate = replayer.run(request.candidate.mapping)
    judgement, findings = judgement_of(request.candidate.mapping, candidate), findings_on(candidate)
    if judgement.basis in ("regression", "inconclusive"):
        progress(f"{cell.trace.name} on {cell.hardware.name}: {judgement.basis}; looking for the cause")
    arm = request.candidate
    question = CauseQuestion(
        replayer=replayer,
        baseline=request.baseline.mapping,
        candidate=arm.mapping,
        judgement=judgement,
        findings=findings,
        judge=judgement_of,
        owners=request.owners,
        mapping_file=MappingFile(name=arm.file, text=arm.text) if arm.file is not None and arm.text is not None else None,
    )
    verdict = cell_verdict(
        planned.spec, judgement.claims, findings, cause=find_cause(question), sustained=sustained_figures(baseline, candidate)
    )
    return JudgedCell(replayer=replayer, baseline=baseline, candidate=candidate, verdict=verdict)


def _foreign_trace(cell: Cell) -> Iterator[Finding]:
    """Find a trace that is not the one a bundle or run directory was made on."""
    if cell.recorded_digest is not None and cell.recorded_digest != cell.trace.digest:
        message = (
            f"trace {cell.trace.name} has digest {cell.trace.digest}, the baseline was made on {cell.recorded_digest}: "
            "the loads differ; make the baseline again on this trace, or name the old one"
        )
        yield Finding(code="trace_changed", message=message, effect="invalidates", stage="ingress", bottleneck_class="measurement")


def _inputs(request: GateRequest) -> Iterator[InputRecord]:
    """Yield every input by content; each trace, model and accelerator once."""
    for role, arm in (("baseline_mapping", request.baseline), ("candidate_mapping", request.candidate)):
        yield InputRecord(role=role, name=arm.label, digest=arm.mapping.digest)
    yield from {cell.trace.digest: _trace_record(cell) for cell in request.cells}.values()
    for role, records in (
        ("model", {cell.model.name: cell.model.digest for cell in request.cells}),
        ("hardware", {cell.hardware.name: cell.hardware.digest for cell in request.cells}),
    ):
        for name, digest in records.items():
            yield InputRecord(role=role, name=name, digest=digest)
    yield InputRecord(role="policy", name=request.policy_name, digest=request.policy.digest)
    if request.owners_name is not None and request.owners_digest is not None:
        yield InputRecord(role="owners", name=request.owners_name, digest=request.owners_digest)


def _trace_record(cell: Cell) -> InputRecord:
    provenance = cell.trace.provenance
    document: dict[str, Any] = provenance.to_document()
    return InputRecord(
        role="trace",
        name=cell.trace_name,
        digest=cell.trace.digest,
        rows=provenance.rows_kept,
        dropped=provenance.rows_read - provenance.rows_kept,
        provenance=document,
    )
