"""Measured arms of `replay gate`: tell them from mappings, read them, build a `MeasuredRequest`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gates.cli.arms import locator, read_arm, relative_name, tables_beside
from gates.cli.commits import GIT_PREFIX
from gates.cli.inputs import chosen, chosen_seed, load_reference, load_traces, project_folder
from gates.cli.rules import SHIPPED_POLICY, read_rules
from replay import documents
from replay.errors import EvidenceError, SpecError
from replay.specs.mapping import MappingSpec, parse_mapping

if TYPE_CHECKING:
    from gates.cli.gate_request import GateOptions
    from gates.finding import Finding
    from gates.measured_gate import MeasuredResult
    from gates.policy import PolicySpec
    from gates.project import Project
    from gates.request import MeasuredArm, MeasuredRequest, RunArchive
    from gates.statement import InputRecord
    from replay.ingress.trace import Trace

MEASURED_POLICY = "default policy for measured runs"
_WHAT = "a mapping file (TOML)"


def is_measured(source: str) -> bool:
    """Return whether a source is a result file, or a folder with one; what cannot be told is taken for a mapping, whose reader explains."""
    path = Path(source)
    if source.startswith(GIT_PREFIX) or not os.path.exists(path):
        return False
    from replay.ingress.measured.reader import is_result

    if not os.path.isdir(path):
        return is_result(path)
    is_run_directory = (path / "run.json").is_file() or any(path.glob("*/run.json"))
    return not is_run_directory and any(one.is_file() and is_result(one) for one in path.iterdir())


def without_measured_pair(
    baseline: tuple[str, ...], candidate: tuple[str, ...], options: GateOptions, project: Project | None
) -> MeasuredResult:
    """Return the rollback where one arm was measured and the other would be replayed, and say why on stderr.

    Raises:
        InputError: one of them cannot be read at all.
    """
    from gates.measured_gate import without_pair

    side, other_side = ("baseline", "candidate") if all(map(is_measured, baseline)) else ("candidate", "baseline")
    sources = {"baseline": baseline, "candidate": candidate}
    other = _mapping_record(sources[other_side][0], f"{other_side}_mapping", project_folder(project))
    error = EvidenceError(
        "the arms",
        f"the {side} ({sources[side][0]}) was measured and the {other_side} ({sources[other_side][0]}) is a mapping to replay",
        "two measured arms, or two mappings: what the hardware model is off by would count as the candidate's",
        "measure the other arm too, or give both as mappings",
    )
    click.echo(f"replay: {error}", err=True)
    alone = replace(options, traces=(), hardware=(), measurements=())
    return without_pair(measured_request(sources[side], sources[side], alone, project), side, other, error)


def _mapping_record(source: str, role: str, folder: Path) -> InputRecord | None:
    """Return a mapping by content, or None for one at a commit; a file that is no mapping either is an error of its own."""
    from gates.statement import InputRecord

    if source.startswith(GIT_PREFIX):
        return None
    arm = read_arm(source, role=role.partition("_")[0], folder=folder)
    return InputRecord(role=role, name=arm.label, digest=arm.mapping.digest)


def measured_request(
    baseline: tuple[str, ...], candidate: tuple[str, ...], options: GateOptions, project: Project | None
) -> MeasuredRequest:
    """Return the request of a gate on measured runs: the baseline read, the candidate to be read when the plan is made.

    Raises:
        InputError: something cannot be used, or more than one trace, model or accelerator is named.
    """
    from gates.cli.gate_request import as_of_time, read_evaluations
    from gates.policy import default_measured_policy
    from gates.request import MeasuredRequest

    for name, values in (("trace", options.traces), ("hardware", options.hardware)):
        if len(values) > 1:
            got = f"{len(values)} values for measured arms"
            raise SpecError(f"--{name}", got, "the one that both arms were measured with", "gate each pair of results on its own")
    if options.measurements:
        raise SpecError("--measurements", "it was given for measured arms", "mappings to replay", "leave it out")
    folder = project_folder(project)
    rules = read_rules(policy=options.policy, owners=options.owners, project=project, before=None, commit=None, mapping=None)
    is_default = rules.policy_name == SHIPPED_POLICY
    policy = default_measured_policy() if is_default else rules.policy
    traces = load_traces(options.traces, None) if options.traces else []
    archive = chosen(options.archive, project.archive if project else None, project)
    arm = read_measured_arm(baseline, folder)
    reference = load_reference(options.reference, project)
    unlike = _unlike(policy, arm, traces[0][0] if traces else None, reference[0] if reference else None)
    return MeasuredRequest(
        baseline=arm,
        read_candidate=partial(read_measured_arm, candidate, folder),
        policy=policy,
        policy_name=MEASURED_POLICY if is_default else rules.policy_name,
        owners=rules.owners,
        owners_name=rules.owners_name,
        owners_digest=rules.owners_digest,
        seed=chosen_seed(options.seed, project),
        as_of=as_of_time(options.as_of, policy, None),
        findings=(*rules.findings, *unlike),
        quality=read_evaluations(options, folder),
        trace=traces[0][0] if traces else None,
        trace_name=relative_name(traces[0][1], folder) if traces else None,
        trace_locator=locator(traces[0][1], folder) if traces else None,
        hardware=options.hardware[0] if options.hardware else None,
        model=options.model,
        archive=None if archive is None else read_archive(archive, folder),
    )


def _unlike(policy: PolicySpec, arm: MeasuredArm, trace: Trace | None, reference: Trace | None) -> Iterator[Finding]:
    """Find a load further from the reference than the policy accepts: that of the trace where one is named, else of each run's requests."""
    import pyarrow.compute as pc

    from gates.checks.representative import load_alike, shapes_alike, without_reference

    limits = policy.representativeness
    if reference is None:
        yield from without_reference(limits, arm.label)
    elif trace is not None:
        yield from shapes_alike(limits, trace.name, trace.requests, reference)
        yield from load_alike(limits, trace, reference)
    else:
        for name, run in arm.runs:
            lengths = run.requests.select(["prompt_tokens", "output_tokens"]).drop_null()
            known = lengths.filter(pc.and_(pc.greater(lengths["prompt_tokens"], 0), pc.greater(lengths["output_tokens"], 0)))
            yield from shapes_alike(limits, name, known, reference)


