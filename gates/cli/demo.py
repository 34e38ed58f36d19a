"""`replay demo`: copy the shipped sample project."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from replay.documents import shipped_path
from replay.errors import SpecError


@click.command("demo")
@click.argument("folder", type=click.Path(path_type=Path))
def command(folder: Path) -> None:
    """Copy the shipped sample project (mappings, policy, owners, a synthetic trace) into FOLDER."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(str(folder), "it exists and is not an empty folder", "a new folder", "name another one")
    shutil.copytree(shipped_path("traces") / "demo", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("replay-out"))
    click.echo(f"wrote {folder}; next: cd {folder} && replay gate --baseline mapping.toml --candidate mapping.candidate.toml")
