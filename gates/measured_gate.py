"""gate_measured(request) -> verdict on runs that were measured: plan from the baseline, read the candidate, check, judge, write it down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gates.attribution.cause import CellCause, invalid_cause
from gates.attribution.failure import Failure
from gates.attribution.knob_rows import knob_rows
from gates.attribution.risk_map import stage_row
from gates.checks.drift import drift_findings, history_records, with_drift
from gates.checks.measured import run_measured_checks
from gates.checks.measured_evidence import MeasuredEvidence, about_runs
from gates.checks.measured_load import met_alike
from gates.finding import Finding
from gates.history.rows import arm_identity
from gates.judge import judge_measured, unmeasured
from gates.measure.measured_runs import measure_measured
from gates.measure.method import FEWEST_RUNS, MEASURED_RULES
from gates.measure.pairing import pair_runs
from gates.measure.single_pair import Context
from gates.plan import RULES, CellSpec, Plan, PlannedCell, make_plan
from gates.quality.cell import evaluation_records
from gates.quality.checks import quality_findings
from gates.quality.claims import quality_specs, traffic_by_bin
from gates.quality.measure import QualityPair, measure_quality
from gates.request import Evaluated, MeasuredArm, MeasuredRequest
from gates.statement import InputRecord
from gates.verdict import CellVerdict, Verdict, cell_verdict, combine, decide_cell
from replay.errors import EvidenceError, SpecError
from replay.ingress.measured.measured_run import COMPLETED
from replay.names import safe_name
from replay.provenance import digest_document
from replay.specs.mapping import diff

if TYPE_CHECKING:
    import pyarrow as pa

    from gates.claim import Claim
    from replay.ingress.measured.measured_run import MeasuredRun

Progress = Callable[[str], None]
Load = tuple[float | None, int | None, str | None]
Runs = tuple["MeasuredRun", ...]
UNSTATED = "unstated"
"""Name of an accelerator or model that neither the files nor the command line tell."""
ALL_LAYERS = "all"
"""Stands for the layer types, which a measured run does not record, so that no claim about them is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """A cell's verdict with the runs it rests on; a load that the candidate lacks has none of its."""

    spec: CellSpec
    baseline: Runs
    candidate: Runs
    verdict: CellVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredResult:
    """The verdict, the plan it followed and the runs behind it."""

    request: MeasuredRequest
    candidate: MeasuredArm
    verdict: Verdict
    plan: Plan
    cells: tuple[MeasuredCell, ...]
    inputs: tuple[InputRecord, ...]
    evaluated: Evaluated = None


def gate_measured(request: MeasuredRequest, progress: Progress) -> MeasuredResult:
    """Return the verdict on the candidate's runs against the baseline's.

    The plan is made and digested from the baseline alone; only then is the candidate read. Each load of the baseline (offered rate, cap,
    data set) is a cell; runs of one load are repeats of each other.

    Raises:
        InputError: the candidate cannot be read, or only one arm holds repeated runs.
    """
    loads = _by_load(request.baseline)
    plan = with_drift(plan_measured(request, loads), request.history, _identity(request.baseline), unnamed=request.trace is None)
    progress(f"reading the candidate; plan {plan.digest[7:19]}")
    candidate = request.read_candidate()
    evaluated = None if request.quality is None else request.quality.read()
    met = _matched(loads, _by_load(candidate))
    unmatched = [load for load in _by_load(candidate) if not any(runs and runs[0].load == load for runs in met.values())]
    cells = tuple(
        _judge_cell(request, candidate, evaluated, planned, runs, met[load], bool(unmatched))
        for planned, (load, runs) in zip(plan.cells, loads.items(), strict=True)
    )
    verdict = combine(cell.verdict for cell in cells)
    inputs = (*_inputs(request, candidate), *history_records(plan, request.history), *evaluation_records(request.quality, evaluated))
    return MeasuredResult(request=request, candidate=candidate, verdict=verdict, plan=plan, cells=cells, inputs=inputs, evaluated=evaluated)


def without_pair(request: MeasuredRequest, side: str, other: InputRecord | None, error: EvidenceError) -> MeasuredResult:
    """Return the rollback where one arm was measured and the other is a mapping: nothing of the two can be compared.

    `request.baseline` is the measured arm, whichever `side` it is ("baseline" or "candidate"); `other` is the mapping by content.
    """
    plan = plan_measured(request, _by_load(request.baseline))
    findings = (about_runs("arms_not_comparable", str(error)), *request.findings)
    cause = invalid_cause(findings, request.owners)
    verdicts = [cell_verdict(cell.spec, unmeasured(cell, "one arm was not measured"), findings, cause=cause) for cell in plan.cells]
    records = (*_arm_records(side, request.baseline), *([other] if other is not None else []), *_rule_records(request))
    nothing = MeasuredArm(label="", runs=())
    return MeasuredResult(request=request, candidate=nothing, verdict=combine(verdicts), plan=plan, cells=(), inputs=records)


