"""`replay demo`: copy the shipped sample project."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from gates.project import DEFAULT_OUT
from replay.documents import check_writable, shipped_path
from replay.errors import SpecError


@click.command("demo")
@click.argument("folder", type=click.Path(path_type=Path))
def command(folder: Path) -> None:
    """Copy the shipped sample project (mappings, policy, owners, a synthetic trace) into FOLDER."""
    check_writable(folder)
    if os.path.lexists(folder) and (not os.path.isdir(folder) or any(folder.iterdir())):
        raise SpecError(str(folder), "it exists and is not an empty folder", "a new folder", "name another one")
    shutil.copytree(shipped_path("traces") / "demo", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(DEFAULT_OUT))
    click.echo(f"wrote {folder}; next: cd {folder} && replay gate --baseline mapping.toml --candidate mapping.candidate.toml")