def read_measured_arm(sources: tuple[str, ...], folder: Path) -> MeasuredArm:
    """Return the arm of one or several results; names are made relative to `folder`.

    Raises:
        InputError: one cannot be read, the same file is given twice, or their mappings differ.
    """
    from gates.request import MeasuredArm
    from replay.ingress.measured.reader import read_measured

    found = [read_measured(Path(source)) for source in sources]
    runs = [(relative_name(Path(source), folder), run) for source, own in zip(sources, found, strict=True) for run in own]
    digests = [own[0].facts.digest for own in found if own]
    if len(set(digests)) < len(digests):  # a copy, too, would look like a run that differs from none
        raise SpecError("the arms", "one result is given twice in an arm", "a run of its own for each", "name each result once")
    mappings = [_mapping(Path(source), folder) for source in sources]
    known = [mapping for mapping in mappings if mapping is not None]
    if known and (len(known) < len(mappings) or len({mapping.digest for _, mapping in known}) > 1):
        raise SpecError("the arms", "runs of one arm with different mappings", "repeats of one build", "gate the builds one by one")
    name, mapping = known[0] if known else (None, None)
    return MeasuredArm(
        label=", ".join(relative_name(Path(one), folder) for one in sources), runs=tuple(runs), mapping=mapping, mapping_name=name
    )


def read_archive(path: Path, folder: Path) -> RunArchive:
    """Return the archived runs of a folder: one set for each of its sub-folders that holds several, else all of them as one set.

    A run is a result file, or a folder with one.

    Raises:
        InputError: it is no folder, holds no result, or one cannot be read or is there twice.
    """
    from gates.request import RunArchive
    from replay.ingress.measured.reader import read_measured

    if not path.is_dir():
        raise SpecError("--archive", f"{path} is no folder", "a folder of measured runs", "name the folder")
    entries = _entries(path)
    alone = [one for one in entries if one.is_file() or (is_measured(str(one)) and not _is_set(one))]
    groups = [alone, *([inner for inner in _entries(one) if is_measured(str(inner))] for one in entries if one not in alone)]
    found = [[(relative_name(source, folder), read_measured(source)) for source in group] for group in groups]
    digests = [runs[0].facts.digest for group in found for _, runs in group if runs]
    if not digests:
        raise SpecError("--archive", f"{path} holds no result", "measured runs of one configuration", "name a folder with some")
    if len(set(digests)) < len(digests):  # a copy would look like a run that differs from none
        raise SpecError("--archive", f"{path} holds one result twice", "a run of its own for each", "remove the copies")
    sets = (tuple((name, run) for name, runs in group for run in runs if not run.is_summary) for group in found)
    return RunArchive(label=relative_name(path, folder), sets=tuple(one for one in sets if one))


def _entries(folder: Path) -> list[Path]:
    """Return the folders and the result files in a folder, sorted."""
    return sorted([*(one for one in folder.iterdir() if one.is_dir()), *_results(folder)])


def _results(folder: Path) -> list[Path]:
    """Return the result files that lie directly in a folder."""
    from replay.ingress.measured.reader import MAPPING_FILE, STEPS_FILE, is_result

    return [one for one in folder.iterdir() if one.is_file() and one.name not in (STEPS_FILE, MAPPING_FILE) and is_result(one)]


def _is_set(folder: Path) -> bool:
    """Return whether a folder holds the requests of several runs, and not one run with the summary beside it."""
    from replay.ingress.measured.reader import read_measured

    return sum(not all(run.is_summary for run in read_measured(one)) for one in _results(folder)) > 1


def _mapping(source: Path, folder: Path) -> tuple[str, MappingSpec] | None:
    """Return the mapping that a folder brings beside its result, and its name."""
    from replay.ingress.measured.reader import MAPPING_FILE

    path = source / MAPPING_FILE
    if not path.is_file():
        return None
    text, name = documents.decode(documents.read_bytes(path, _WHAT), str(path), _WHAT), relative_name(path, folder)
    return name, parse_mapping(text, name, tables_beside(path))
