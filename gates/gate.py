"""gate(request) -> verdict: plan, replay both arms cell by cell, judge, find the cause, write it down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gates.attribution.cause import CauseQuestion, find_cause, invalid_cause
from gates.attribution.patch import MappingFile
from gates.attribution.trials import Judgement
from gates.checks import Evidence, run_checks
from gates.checks.drift import drift_findings, history_records, with_drift
from gates.finding import Finding
from gates.judge import judge, unmeasured
from gates.plan import CellSpec, Plan, PlannedCell, cell_of, make_plan
from gates.quality.cell import CellQuality, evaluation_records
from gates.quality.claims import quality_specs
from gates.records import foreign_records, unused_measurements
from gates.request import Arm, Cell, Evaluated, GateRequest, RecordedCell
from gates.statement import InputRecord
from gates.sustained import sustained_figures
from gates.verdict import CellVerdict, Verdict, cell_verdict, combine, decide_cell
from replay.errors import EvidenceError
from replay.pipeline import Replayer, TableCache

if TYPE_CHECKING:
    from gates.claim import Claim
    from gates.resimulation.judging import Judged
    from replay.assembly.run import Run
    from replay.ingress.trace import Trace
    from replay.specs.mapping import MappingSpec

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCell:
    """A cell's verdict with the runs it rests on."""

    replayer: Replayer
    baseline: Run
    candidate: Run
    verdict: CellVerdict
    measure_next: Mapping[str, Sequence[Mapping[str, str | int]]]
    """Kernel shapes whose timing would decide what the model's error leaves open, by kind of measurement file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The verdict, the plan it followed and the evidence behind it."""

    request: GateRequest
    verdict: Verdict
    plan: Plan
    cells: tuple[JudgedCell, ...]
    inputs: tuple[InputRecord, ...]
    evaluated: Evaluated = None
    """Quality results of both arms, where there are any."""


def gate(request: GateRequest, progress: Progress, *, cache: TableCache | None = None) -> GateResult:
    """Return the verdict on `request.candidate` against `request.baseline`; a cache changes nothing but the time that takes.

    The baselines are replayed first, and the plan is made and digested from them; only then is the candidate replayed.

    Raises:
        SpecError: a mapping cannot be lowered for the model, or the policy cannot be met by any data.
        TraceError: a trace has no arrival times.
    """
    replayers = [
        Replayer(trace=cell.trace, model=cell.model, hardware=cell.hardware, seed=request.seed, cache=cache) for cell in request.cells
    ]
    with ThreadPoolExecutor(max_workers=request.jobs) as pool:
        progress(f"replaying the baseline {request.baseline.label} on {len(replayers)} trace and accelerator pairs")
        baselines = list(pool.map(lambda replayer: replayer.run(request.baseline.mapping), replayers))
        cells = [_planned_cell(request, cell, run) for cell, run in zip(request.cells, baselines, strict=True)]
        plan = make_plan(request.policy, cells, request.seed, as_of=request.as_of)
        plan = with_drift(plan, request.history, request.baseline.mapping.digest)
        evaluated = None if request.quality is None else request.quality.read()
        progress(f"replaying the candidate {request.candidate.label}; plan {plan.digest[7:19]}")
        judging = partial(_judge_cell, request, evaluated, progress)
        judged = tuple(pool.map(judging, request.cells, plan.cells, replayers, baselines))
    inputs = (*_inputs(request), *history_records(plan, request.history))
    verdict = combine(cell.verdict for cell in judged)
    return GateResult(
        request=request,
        verdict=verdict,
        plan=plan,
        cells=judged,
        inputs=(*inputs, *evaluation_records(request.quality, evaluated)),
        evaluated=evaluated,
    )


def without_evidence(request: GateRequest, error: EvidenceError) -> GateResult:
    """Return the rollback where what a bundle or run directory was made on is not to be had: its own cells, with nothing replayed."""
    arm = request.baseline if request.baseline.recorded else request.candidate
    specs = [_recorded_cell(request, arm, record) for record in arm.recorded]
    plan = make_plan(request.policy, specs, request.seed, as_of=request.as_of)
    finding = Finding(code="evidence_missing", message=str(error), effect="invalidates", stage="ingress", bottleneck_class="measurement")
    findings = (finding, *request.findings)
    cause = invalid_cause(findings, request.owners)
    verdicts = [cell_verdict(cell.spec, unmeasured(cell, "nothing was replayed"), findings, cause=cause) for cell in plan.cells]
    return GateResult(request=request, verdict=combine(verdicts), plan=plan, cells=(), inputs=(*_inputs(request), *_recorded_inputs(arm)))


