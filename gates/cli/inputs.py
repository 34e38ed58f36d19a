"""What a verb works on: options of the command line first, then the project file, then what a bundle carries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gates.cli.arms import ArmSource, read_arm, relative_name
from gates.project import DEFAULT_OUT, DEFAULT_SEED, Project, find_project
from replay.errors import SpecError, TraceError

if TYPE_CHECKING:
    from replay.ingress.streamed import StreamedTrace
    from replay.ingress.trace import Trace
    from replay.lowering.kernel_plan import Decision
    from replay.specs.hardware import HardwareSpec
    from replay.specs.model import ModelSpec
    from replay.tiling.step_table import StepTable

Function = TypeVar("Function", bound=Callable[..., Any])
Named = TypeVar("Named", "Trace", "StreamedTrace")


def work_options(function: Function) -> Function:
    """Add the options that say what is replayed on what."""
    options = (
        click.option(
            "--trace", "traces", multiple=True, metavar="FILE", help="Request trace; repeat for several (default: the project's)."
        ),
        click.option("--model", metavar="NAME|FILE", help="Catalog name or Hugging Face config.json (default: the project's)."),
        click.option("--hardware", multiple=True, metavar="NAME|FILE", help="Catalog name or description; repeat for several."),
        click.option("--seed", type=click.IntRange(min=0), help="Seed of every random draw (default: the project's, else 0)."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def measurements_option(function: Function) -> Function:
    """Add the option of measured kernels."""
    return click.option(
        "--measurements",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Measured kernels (CSV) that take precedence over the model for the shapes they cover; repeat for several.",
    )(function)


def current_project() -> Project | None:
    """Return the nearest project file at or above the current folder."""
    return find_project(Path.cwd())


def project_folder(project: Project | None) -> Path:
    """Return the folder that names in artifacts are relative to."""
    return project.folder if project else Path.cwd()


def chosen_mapping(option: str | None, project: Project | None) -> ArmSource:
    """Return the mapping that a verb about one mapping works on: the option's, else the project's.

    Raises:
        SpecError: neither names one, or it cannot be read.
    """
    path = chosen(option, project.mapping if project else None, project)
    source = required(str(path) if path is not None else None, "mapping", "mapping")
    return read_arm(source, role="mapping", folder=project_folder(project))


def chosen_model(option: str | None, arm: ArmSource, project: Project | None) -> ModelSpec:
    """Return the model of the option, else of a bundle or run directory, else of the project."""
    return arm.model if arm.model is not None and option is None else load_model(option, project)


def chosen_seed(option: int | None, project: Project | None) -> int:
    """Return the seed of the option, else of the project."""
    return option if option is not None else project.seed if project else DEFAULT_SEED


def chosen_out(option: Path | None, project: Project | None) -> Path:
    """Return the folder that results are written to: the option's, else the project's."""
    return option or (project.path_of(project.out) if project else Path(DEFAULT_OUT))


def chosen(option: str | None, project_value: str | None, project: Project | None) -> Path | None:
    """Return the path of an option, else the project's, else None."""
    if option is not None:
        return Path(option)
    return project.path_of(project_value) if project and project_value else None


def required(value: str | None, name: str, key: str) -> str:
    """Return a value that must be given somewhere.

    Raises:
        SpecError: neither the command line nor the project file gives it.
    """
    if not value:
        raise SpecError(
            "the command line", f"--{name} is missing", f"--{name}, or `{key}` in a project file", f"add --{name} or a replay.toml"
        )
    return value


def load_traces(options: Iterable[str], project: Project | None) -> list[tuple[Trace, Path]]:
    """Return the traces named on the command line or in the project, each with its path; errors as `named_traces`."""
    from replay.ingress.reader import read_trace

    return named_traces(read_trace, options, project)


