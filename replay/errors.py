"""Errors about what people hand to the product; what is wrong with a *candidate* is a Finding, not an error.

::

    ReplayError
    ├── InputError            somebody's file or option cannot be used (exit code 2)
    │   ├── TraceError        a request trace
    │   ├── SpecError         a model, hardware, mapping, policy, owners or project file, or an option
    │   │   └── SchemaError   a document that violates its schema
    │   └── EvidenceError     readable, but it cannot support a decision (exit code 30)
    └── InvariantError        the product broke one of its own laws (a bug: exit code 1)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ReplayError(Exception):
    """Root of every error the product raises on purpose."""


class InputError(ReplayError):
    """One sentence about an input: where it is, what was found, what is wanted, how to fix it.

    `where` is a file name with line or key (``traces/x.jsonl:17`` or ``mapping.toml: gemm.tile``).
    """

    def __init__(self, where: str, got: str, want: str, fix: str) -> None:
        super().__init__(where, got, want, fix)
        self.where, self.got, self.want, self.fix = where, got, want, fix

    def __str__(self) -> str:
        return printable(f"{self.where}: {self.got}; want {self.want}. Fix: {self.fix}.")


class TraceError(InputError):
    """A request trace cannot be read."""


class SpecError(InputError):
    """A file that a person wrote, or an option, cannot be used."""


class SchemaError(SpecError):
    """A document violates its JSON Schema."""


class EvidenceError(InputError):
    """An input is readable but cannot support a decision: its trace is gone or changed, or the two arms cannot be compared."""


class InvariantError(ReplayError):
    """A law of the product was broken while computing: a bug here, not a fault of the input."""


def printable(text: str) -> str:
    """Return a text on one line without control characters: names of files and refs may hold any."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name that begins like it or is closest, or nothing where none is close."""
    names = list(known)
    begins = [candidate for candidate in names if len(name) > 1 and candidate.startswith(name)]
    match = begins or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""