def plan_measured(request: MeasuredRequest, loads: dict[Load, Runs]) -> Plan:
    """Return the plan of a gate on measured runs: it depends on the baseline, the policy and the seed."""
    specs = [_cell_spec(request, load, runs, several=len(loads) > 1) for load, runs in loads.items()]
    plan = make_plan(request.policy, specs, request.seed, as_of=request.as_of, rules={**RULES, **MEASURED_RULES})
    return replace(plan, archive_digest=request.archive.digest if request.archive is not None else None)


def _identity(arm: MeasuredArm) -> str:
    return arm_identity(arm.mapping.digest if arm.mapping is not None else None, [run.facts.digest for _, run in arm.runs])


def _by_load(arm: MeasuredArm) -> dict[Load, Runs]:
    found: dict[Load, list[MeasuredRun]] = {}
    for _, run in arm.runs:
        found.setdefault(run.load, []).append(run)
    return {load: tuple(runs) for load, runs in found.items()}


def _matched(baseline: dict[Load, Runs], candidate: dict[Load, Runs]) -> dict[Load, Runs]:
    """Return the candidate's runs for each load of the baseline; where both arms hold one load, they meet whatever it is called."""
    if len(baseline) == len(candidate) == 1:
        return {load: next(iter(candidate.values())) for load in baseline}
    return {load: candidate.get(load, ()) for load in baseline}


def _cell_spec(request: MeasuredRequest, load: Load, runs: Runs, *, several: bool) -> CellSpec:
    trace, facts = request.trace, runs[0].facts
    name = trace.name if trace is not None else _stem(facts.file_name)
    if several:
        parts = (None if load[0] is None else f"{load[0]:g} per s", None if load[1] is None else f"{load[1]} at once", load[2])
        name = safe_name(f"{name[:40]} {' '.join(filter(None, parts))}")
    digests = [run.facts.digest for run in runs]
    mapping = request.baseline.mapping
    quality = request.quality.baseline if request.quality is not None else None
    return CellSpec(
        quality_claims=() if quality is None else quality_specs(request.policy, quality, _prompts(request, runs)),
        quality_digest=None if quality is None else quality.facts.digest,
        trace=name,
        trace_digest=trace.digest if trace is not None else digests[0] if len(digests) == 1 else digest_document(digests),
        trace_kind=trace.provenance.kind if trace is not None else "synthetic" if facts.is_synthetic else None,
        hardware=safe_name(request.hardware or facts.hardware or UNSTATED),
        model=safe_name(request.model or facts.model or UNSTATED),
        layer_types=(ALL_LAYERS,),
        baseline_mapping_digest=mapping.digest if mapping is not None else None,
    )


def _prompts(request: MeasuredRequest, runs: Runs) -> pa.ChunkedArray:
    """Return the prompt lengths of the traffic that runs measured [requests]: the trace's, else those of the first run."""
    return (request.trace or runs[0]).requests["prompt_tokens"]


def _stem(file_name: str) -> str:
    stem = file_name
    for suffix in (".gz", ".csv", ".jsonl", ".json", ".parquet", ".txt"):
        stem = stem.removesuffix(suffix)
    return safe_name(stem)


