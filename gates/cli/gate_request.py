"""Build a `GateRequest` from the options of `replay gate`, the project file and what a bundle carries."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gates.cli.arms import GIT_PREFIX, ArmSource, RecordedCell, at_commit, commit_time, read_arm, relative_name
from gates.cli.inputs import chosen, load_hardware, load_model, load_traces, project_folder, required
from gates.project import Project
from replay import documents
from replay.errors import EvidenceError, InputError, SpecError
from replay.provenance import digest_bytes

if TYPE_CHECKING:
    from gates.finding import Finding
    from gates.owners import OwnerMatch, Owners
    from gates.policy import PolicySpec
    from gates.request import Arm, Cell, GateRequest
    from replay.ingress.trace import Trace
    from replay.specs.hardware import HardwareSpec

SHIPPED_POLICY = "default policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What the command line of `replay gate` says."""

    baseline: str | None
    candidate: str | None
    traces: tuple[str, ...]
    model: str | None
    hardware: tuple[str, ...]
    policy: str | None
    owners: str | None
    as_of: str | None
    seed: int | None
    jobs: int


def build_request(options: GateOptions, project: Project | None) -> GateRequest:
    """Return the request: every input read and checked.

    Raises:
        InputError: one cannot be used.
        EvidenceError: a bundle's trace cannot be found again.
    """
    from gates.request import GateRequest

    folder = project_folder(project)
    baseline_source = required(options.baseline or _project_arm(project, "baseline"), "baseline", "baseline")
    candidate_source = required(options.candidate or _project_arm(project, "mapping"), "candidate", "mapping")
    mapping_path = chosen(None, project.mapping if project else None, project)
    if Path(candidate_source).is_file():
        mapping_path = Path(candidate_source)
    baseline = read_arm(baseline_source, role="baseline", mapping_path=mapping_path, folder=folder)
    candidate = read_arm(candidate_source, role="candidate", mapping_path=mapping_path, folder=folder)
    ref = baseline_source.removeprefix(GIT_PREFIX) if baseline_source.startswith(GIT_PREFIX) else None
    policy, policy_name, findings = _policy(options, project, ref)
    owners, owners_name, owners_digest = _owners(options, project, ref, candidate.path or mapping_path)
    return GateRequest(
        baseline=_arm(baseline, folder),
        candidate=_arm(candidate, folder),
        cells=_cells(options, project, baseline, candidate),
        policy=policy,
        policy_name=policy_name,
        owners=owners,
        owners_name=owners_name,
        owners_digest=owners_digest,
        seed=options.seed if options.seed is not None else project.seed if project else 0,
        jobs=options.jobs,
        as_of=_as_of(options.as_of, policy, candidate),
        findings=findings,
    )


def _as_of(option: str | None, policy: PolicySpec, candidate: ArmSource) -> str | None:
    """Return the moment that ages are counted from; None where nothing depends on it, so that no time of day gets into the plan."""
    from gates.checks.ages import parse_time

    if option is not None:
        try:
            return parse_time(option).isoformat()
        except ValueError as error:
            raise SpecError("--as-of", f"it is {option!r}", "an ISO time such as 2026-01-31T12:00:00+00:00", "correct the time") from error
    if policy.max_trace_age_days is None:
        return None
    committed = commit_time(candidate.path) if candidate.path is not None else None
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if committed is None and epoch.isdigit():
        return datetime.fromtimestamp(int(epoch), UTC).isoformat()
    return committed or datetime.now(UTC).isoformat(timespec="seconds")


def _project_arm(project: Project | None, key: str) -> str | None:
    """Return an arm that the project names: ``git:REF`` as it is, a path relative to the project."""
    text: str | None = getattr(project, key) if project else None
    if project is None or text is None or text.startswith(GIT_PREFIX):
        return text
    return str(project.path_of(text))


def _arm(source: ArmSource, folder: Path) -> Arm:
    from gates.request import Arm

    file = relative_name(source.path, folder) if source.path is not None else None
    return Arm(mapping=source.mapping, label=source.label, text=source.text, file=file)


