"""Build a `GateRequest` from the options of `replay gate`, the project file and what a bundle carries."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gates.cli.arms import ArmSource, locator, read_arm, read_arm_at, relative_name
from gates.cli.commits import GIT_PREFIX, Commit, commit_time, line_commits, open_commit
from gates.cli.inputs import (
    chosen,
    chosen_seed,
    load_hardware,
    load_model,
    load_reference,
    load_traces,
    project_folder,
    required,
    with_measured,
)
from gates.cli.rules import load_changed, read_rules
from gates.cli.times import moment
from gates.project import Project, find_project, project_in
from replay.errors import EvidenceError, InputError, SpecError

if TYPE_CHECKING:
    from gates.policy import PolicySpec
    from gates.request import Arm, Cell, GateRequest, QualityInput
    from gates.selfcheck.document import CitedSelfcheck
    from replay.ingress.trace import Trace
    from replay.specs.hardware import HardwareSpec
    from replay.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What the command line of `replay gate` says."""

    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    """Several only where they are repeated measured runs."""
    traces: tuple[str, ...]
    model: str | None
    hardware: tuple[str, ...]
    measurements: tuple[Path, ...]
    policy: str | None
    owners: str | None
    archive: str | None
    as_of: str | None
    seed: int | None
    jobs: int
    selfcheck: Path | None = None
    history: str | None = None
    reference: str | None = None
    quality_baseline: str | None = None
    quality_candidate: str | None = None


def build_request(options: GateOptions, project: Project | None) -> GateRequest:
    """Return the request without its cells (see `with_cells`): arms, policy and owners, read and checked.

    Raises:
        InputError: one cannot be used.
    """
    from gates.request import GateRequest

    folder = project_folder(project)
    baseline_source, candidate_source = (
        _only("baseline", arm_sources(options, project)[0]),
        _only("candidate", arm_sources(options, project)[1]),
    )
    mapping_path = _mapping_path(candidate_source, project)
    repository = mapping_path.parent if mapping_path is not None else folder
    commit = open_commit(repository, baseline_source) if baseline_source.startswith(GIT_PREFIX) else None
    before = _project_at(commit, Path.cwd()) if commit is not None else None
    baseline = _read(baseline_source, "baseline", _path_before(options, before, mapping_path), folder)
    candidate = _read(candidate_source, "candidate", mapping_path, folder)
    rules = read_rules(
        policy=options.policy,
        owners=options.owners,
        project=project,
        before=before,
        commit=commit,
        mapping=candidate.path or mapping_path,
    )
    selfcheck = _selfcheck(options.selfcheck, project, folder)
    reference = load_reference(options.reference, project)
    given = frozenset(name for name in ("model", "hardware", "traces", "reference") if getattr(options, name)) | _given_seed(options)
    changed = tuple(load_changed(project, before, given)) if commit is not None else ()
    return GateRequest(
        baseline=_arm(baseline, folder),
        candidate=replace(_arm(candidate, folder), commits=_line_commits(commit, candidate_source, candidate)),
        cells=(),
        policy=rules.policy,
        policy_name=rules.policy_name,
        owners=rules.owners,
        owners_name=rules.owners_name,
        owners_digest=rules.owners_digest,
        seed=chosen_seed(options.seed, project),
        jobs=options.jobs,
        as_of=moment_of_plan(options.as_of, rules.policy, candidate.path, selfcheck),
        selfcheck=selfcheck,
        reference=reference[0] if reference else None,
        reference_name=relative_name(reference[1], folder) if reference else None,
        reference_locator=locator(reference[1], folder) if reference else None,
        quality=read_evaluations(options, folder),
        findings=(*rules.findings, *changed),
    )


def with_cells(request: GateRequest, options: GateOptions, project: Project | None) -> GateRequest:
    """Return the request with its cells: the traces and accelerators of the command line, else a bundle's own, else the project's.

    Raises:
        InputError: one cannot be read.
        EvidenceError: a bundle's trace cannot be found again.
    """
    folder, arm = project_folder(project), request.baseline
    model = load_model(options.model, project) if options.model or arm.model is None else arm.model
    if arm.recorded and not options.traces and not options.hardware:
        traces = {trace.name: (trace, path) for trace, path in _recorded_traces(arm, folder)}
        devices = with_measured([record.hardware for record in arm.recorded], options.measurements, project)
        pairs = [(*traces[record.trace_name], device) for record, device in zip(arm.recorded, devices, strict=True)]
    else:
        traces_on = _recorded_traces(arm, folder) if arm.recorded and not options.traces else load_traces(options.traces, project)
        if arm.recorded and not options.hardware:
            devices = with_measured(_recorded_hardware(arm), options.measurements, project)
        else:
            devices = load_hardware(options.hardware, project, options.measurements)
        pairs = [(trace, path, device) for trace, path in traces_on for device in devices]
    cells = (_cell(trace, path, model, device, folder) for trace, path, device in pairs)
    return replace(request, cells=tuple(cells))