def load_reference(option: str | None, project: Project | None) -> tuple[Trace, Path] | None:
    """Return the trace of recent traffic named on the command line or in the project, with its path; None where neither names one."""
    from replay.ingress.reader import read_trace

    path = chosen(option, project.reference if project else None, project)
    return None if path is None else (read_trace(path), path)


def named_traces(read: Callable[[Path], Named], options: Iterable[str], project: Project | None) -> list[tuple[Named, Path]]:
    """Return what `read` makes of the traces named on the command line or in the project, each with its path.

    Raises:
        TraceError: one cannot be read, or two have the same name.
    """
    paths = [Path(option) for option in options]
    if not paths and project:
        paths = [project.path_of(text) for text in project.traces]
    if not paths:
        required(None, "trace", "traces")
    found = [(read(path), path) for path in paths]
    names = [trace.name for trace, _ in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        name = sorted(twice)[0]
        fix = "cut or import one again with another --name"
        raise TraceError("--trace", f"two traces are named {name!r}", "a name of its own for each, as it labels the verdict", fix)
    return found


def load_model(option: str | None, project: Project | None) -> ModelSpec:
    """Return the model named on the command line or in the project."""
    from replay.ingress.model_config import read_model

    return read_model(model_source(option, project))


def model_source(option: str | None, project: Project | None) -> str:
    """Return the catalog name or path of the model named on the command line or in the project.

    Raises:
        SpecError: neither names one.
    """
    return _name_or_path(required(option or (project.model if project else None), "model", "model"), option, project)


def load_hardware(options: Iterable[str], project: Project | None, measurements: Sequence[Path] = ()) -> list[HardwareSpec]:
    """Return the accelerators named on the command line or in the project, with the kernels measured on them.

    Raises:
        SpecError: one is not known or cannot be used, two have the same name, or measured kernels cannot be used.
    """
    from replay.catalog.hardware import read_hardware

    given = list(options)
    texts = given or list(project.hardware if project else ())
    required(texts[0] if texts else None, "hardware", "hardware")
    found = [read_hardware(_name_or_path(text, text if given else None, project)) for text in texts]
    names = [hardware.name for hardware in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        want = "a name of its own for each, as it labels the verdict"
        raise SpecError("--hardware", f"two accelerators are named {twice!r}", want, "leave one out, or change the name in its description")
    return with_measured(found, measurements, project)


def with_measured(devices: Sequence[HardwareSpec], measurements: Sequence[Path], project: Project | None) -> list[HardwareSpec]:
    """Return the accelerators with the measured kernels of files.

    Raises:
        SpecError: a file cannot be used for any of them.
    """
    if not measurements:
        return list(devices)
    from replay.calibration.measured_kernels import with_measurements

    return with_measurements(devices, [(relative_name(path, project_folder(project)), path) for path in measurements])


def say_fallbacks(decisions: Iterable[Decision]) -> None:
    """Say on stderr what a mapping asks for and does not get, each reason once."""
    told: dict[str, Decision] = {}
    for decision in decisions:
        if decision.reason:
            told.setdefault(f"{decision.knob.partition('@')[0]} {decision.requested} {decision.reason}", decision)
    for one in told.values():
        click.echo(f"replay: {one.knob} asks for {one.requested} and gets {one.effective}: {one.reason}", err=True)


def say_unused(hardware: HardwareSpec, *tables: StepTable) -> None:
    """Say on stderr where measured kernels decide no cost of any of the mappings."""
    if hardware.measured and not any(table.measured.num_rows for table in tables):
        names = ", ".join(dict.fromkeys(one.name for one in hardware.measured))
        click.echo(f"replay: no kernel on {hardware.name} has the shape, format and stack of one that {names} measures", err=True)


def _name_or_path(text: str, option: str | None, project: Project | None) -> str:
    """Return a catalog name as it is; a path from the project file relative to the project."""
    if option is None and project and os.path.isfile(project.path_of(text)):
        return str(project.path_of(text))
    return text