def _policy(options: GateOptions, project: Project | None, ref: str | None) -> tuple[PolicySpec, str, tuple[Finding, ...]]:
    """Return the policy, its name, and a finding where the work tree's differs from the baseline commit's.

    With a ``git:`` baseline the policy is that of the baseline's commit, so that a change cannot loosen its own gate; another
    one has to be named on the command line.
    """
    from gates.policy import default_policy, parse_policy, read_policy

    if options.policy is not None:
        path = Path(options.policy)
        return read_policy(path), relative_name(path, project_folder(project)), ()
    path_or_none = chosen(None, project.policy if project else None, project)
    if path_or_none is None:
        return default_policy(), SHIPPED_POLICY, ()
    name = relative_name(path_or_none, project_folder(project))
    if ref is None:
        return read_policy(path_or_none), name, ()
    committed = at_commit(path_or_none, ref)
    policy = default_policy() if committed is None else parse_policy(committed, f"{GIT_PREFIX}{ref}:{name}")
    label = SHIPPED_POLICY if committed is None else f"{GIT_PREFIX}{ref}:{name}"
    current = read_policy(path_or_none) if path_or_none.is_file() else default_policy()
    return policy, label, _policy_changed(name, label) if current.digest != policy.digest else ()


def _policy_changed(name: str, label: str) -> tuple[Finding, ...]:
    from gates.finding import Finding

    message = f"{name} differs from the policy of the baseline's commit; {label} was used. To use the new one, give --policy {name}"
    return (Finding(code="policy_changed", message=message, effect="informs", stage="release_decision"),)


def _owners(options: GateOptions, project: Project | None, ref: str | None, mapping: Path | None) -> tuple[Owners, str | None, str | None]:
    """Return the owners, the file's name and digest; CODEOWNERS of the mapping file is the fallback."""
    from gates.codeowners import find_codeowners
    from gates.owners import Owners, codeowners_match, parse_owners

    found = find_codeowners(mapping) if mapping is not None else None
    fallback: OwnerMatch | None = codeowners_match(*found) if found is not None else None
    path = chosen(options.owners, project.owners if project else None, project)
    if path is None:
        return Owners(fallback=fallback), None, None
    name = relative_name(path, project_folder(project))
    text = at_commit(path, ref) if ref is not None and options.owners is None else None
    if text is not None:
        name = f"{GIT_PREFIX}{ref}:{name}"
    else:
        what = "an owners file (TOML)"
        text = documents.decode(documents.read_bytes(path, what), str(path), what)
    return parse_owners(text, name, fallback=fallback), name, digest_bytes(text.encode())


def _cells(options: GateOptions, project: Project | None, baseline: ArmSource, candidate: ArmSource) -> tuple[Cell, ...]:
    """Return the product of traces and accelerators; a bundle's own where neither the command line nor the project names any."""
    from gates.request import Cell

    model = load_model(options.model, project) if options.model or not baseline.model else baseline.model
    if candidate.model is not None and candidate.model != model:
        got = f"the candidate was made for {candidate.model.name} with other figures than {model.name}"
        raise EvidenceError(candidate.label, got, "two arms of one model", "replay it again for this model")
    folder = project_folder(project)
    recorded = {(cell.trace_name, cell.hardware.name): cell for cell in baseline.cells}
    traces = _bundle_traces(baseline, folder) if baseline.cells and not options.traces else load_traces(options.traces, project)
    devices = _bundle_hardware(recorded) if baseline.cells and not options.hardware else load_hardware(options.hardware, project)
    cells = []
    for trace, path in traces:
        for device in devices:
            before = recorded.get((trace.name, device.name))
            if before is not None and before.hardware != device:
                got = f"{device.name} has other figures than the baseline was made with"
                raise EvidenceError(baseline.label, got, "the same accelerator", "make the baseline again")
            digest = before.trace_digest if before is not None else None
            name = relative_name(path, folder)
            cells.append(Cell(trace=trace, trace_name=name, model=model, hardware=device, recorded_digest=digest))
    return tuple(cells)


def _bundle_hardware(recorded: dict[tuple[str, str], RecordedCell]) -> list[HardwareSpec]:
    return list({cell.hardware.name: cell.hardware for cell in recorded.values()}.values())


def _bundle_traces(baseline: ArmSource, folder: Path) -> list[tuple[Trace, Path]]:
    """Return the traces a bundle was made on, found again by their place in the project.

    Raises:
        EvidenceError: one is gone or can no longer be read.
    """
    from replay.ingress.reader import read_trace

    found = []
    for cell in {cell.trace_name: cell for cell in baseline.cells}.values():
        path = folder / cell.trace_locator
        try:
            found.append((read_trace(path, name=cell.trace_name), path))
        except InputError as error:
            got = f"the trace {cell.trace_name} it was made on is not to be had ({error.where}: {error.got})"
            raise EvidenceError(baseline.label, got, f"the trace with digest {cell.trace_digest}", "name it with --trace") from error
    return found
