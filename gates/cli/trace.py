"""`replay trace`: import, describe, cut and make request traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replay.errors import TraceError
from replay.names import safe_name

if TYPE_CHECKING:
    from replay.ingress.trace import Trace
    from replay.specs.routing import ExpertLoad

_FORM = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
_OUT = click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Trace to write (.parquet or .jsonl).")
_NAME = click.option("--name", metavar="TEXT", help="Name of the trace (default: the output file's where it differs from FILE's).")
_FILE = click.argument("file", type=click.Path(path_type=Path))


UNIFORM = "uniform"


@click.group("trace")
def command() -> None:
    """Import, describe, cut or make request traces."""


@command.command("import")
@_FILE
@_OUT
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Requests per second of generated (Poisson) arrivals, for files without."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of generated arrivals.")
@click.option("--origin", metavar="TEXT", help="State that the requests were recorded, and where; for files that do not say.")
@click.option(
    "--expert-load",
    metavar="FILE|uniform",
    help="How often each expert was chosen (JSON, schema expert-load.v1), or a statement that all were chosen equally often.",
)
@_NAME
@_FORM
def import_(out: Path, name: str | None, form: str, **options: Any) -> None:
    """Read a trace in any known format and write it in the native one, with its provenance."""
    from replay.ingress.normalize import stated_as_recorded, with_poisson_arrivals
    from replay.ingress.reader import read_trace
    from replay.ingress.trace import with_expert_load

    file, rate, load = options["file"], options["rate"], options["expert_load"]
    trace = read_trace(file)
    if rate is not None:
        trace = with_poisson_arrivals(trace, rate_per_s=rate, seed=options["seed"])
    if options["origin"] is not None:
        trace = stated_as_recorded(trace, origin=options["origin"])
    if load is not None:
        trace = with_expert_load(trace, _expert_load(load))
    _write(_named(trace, name, file, out), out, form)


def _expert_load(source: str) -> ExpertLoad:
    """Return the load in a file, or the statement that routing is uniform."""
    from replay.documents import read_json_object
    from replay.ingress.native import read_load
    from replay.specs.routing import ExpertLoad

    if source == UNIFORM:
        return ExpertLoad(origin="stated as uniform on import")
    return read_load(read_json_object(Path(source), "an expert load (JSON)"), source)


@command.command("info")
@_FILE
@_FORM
def info(file: Path, form: str) -> None:
    """Describe a trace: rows, provenance, rates, lengths."""
    from replay.ingress.reader import read_trace

    _describe(read_trace(file), form)


@command.command("slice")
@_FILE
@_OUT
@click.option("--start", type=click.FloatRange(min=0), default=0.0, show_default=True, help="First second kept, from the first arrival.")
@click.option("--end", type=click.FloatRange(min=0, min_open=True), help="First second not kept.")
@click.option("--max-requests", type=click.IntRange(min=1), help="Keep at most so many requests.")
@_NAME
@_FORM
def slice_(file: Path, out: Path, start: float, end: float | None, max_requests: int | None, name: str | None, form: str) -> None:
    """Keep a window of a trace; what was cut is written into its provenance."""
    from replay.ingress.normalize import slice_trace
    from replay.ingress.reader import read_trace

    if end is not None and end <= start:
        raise TraceError("--end", f"it is {end:g}", f"a time after --start ({start:g})", "give a later --end")
    trace = slice_trace(read_trace(file), start_s=start, end_s=end, max_requests=max_requests)
    _write(_named(trace, name, file, out), out, form)


@command.command("scale")
@_FILE
@_OUT
@click.option("--rate-ratio", required=True, type=click.FloatRange(min=0, min_open=True), help="How many times as fast requests arrive.")
@_NAME
@_FORM
def scale(file: Path, out: Path, rate_ratio: float, name: str | None, form: str) -> None:
    """Let the requests of a trace arrive faster or slower; lengths stay."""
    from replay.ingress.reader import read_trace
    from replay.ingress.sending import scaled_trace

    _write(_named(scaled_trace(read_trace(file), rate_ratio=rate_ratio), name, file, out), out, form)


@command.command("load")
@_FILE
@_OUT
@click.option("--concurrency", type=click.IntRange(min=1), help="Requests under way at most; the others wait at their clients.")
@click.option("--sessions", is_flag=True, help="Send a session's next request only when the one before it has ended.")
@click.option("--think-s", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Time from an answer to the next request.")
@_NAME
@_FORM
def load(file: Path, out: Path, concurrency: int | None, sessions: bool, think_s: float, name: str | None, form: str) -> None:
    """Say how clients send the requests, where not each at its own arrival.

    With arrivals, a concurrency is a cap in front of them: latencies still count from the scheduled arrival. Without, it makes a
    closed loop: each client sends its next request when the last one has ended.
    """
    from replay.ingress.reader import read_trace
    from replay.ingress.sending import with_load
    from replay.provenance import Load

    stated = Load(concurrency=concurrency, sessions=sessions, think_s=think_s)
    _write(_named(with_load(read_trace(file), stated), name, file, out), out, form)


@command.command("synth")
@click.argument("recipe", type=click.Path(path_type=Path))
@_OUT
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--name", metavar="TEXT", help="Name of the trace (default: the file's).")
@_FORM
def synth(recipe: Path, out: Path, seed: int, name: str | None, form: str) -> None:
    """Make a synthetic trace from RECIPE, a TOML file of published summary figures; it is labelled synthetic.

    Keys: figures_of, requests_count, rate_per_s, gap_cv, and [prompt_tokens] and [output_tokens] with minimum, p50, p95, p99
    and maximum.
    """
    from replay.ingress.synth import read_recipe, synthesize

    _write(synthesize(read_recipe(recipe), seed=seed, name=name or safe_name(out.stem)), out, form)


def _named(trace: Trace, name: str | None, file: Path, out: Path) -> Trace:
    """Return a trace under its own name, or that of the file it is written to where that is another than it was read from."""
    from replay.ingress.trace import renamed

    if name is not None:
        return renamed(trace, name)
    return trace if out.stem == file.stem else renamed(trace, safe_name(out.stem))


def _write(trace: Trace, out: Path, form: str) -> None:
    from replay.ingress.native import write_trace

    write_trace(trace, out)
    _describe(trace, form)


def _describe(trace: Trace, form: str) -> None:
    from replay.documents import pretty_json
    from replay.ingress.summary import summarize

    facts = summarize(trace)
    click.echo(pretty_json(facts) if form == "json" else "\n".join(_lines(facts)) + "\n", nl=False)


def _lines(facts: dict[str, Any], indent: str = "") -> list[str]:
    """Return ``name  value`` lines; nested facts are indented."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{indent}{name}", *(f"{indent}  " + "  ".join(str(part) for part in entry.values()) for entry in value)]
        elif isinstance(value, list):
            lines += [f"{indent}{name}", *(f"{indent}  - {entry}" for entry in value)] if value else []
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
            lines.append(f"{indent}{name:<28} {shown}")
    return lines
