"""The user's cache of tabulated mappings: one file a table in the cache folder, named by the digest of all that decides it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import click

import replay
from gates.cli.progress import note
from replay import documents
from replay.errors import SpecError

Function = TypeVar("Function", bound=Callable[..., Any])

FOLDER = Path("replay-gate") / "tables"
LIMIT_BYTES = 512 * 1024**2
"""About a hundred tables of 8192 tokens; the files used longest ago go first."""
_DECIDING = ("specs", "lowering", "tiling")
"""Parts of `replay` whose code decides a table."""
_OURS = re.compile(r"[0-9a-f]{64}\.arrow|\.fresh\..+")
"""Tables, and what a process that was killed while writing one left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCache:
    """A folder of tables, shared by any number of processes: files appear whole, and one that is gone is made again."""

    folder: Path
    limit_bytes: int
    edition: str

    def read(self, key: str) -> bytes | None:
        """Return the bytes of a table, or None where there are none to be had."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):
            os.utime(path)
        return data

    def write(self, key: str, data: bytes) -> None:
        """Keep a table, and remove the ones used longest ago beyond the limit; a folder that takes no files is said once a table."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            documents.write_atomic(self._path(key), data)
        except (OSError, SpecError) as error:
            note(f"tables are not kept: {error}")
            return
        self._trim()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key.removeprefix('sha256:')}.arrow"

    def _trim(self) -> None:
        left = self.limit_bytes
        for path, _, size_bytes in sorted(self._files(), key=lambda file: file[1], reverse=True):
            left -= size_bytes
            if left < 0:
                with suppress(OSError):  # another process was quicker
                    path.unlink()

    def _files(self) -> Iterator[tuple[Path, float, int]]:
        """Yield (path, time of last use, bytes) of each file that is ours."""
        for path in self.folder.iterdir():
            with suppress(OSError):
                if _OURS.fullmatch(path.name):
                    found = path.lstat()
                    yield path, found.st_mtime, found.st_size


def cache_option(function: Function) -> Function:
    """Add the option of verbs that tabulate mappings."""
    return click.option("--no-cache", is_flag=True, help="Tabulate anew, neither reading nor writing the user's cache folder.")(function)


def user_cache(no_cache: bool) -> UserCache | None:
    """Return the cache in the user's cache folder (``$XDG_CACHE_HOME``, else ``~/.cache``); None where there is none, or none is wanted."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        top = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError:  # no home
        return None
    return None if no_cache else UserCache(folder=top / FOLDER, limit_bytes=LIMIT_BYTES, edition=_edition())


def _edition() -> str:
    """Return the product's version, the digest of the code that makes tables, and what numpy computes with: last bits may depend on it."""
    import numpy as np

    code = hashlib.sha256()
    top = Path(replay.__file__).parent
    for path in sorted(path for part in _DECIDING for path in (top / part).rglob("*.py")):
        code.update(path.relative_to(top).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    instructions = np.show_config(mode="dicts")["SIMD Extensions"]
    return f"{version('replay-gate')} {code.hexdigest()} numpy {np.__version__} {platform.machine()} {instructions}"
