"""Files as a commit has them, read without touching the work tree."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from replay import documents
from replay.errors import SpecError

GIT_PREFIX = "git:"
_BLAMED = re.compile(r"([0-9a-f]{40,64}) \d+ (\d+)(?: \d+)?$")
"""First line of what git says of each line: the commit, the line's number in it, and in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit of the repository that holds a project."""

    top: Path
    ref: str
    """As the command line names it."""

    def holds(self, path: Path) -> bool:
        """Return whether a path lies inside the repository."""
        return self._name(path) is not None

    def text(self, path: Path) -> str | None:
        """Return a file's text at the commit, or None where the commit has no such file.

        A file outside the repository is part of no change and is read as it is.
        """
        name = self._name(path)
        if name is None:
            return text_of_file(path)
        code, data, _ = _git(self.top, "cat-file", "blob", f"{self.ref}:{name}")
        return None if code else documents.decode(data, self.label(name), "a text file")

    def _name(self, path: Path) -> str | None:
        """Return a path from the repository's top, or None outside.

        Links inside the repository are not followed: where they lead is up to the change. Only one that leads into it is.
        """
        written = Path(os.path.abspath(path))
        for place in (written, Path(os.path.realpath(written.parent), written.name)):
            if place.is_relative_to(self.top):
                return place.relative_to(self.top).as_posix()
        return None

    def label(self, name: str) -> str:
        """Return how an artifact names a file at this commit."""
        return f"{GIT_PREFIX}{self.ref}:{name}"


def open_commit(folder: Path, source: str) -> Commit:
    """Return the commit that ``git:REF`` means in the repository that holds a folder.

    Raises:
        SpecError: it names none, git is missing, or the folder is in no repository.
    """
    ref = source.removeprefix(GIT_PREFIX)
    if not ref or ref.startswith("-"):
        raise SpecError("the command line", f"{source} names no commit", "git:REF, such as git:main", "correct the ref")
    folder = folder.absolute()
    existing = next(place for place in (folder, *folder.parents) if os.path.isdir(place))  # the change may have removed the folder
    code, out, message = _git(existing, "rev-parse", "--show-toplevel")
    if code:
        raise SpecError(source, message or "no repository", "a folder in a git repository", "name a mapping file instead of a commit")
    top = Path(os.path.realpath(out.decode(errors="surrogateescape").rstrip("\n")))
    code, _, message = _git(top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if code:
        raise SpecError(source, message or "no such commit", "a commit", "check the ref (`git log`)")
    return Commit(top=top, ref=ref)


def text_of_file(path: Path) -> str | None:
    """Return a file's text, or None where there is no file.

    Raises:
        SpecError: it cannot be read, or is not UTF-8.
    """
    if not os.path.isfile(path):
        return None
    data = documents.read_bytes(path, "a text file") if path.stat().st_size else b""
    return documents.decode(data, str(path), "a text file")


def commit_time(path: Path) -> str | None:
    """Return the ISO time of the commit that a file stands at, or None where it is not committed as it is."""
    folder = path.resolve().parent
    changed, _, _ = _git(folder, "diff", "--quiet", "HEAD", "--", path.name)
    code, out, _ = _git(folder, "log", "-1", "--format=%cI", "--", path.name)
    return out.decode().strip() or None if code == 0 and changed == 0 else None


def line_commits(path: Path) -> dict[int, str]:
    """Return the commit that last changed each line of a file in its work tree: short id and subject, by line number; empty outside git.

    Lines that are not committed are left out.
    """
    code, out, _ = _git(path.resolve().parent, "blame", "--line-porcelain", "--", path.name)
    found: dict[int, str] = {}
    commit, line = "", 0
    for text in out.decode(errors="replace").splitlines() if code == 0 else ():
        head = _BLAMED.match(text)
        if head:
            commit, line = head.group(1), int(head.group(2))
        elif text.startswith("summary ") and commit.strip("0"):
            found[line] = f"{commit[:10]} {text.removeprefix('summary ')}"
    return found


def repository_prefix(folder: Path) -> str:
    """Return a folder's place in its git repository (``traces/demo/``), empty at the top and outside of any."""
    code, out, _ = _git(folder, "rev-parse", "--show-prefix")
    return out.decode().strip() if code == 0 else ""


def _git(folder: Path, *arguments: str) -> tuple[int, bytes, str]:
    """Run git in a folder; return exit code, output and the first line of what it complained about."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise SpecError("git", "it is not installed", "git", "install it, or name a mapping file instead of a commit") from error
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return done.returncode, done.stdout, lines[0].removeprefix("fatal: ") if lines else ""
