"""Results of verbs that are one document: as a folder of JSON and CSV, or on stdout."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from replay.documents import pretty_json
from replay.folders import check_folder, write_folder

Rows = Sequence[dict[str, Any]]


def check_result_folder(folder: Path | None, name: str) -> None:
    """Refuse, before anything is replayed, a folder that holds other things than an older result of the same kind.

    Raises:
        SpecError: such content is there.
    """
    if folder is not None:
        check_folder(folder, what=f"a {name}", listed=lambda _: _names(name))


def give_result(document: dict[str, Any], rows: Rows, lines: Sequence[str], *, name: str, out: Path | None, form: str) -> None:
    """Print a result in a form (text, json or csv) and, with `out`, write ``<name>.json`` and ``<name>.csv``, both or neither.

    Raises:
        SpecError: the folder holds something else, or cannot be written.
    """
    text, table = pretty_json(document), _csv(rows)
    if out is not None:
        contents = {f"{name}.json": text.encode(), f"{name}.csv": table.encode()}
        write_folder(out, contents, what=f"a {name}", listed=lambda _: _names(name))
    shown = {"json": text, "csv": table, "text": "\n".join(lines) + "\n"}[form]
    click.echo(shown, nl=False)


def _names(name: str) -> frozenset[str]:
    return frozenset({f"{name}.json", f"{name}.csv"})


def _csv(rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
