"""GitHub's CODEOWNERS: who owns a path of a repository; the fallback where the owners file is silent.

Patterns are gitignore's, as GitHub documents them for this file: ``*`` stops at a slash, ``**`` does not, a slash at the start or
inside ties the pattern to the top, one at the end means a folder, ``docs/*`` reaches files directly in `docs` only; ``!`` and
``[ ]`` are not part of the syntax. The last pattern that matches wins, also when it names nobody.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from replay import documents

PLACES = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS")
"""Where GitHub looks, in its order; the first file found is used alone."""

_WHAT = "a CODEOWNERS file"
_OWNER = re.compile(r"@[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)?|[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeownersRule:
    """One line: a pattern and its owners, none where the line takes ownership away."""

    pattern: str
    owners: tuple[str, ...]
    line: int

    def covers(self, path: PurePosixPath) -> bool:
        """Return whether the pattern covers a path relative to the repository's top."""
        return re.fullmatch(_expression(self.pattern), path.as_posix()) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Codeowners:
    """A CODEOWNERS file; a line that GitHub would skip is set aside with a warning."""

    where: str
    rules: tuple[CodeownersRule, ...]
    warnings: tuple[str, ...] = ()

    def rule_of(self, path: PurePosixPath) -> CodeownersRule | None:
        """Return the last rule that covers a path, or None."""
        return next((rule for rule in reversed(self.rules) if rule.covers(path)), None)


def parse_codeowners(text: str, where: str) -> Codeowners:
    """Return the rules of a CODEOWNERS text, in file order."""
    rules, warnings = [], []
    for number, line in enumerate(text.splitlines(), 1):
        pattern, *owners = _words(line) or [""]
        if not pattern:
            continue
        problem = _problem(pattern, owners)
        if problem:
            warnings.append(f"{where}:{number}: {problem}; GitHub skips such a line, and so is it skipped here")
        else:
            rules.append(CodeownersRule(pattern=pattern, owners=tuple(owners), line=number))
    return Codeowners(where=where, rules=tuple(rules), warnings=tuple(warnings))


def find_codeowners(file: Path, read: Callable[[Path], str | None] | None = None) -> tuple[Codeowners, PurePosixPath] | None:
    """Return the CODEOWNERS of the repository that holds a file, and the file's path in it; None outside a repository or without one.

    `read` returns a file's text, or None where there is no such file; by default the work tree's.

    Raises:
        SpecError: the file exists and cannot be read.
    """
    file = file.resolve()
    top = next((folder for folder in file.parents if (folder / ".git").exists()), None)
    if top is None:
        return None
    for place in PLACES:
        text = (read or _text_of_file)(top / place)
        if text is not None:
            return parse_codeowners(text, place), PurePosixPath(file.relative_to(top).as_posix())
    return None


def _text_of_file(path: Path) -> str | None:
    if not path.is_file():
        return None
    data = documents.read_bytes(path, _WHAT) if path.stat().st_size else b""  # an empty one gives nobody, as on GitHub
    return documents.decode(data, str(path), _WHAT)


def _words(line: str) -> list[str]:
    """Return a line's words; a backslash keeps the space after it, ``#`` at the start of a word begins a comment."""
    words = []
    for word in re.findall(r"(?:\\.|\S)+", line):
        if word.startswith("#"):
            break
        words.append(re.sub(r"\\(.)", r"\1", word))
    return words


def _problem(pattern: str, owners: list[str]) -> str | None:
    if pattern.startswith(("!", "#")) or "[" in pattern:
        return f"the pattern {pattern!r} uses !, [ ] or an escaped #, which CODEOWNERS does not have"
    wrong = next((owner for owner in owners if not _OWNER.fullmatch(owner)), None)
    return f"{wrong!r} is neither @user, @organisation/team nor an address" if wrong else None


def _expression(pattern: str) -> str:
    """Return the regular expression over whole paths that a pattern means."""
    body = pattern.strip("/")
    anchored = "/" in pattern.rstrip("/")
    if pattern.endswith("/"):
        rest = "/.+"
    elif pattern.endswith("/*"):
        rest = ""
    else:
        rest = "(?:/.*)?"
    pieces = re.split(r"(^\*\*/|/\*\*/|/\*\*$|\*\*|\*|\?)", body)
    wild = {"**/": "(?:.*/)?", "/**/": "/(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    translated = "".join(wild.get(piece, re.escape(piece)) for piece in pieces)
    return ("" if anchored else "(?:.*/)?") + translated + rest