def arm_sources(options: GateOptions, project: Project | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what baseline and candidate are: the command line's, else the project's.

    Raises:
        SpecError: neither says so.
    """
    baseline = options.baseline or (required(_project_arm(project, "baseline"), "baseline", "baseline"),)
    return baseline, options.candidate or (required(_project_arm(project, "mapping"), "candidate", "mapping"),)


def _only(role: str, sources: tuple[str, ...]) -> str:
    if len(sources) > 1:
        got = f"{len(sources)} of them, and they are no measured runs"
        raise SpecError(f"--{role}", got, "one mapping", "repeat the option only for results of measured runs")
    return sources[0]


def _cell(trace: Trace, path: Path, model: ModelSpec, hardware: HardwareSpec, folder: Path) -> Cell:
    from gates.request import Cell

    name, place = relative_name(path, folder), locator(path, folder)
    return Cell(trace=trace, trace_name=name, trace_locator=place, model=model, hardware=hardware)


def _given_seed(options: GateOptions) -> frozenset[str]:
    return frozenset() if options.seed is None else frozenset({"seed"})


def _mapping_path(candidate_source: str, project: Project | None) -> Path | None:
    """Return the mapping file that the gate is about: the candidate where it is one, else the project's."""
    path = Path(candidate_source)
    return path if os.path.isfile(path) else chosen(None, project.mapping if project else None, project)


def _path_before(options: GateOptions, before: Project | None, mapping_path: Path | None) -> Path | None:
    """Return the file whose version a ``git:`` baseline means: the candidate's, else the one that the project named at the commit."""
    if not options.candidate and before is not None and before.mapping is not None and not before.mapping.startswith(GIT_PREFIX):
        return before.path_of(before.mapping)
    return mapping_path


def _project_at(commit: Commit, start: Path) -> Project | None:
    """Return the nearest project file at or above a folder as the commit has it; one outside the repository is part of no change."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if not commit.holds(folder):
            return find_project(folder)
        project = project_in(folder, commit.text)
        if project is not None:
            return project
    return None


def _read(source: str, role: str, mapping_path: Path | None, folder: Path) -> ArmSource:
    if not source.startswith(GIT_PREFIX):
        return read_arm(source, role=role, folder=folder)
    if mapping_path is None:
        got = f"{source} names a commit but no mapping file"
        raise SpecError(f"--{role}", got, "the file whose version is meant", "set `mapping` in replay.toml")
    return read_arm_at(open_commit(mapping_path.parent, source), mapping_path, folder)


def as_of_time(option: str | None, policy: PolicySpec, candidate_path: Path | None) -> str | None:
    """Return the moment that ages are counted from; None where nothing depends on it, so that no time of day gets into the plan."""
    if option is None and policy.max_trace_age_days is None and policy.drift is None:
        return None
    return moment(option, commit_time(candidate_path) if option is None and candidate_path is not None else None)


def moment_of_plan(option: str | None, policy: PolicySpec, candidate_path: Path | None, selfcheck: CitedSelfcheck | None) -> str | None:
    """Return `as_of_time`, or the day's beginning where only the self-check has an age and has expired by then."""
    found = as_of_time(option, policy, candidate_path)
    if found is not None or selfcheck is None:
        return found
    today = moment(None, commit_time(candidate_path) if candidate_path is not None else None)[:10]
    return moment(today) if selfcheck.expired(today) else None


def _selfcheck(option: Path | None, project: Project | None, folder: Path) -> CitedSelfcheck | None:
    path = chosen(None if option is None else str(option), project.selfcheck if project else None, project)
    if path is None:
        return None
    from gates.selfcheck.document import read_selfcheck

    return read_selfcheck(path, relative_name(path, folder))


def read_evaluations(options: GateOptions, folder: Path) -> QualityInput | None:
    """Return the evaluations of both arms, the candidate's to be read when the plan is made; None where none are named."""
    paths = [None if name is None else Path(name) for name in (options.quality_baseline, options.quality_candidate)]
    if paths == [None, None]:
        return None
    if paths[0] is None or paths[1] is None:
        missing, given = ("baseline", "candidate") if paths[0] is None else ("candidate", "baseline")
        got = f"--quality-{given} without --quality-{missing}"
        raise SpecError("the command line", got, "evaluations of both arms", f"evaluate the {missing} on the same items")
    from gates.request import QualityInput
    from replay.ingress.quality.reader import read_quality

    return QualityInput(
        baseline_name=relative_name(paths[0], folder),
        baseline=read_quality(paths[0]),
        candidate_name=relative_name(paths[1], folder),
        read_candidate=partial(read_quality, paths[1]),
    )


def _project_arm(project: Project | None, key: str) -> str | None:
    """Return an arm that the project names: ``git:REF`` as it is, a path relative to the project."""
    text: str | None = getattr(project, key) if project else None
    if project is None or text is None or text.startswith(GIT_PREFIX):
        return text
    return str(project.path_of(text))


def _arm(source: ArmSource, folder: Path) -> Arm:
    from gates.request import Arm

    file = relative_name(source.path, folder) if source.path is not None else None
    return Arm(mapping=source.mapping, label=source.label, text=source.text, file=file, model=source.model, recorded=source.cells)


def _line_commits(baseline: Commit | None, source: str, candidate: ArmSource) -> dict[int, str]:
    """Return which commit changed each line of the candidate's file, where the baseline is a commit and the candidate a file."""
    if baseline is None or candidate.path is None or source.startswith(GIT_PREFIX):
        return {}
    return line_commits(candidate.path)


def _recorded_hardware(arm: Arm) -> list[HardwareSpec]:
    return list({record.hardware.name: record.hardware for record in arm.recorded}.values())


def _recorded_traces(arm: Arm, folder: Path) -> list[tuple[Trace, Path]]:
    """Return the traces a bundle was made on, found again by their place in the project.

    Raises:
        EvidenceError: one is gone or can no longer be read.
    """
    from replay.ingress.reader import read_trace

    found = []
    for record in {record.trace_name: record for record in arm.recorded}.values():
        path = folder / record.trace_locator
        try:
            found.append((read_trace(path, name=record.trace_name), path))
        except InputError as error:
            got = f"the trace {record.trace_name} it was made on is not to be had ({error.where}: {error.got})"
            raise EvidenceError(arm.label, got, f"the trace with digest {record.trace_digest}", "name it with --trace") from error
    return found
