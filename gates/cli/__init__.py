"""The command line: the only place with click, stdout and exit codes; one file per verb, loaded when it is called."""

from __future__ import annotations

import errno
import importlib
import logging
from typing import Any

import click

from replay.errors import EvidenceError, InputError, SpecError

EXIT_USAGE = 2
EXIT_INVALID_EVIDENCE = 30
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it; 1 is left to crashes."""

VERBS = {
    "gate": "Decide whether a mapping change may be released.",
    "run": "Replay one mapping on traces and write what would have happened.",
    "baseline": "Freeze a mapping and its figures as a baseline bundle.",
    "trace": "Import, describe, cut or make request traces.",
    "map": "Print the operator-to-kernel mapping sheet, or what changes between two mappings.",
    "sweep": "Show latency, goodput and energy as the load rises, and the highest load that keeps the limits.",
    "fit": "Show which accelerators bear a workload, with how many devices, and how sure that is.",
    "tune": "Write a mapping tuned for the shape mix of a trace.",
    "fidelity": "Compare predicted with measured kernel times, or with a server's request log.",
    "calibrate": "Fit the hardware model to measured kernels, or a step model to a server's request log.",
    "quality": "Measure what a mapping's number formats do to a model's answers.",
    "selfcheck": "Measure how often the gate is wrong on a trace and a policy.",
    "explain": "Tell the story of a verdict in a page.",
    "report": "Draw a verdict, a packet or a run as a page.",
    "verify": "Check a packet's schema, digests and signature without replaying.",
    "reproduce": "Recompute a verdict from its packet and compare it byte for byte.",
    "scenario": "Run described cases through the gate and compare its verdicts with the expected ones.",
    "history": "Show trends, change points and drift over the verdicts of a history.",
    "validate": "Check files that people write against their schemas.",
    "demo": "Copy the shipped sample project into a folder.",
}


class _Verbs(click.Group):
    """A group whose verbs are imported only when one is called, so that `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"gates.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        from replay.errors import nearest

        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise click.UsageError(f"No such command {args[0]!r}{nearest(args[0], VERBS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; what is wrong with an input becomes one sentence and its exit code."""
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of its font cache, which is nothing to a reader of verdicts
        try:
            return super().invoke(ctx)
        except InputError as error:
            click.echo(f"replay: {error}", err=True)
            ctx.exit(EXIT_INVALID_EVIDENCE if isinstance(error, EvidenceError) else EXIT_USAGE)
        except KeyboardInterrupt:
            click.echo("replay: interrupted; nothing half-written is left", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of stdout went away
                raise
            place = SpecError(
                str(error.filename or "a file"),
                error.strerror or str(error),
                "a place that can be used",
                "check the path and its permissions",
            )
            click.echo(f"replay: {place}", err=True)
            ctx.exit(EXIT_USAGE)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="replay-gate", prog_name="replay")
def main() -> None:
    """Replay recorded request traces through a mapping of a model onto an accelerator, and gate a change of that mapping.

    The main job: `replay gate --baseline mapping.toml --candidate mapping.candidate.toml`. What the command line leaves out
    comes from the nearest replay.toml. Exit codes: 0 release, 10 regression, 20 inconclusive, 30 invalid evidence, 2 usage.
    """