def _judge_cell(
    request: MeasuredRequest,
    arm: MeasuredArm,
    evaluated: Evaluated,
    planned: PlannedCell,
    baseline: Runs,
    candidate: Runs,
    has_other_loads: bool,
) -> MeasuredCell:
    findings = list(request.findings)
    if has_other_loads:
        findings.append(
            about_runs("load_not_in_baseline", "the candidate also holds loads that the baseline lacks; they are not judged", "informs")
        )
    if not candidate:
        findings.insert(0, about_runs("load_missing", f"the candidate holds no run of the load {planned.spec.trace}"))
        claims = unmeasured(planned, "the candidate holds no run of this load")
    else:
        _check_counts(baseline, candidate)
        pairing = pair_runs(baseline[0], candidate[0])
        evidence = MeasuredEvidence(
            baseline=baseline,
            candidate=candidate,
            pairing=pairing,
            policy=request.policy,
            as_of=request.as_of,
            trace=request.trace,
            mappings=(request.baseline.mapping is not None, arm.mapping is not None),
        )
        findings += run_measured_checks(evidence)
        archive = request.archive.under(baseline[0].load) if request.archive is not None else []
        archive = [runs for runs in archive if met_alike(baseline[0], runs[0])]
        if request.archive is not None and not any(len(runs) > 1 for runs in archive):
            sentence = f"{request.archive.label} holds no two runs of one set under this load, so it cannot say how much runs differ"
            findings.append(about_runs("archive_too_small", sentence, "informs"))
        context = Context(archive=archive, mappings=(request.baseline.mapping, arm.mapping))
        measured = measure_measured(planned.replayed, baseline, candidate, pairing, context)
        if evaluated is not None:
            traffic = traffic_by_bin(request.policy, _prompts(request, baseline))
            pair = QualityPair(baseline=evaluated[0], candidate=evaluated[1], traffic=traffic)
            measured += measure_quality(planned, planned.spec.quality_claims, pair)
            findings += quality_findings(pair)
        claims = judge_measured(planned, measured)
        findings += drift_findings(planned, claims, request.as_of)
    verdict = cell_verdict(planned.spec, claims, findings, cause=_cause(request, arm, claims, findings))
    return MeasuredCell(spec=planned.spec, baseline=baseline, candidate=candidate, verdict=verdict)


def _check_counts(baseline: Runs, candidate: Runs) -> None:
    counts = len(baseline), len(candidate)
    if counts != (1, 1) and min(counts) < FEWEST_RUNS:
        got = f"{counts[0]} runs of the baseline and {counts[1]} of the candidate"
        raise SpecError("the arms", got, f"one run each, or at least {FEWEST_RUNS} each", "repeat --baseline and --candidate alike")


def _cause(request: MeasuredRequest, arm: MeasuredArm, claims: Sequence[Claim], findings: Sequence[Finding]) -> CellCause:
    """Return what can be said about the cause without a replay: the knobs that differ where both arms name a mapping, and the stage."""
    before, after = request.baseline.mapping, arm.mapping
    knobs = tuple(knob_rows(diff(before, after), (), request.owners, {})) if before is not None and after is not None else ()
    _, basis = decide_cell(claims, findings)
    if basis == "proven_safe":
        return CellCause(knobs=knobs)
    if basis == "invalid_evidence":
        return invalid_cause(tuple(findings), request.owners, knobs)
    against = next((finding for finding in findings if finding.effect == "disproves"), None)
    stage = "release_decision" if basis == "inconclusive" else against.stage if against is not None else "quality_sla"
    found = "measurement" if basis == "inconclusive" else against.bottleneck_class if against is not None else None
    row = stage_row(Failure(stage=stage, bottleneck_class=found), request.owners.of(stage))
    return CellCause(first_failing_stage=stage, bottleneck_class=found, knobs=knobs, owners=(row,))


def _inputs(request: MeasuredRequest, candidate: MeasuredArm) -> Iterator[InputRecord]:
    yield from _arm_records("baseline", request.baseline)
    yield from _arm_records("candidate", candidate)
    if request.trace is not None:
        provenance = request.trace.provenance
        yield InputRecord(
            role="trace",
            name=request.trace_name or request.trace.name,
            digest=request.trace.digest,
            rows=provenance.rows_kept,
            dropped=provenance.rows_read - provenance.rows_kept,
            provenance=provenance.to_document(),
        )
    yield from _rule_records(request)


def _arm_records(side: str, arm: MeasuredArm) -> Iterator[InputRecord]:
    yield from (_run_record(f"{side}_run", name, run) for name, run in arm.runs)
    if arm.mapping is not None:
        yield InputRecord(role=f"{side}_mapping", name=arm.mapping_name or arm.label, digest=arm.mapping.digest)


def _run_record(role: str, name: str, run: MeasuredRun) -> InputRecord:
    facts, n = run.facts, run.requests.num_rows
    dropped = n - run.count(COMPLETED)
    return InputRecord(role=role, name=name, digest=facts.digest, rows=n, dropped=dropped, unit=facts.units, provenance=facts.to_document())


def _rule_records(request: MeasuredRequest) -> Iterator[InputRecord]:
    for name, run in (pair for one in (request.archive.sets if request.archive is not None else ()) for pair in one):
        yield _run_record("archive_run", name, run)
    yield InputRecord(role="policy", name=request.policy_name, digest=request.policy.digest)
    if request.owners_name is not None and request.owners_digest is not None:
        yield InputRecord(role="owners", name=request.owners_name, digest=request.owners_digest)