def _planned_cell(request: GateRequest, cell: Cell, baseline: Run) -> CellSpec:
    kind, reference = cell.trace.provenance.kind, request.reference
    spec = cell_of(baseline, trace_kind=kind, hardware_digest=cell.hardware.digest, model_digest=cell.model.digest)
    if request.quality is not None:
        result = request.quality.baseline
        claims = quality_specs(request.policy, result, cell.trace.requests["prompt_tokens"])
        spec = replace(spec, quality_claims=claims, quality_digest=result.facts.digest)
    return spec if reference is None else replace(spec, reference_digest=reference.digest)


def _recorded_cell(request: GateRequest, arm: Arm, record: RecordedCell) -> CellSpec:
    return CellSpec(
        trace=record.trace_name,
        trace_digest=record.trace_digest,
        trace_kind=record.trace_kind,
        hardware=record.hardware.name,
        hardware_digest=record.hardware.digest,
        model=arm.model.name if arm.model is not None else "",
        model_digest=arm.model.digest if arm.model is not None else None,
        layer_types=(),
        baseline_mapping_digest=request.baseline.mapping.digest,
    )


def _judge_cell(
    request: GateRequest, evaluated: Evaluated, progress: Progress, cell: Cell, planned: PlannedCell, replayer: Replayer, baseline: Run
) -> JudgedCell:
    from gates.resimulation.judging import judge_by_replays
    from gates.resimulation.traffic import PinnedTraffic

    unused = unused_measurements(cell, [replayer.table(arm.mapping) for arm in (request.baseline, request.candidate)])
    quality = CellQuality.of(request, evaluated, planned, cell)
    own = (*request.findings, *foreign_records(request, cell), *unused, *quality.findings)

    def findings_on(mapping: MappingSpec, run: Run) -> tuple[Finding, ...]:
        evidence = Evidence(
            baseline=baseline,
            candidate=run,
            provenance=cell.trace.provenance,
            policy=request.policy,
            as_of=request.as_of,
            plans=(replayer.schedule(request.baseline.mapping).plan, replayer.schedule(mapping).plan),
            mappings=(request.baseline.mapping, mapping),
            trace=cell.trace,
            reference=request.reference,
            has_quality=bool(planned.spec.quality_claims),
        )
        return (*own, *run_checks(evidence))

    def judged(mapping: MappingSpec, run: Run, claims: tuple[Claim, ...]) -> Judgement:
        decision, basis = decide_cell(claims, (*findings_on(mapping, run), *drift_findings(planned, claims, request.as_of)))
        return Judgement(decision=decision, basis=basis, claims=claims)

    jobs = max(1, request.jobs // len(request.cells))

    def by_replays(mapping: MappingSpec) -> Judged:
        return judge_by_replays(planned, replayer, (request.baseline.mapping, mapping), jobs, quality.of_mapping(mapping))

    candidate = replayer.run(request.candidate.mapping)
    progress(f"{cell.trace.name} on {cell.hardware.name}: replaying both arms on draws of its traffic, with errors of the hardware model")
    found = by_replays(request.candidate.mapping)
    judgement = judged(request.candidate.mapping, candidate, found.claims)
    findings = (
        *findings_on(request.candidate.mapping, candidate),
        *found.findings(),
        *drift_findings(planned, judgement.claims, request.as_of),
        *_cited(request, planned.spec),
    )
    if judgement.basis in ("regression", "inconclusive"):
        progress(f"{cell.trace.name} on {cell.hardware.name}: {judgement.basis}; looking for the cause")
    question = _question(
        request,
        replayer,
        judgement,
        findings,
        judge=lambda mapping, run: judged(mapping, run, judge(planned, baseline, run, quality.of_mapping(mapping))),
        confirm=lambda mapping, run: judged(mapping, run, by_replays(mapping).claims),
        traffic=PinnedTraffic(planned.replayed, replayer, request.baseline.mapping, jobs=jobs),
    )
    verdict = cell_verdict(
        planned.spec, judgement.claims, findings, cause=find_cause(question), sustained=sustained_figures(baseline, candidate)
    )
    return JudgedCell(replayer=replayer, baseline=baseline, candidate=candidate, verdict=verdict, measure_next=found.measure_next)


def _question(
    request: GateRequest, replayer: Replayer, judgement: Judgement, findings: tuple[Finding, ...], **trying: Any
) -> CauseQuestion:
    """Return the question for the cause of a cell's judgement; `trying` is what judges other mappings in the cell, and on which traffic."""
    arm = request.candidate
    return CauseQuestion(
        replayer=replayer,
        baseline=request.baseline.mapping,
        candidate=arm.mapping,
        judgement=judgement,
        findings=findings,
        owners=request.owners,
        mapping_file=_mapping_file(arm),
        commits=arm.commits,
        policy=request.policy,
        several_chips=len({one.hardware.name for one in request.cells}) > 1,
        **trying,
    )


def _cited(request: GateRequest, spec: CellSpec) -> Iterator[Finding]:
    if request.selfcheck is not None:
        yield request.selfcheck.finding(spec, request.policy, request.as_of)


def _mapping_file(arm: Arm) -> MappingFile | None:
    return None if arm.file is None or arm.text is None else MappingFile(name=arm.file, text=arm.text, tables=arm.mapping.tables)


def _inputs(request: GateRequest) -> Iterator[InputRecord]:
    """Yield every input by content; each trace, model and accelerator once."""
    for role, arm in (("baseline_mapping", request.baseline), ("candidate_mapping", request.candidate)):
        yield InputRecord(role=role, name=arm.label, digest=arm.mapping.digest)
    yield from {cell.trace.digest: _trace_record("trace", cell.trace, cell.trace_name) for cell in request.cells}.values()
    if request.reference is not None:
        yield _trace_record("reference", request.reference, request.reference_name or request.reference.name)
    for role, records in (
        ("model", {cell.model.name: cell.model.digest for cell in request.cells}),
        ("hardware", {cell.hardware.name: cell.hardware.digest for cell in request.cells}),
    ):
        for name, digest in records.items():
            yield InputRecord(role=role, name=name, digest=digest)
    yield from _measurement_records(request)
    yield InputRecord(role="policy", name=request.policy_name, digest=request.policy.digest)
    if request.selfcheck is not None:
        yield InputRecord(role="selfcheck", name=request.selfcheck.name, digest=request.selfcheck.digest)
    if request.owners_name is not None and request.owners_digest is not None:
        yield InputRecord(role="owners", name=request.owners_name, digest=request.owners_digest)


def _measurement_records(request: GateRequest) -> Iterator[InputRecord]:
    """Yield each file of measured kernels once; its rows are embedded in the accelerators' descriptions."""
    kernels = [one for device in {cell.hardware.name: cell.hardware for cell in request.cells}.values() for one in device.measured]
    for name, digest in dict.fromkeys((one.name, one.digest) for one in kernels):
        own = [one for one in kernels if (one.name, one.digest) == (name, digest)]
        rows, dropped = sum(one.rows_count for one in own), sum(one.set_aside_count for one in own)
        yield InputRecord(role="measurements", name=name, digest=digest, rows=rows, dropped=dropped)


def _recorded_inputs(arm: Arm) -> Iterator[InputRecord]:
    """Yield what a bundle or run directory says it was made on."""
    records = {
        **{("trace", record.trace_name): record.trace_digest for record in arm.recorded},
        **({("model", arm.model.name): arm.model.digest} if arm.model is not None else {}),
        **{("hardware", record.hardware.name): record.hardware.digest for record in arm.recorded},
    }
    yield from (InputRecord(role=role, name=name, digest=digest) for (role, name), digest in records.items())


def _trace_record(role: str, trace: Trace, name: str) -> InputRecord:
    provenance = trace.provenance
    document: dict[str, Any] = provenance.to_document()
    return InputRecord(
        role=role,
        name=name,
        digest=trace.digest,
        rows=provenance.rows_kept,
        dropped=provenance.rows_read - provenance.rows_kept,
        provenance=document,
    )
