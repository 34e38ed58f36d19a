"""The ledger: where verdicts are kept - an SQLite file by its path, or any database by its SQLAlchemy URL (extra `history`).

Both are spoken to in one plain SQL with named parameters. A verdict is one transaction, so writers at the same time lose nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from gates.history.databases import AlreadyThereError, DatabaseError, SqliteSession, UrlSession, sqlite_session, url_session
from gates.history.rows import ClaimRow, VerdictRow
from replay.errors import SpecError

Row = TypeVar("Row", VerdictRow, ClaimRow)
Session = SqliteSession | UrlSession
RowType = type[VerdictRow] | type[ClaimRow]

_TYPES = {"float | None": "DOUBLE PRECISION", "float": "DOUBLE PRECISION", "bool": "INTEGER"}
_TABLES: dict[RowType, str] = {VerdictRow: "replay_verdicts", ClaimRow: "replay_claims"}
_KEYS: dict[RowType, tuple[str, ...]] = {VerdictRow: ("digest",), ClaimRow: ("verdict", "trace", "hardware", "claim_key")}
_ORDER: dict[RowType, str] = {VerdictRow: "appended_at, digest", ClaimRow: "verdict, trace, hardware, claim_key"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A place that verdicts are appended to and read from."""

    place: str
    """A path, or an SQLAlchemy URL."""

    @property
    def is_url(self) -> bool:
        """Whether the place is a URL; else it is the path of an SQLite file."""
        return "://" in self.place

    @property
    def label(self) -> str:
        """The place as it may be shown: a URL without user, password and parameters."""
        if not self.is_url:
            return self.place
        scheme, _, rest = self.place.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"

    def append(self, verdict: VerdictRow, claims: Sequence[ClaimRow]) -> bool:
        """Add a verdict with its claims; return whether it is new. The same verdict twice is one.

        Raises:
            SpecError: it cannot be written.
        """
        try:
            try:
                return self._append(verdict, claims)
            except AlreadyThereError:  # another writer made the tables or this very row in between: look again
                return self._append(verdict, claims)
        except DatabaseError as error:
            raise self._refused(error) from error

    def read(self) -> tuple[tuple[VerdictRow, ...], tuple[ClaimRow, ...]]:
        """Return all verdicts in the order they were appended, and their claims; what does not exist yet holds none.

        Raises:
            SpecError: it cannot be read.
        """
        if not self.is_url and not os.path.lexists(self.place):
            return (), ()
        try:
            with self._session(writes=False) as session:
                return tuple(_all(session, VerdictRow)), tuple(_all(session, ClaimRow))
        except DatabaseError as error:
            raise self._refused(error) from error

    def _append(self, verdict: VerdictRow, claims: Sequence[ClaimRow]) -> bool:
        with self._session(writes=True) as session:
            for row, table in _TABLES.items():
                if not session.has(table):
                    session.run(_create(row))
            if session.run("SELECT 1 FROM replay_verdicts WHERE digest = :digest", [{"digest": verdict.digest}]):
                return False
            session.run(_insert(VerdictRow), [_values(verdict)])
            if claims:
                session.run(_insert(ClaimRow), [_values(claim) for claim in claims])
        return True

    def _session(self, *, writes: bool) -> AbstractContextManager[SqliteSession] | AbstractContextManager[UrlSession]:
        return url_session(self.place) if self.is_url else sqlite_session(Path(self.place), writes=writes)

    def _refused(self, error: DatabaseError) -> SpecError:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        fix = "check the URL, its driver and the rights" if self.is_url else "check the path and its permissions"
        return SpecError(self.label, f"the history cannot be used: {said}", "an SQLite file, or an SQLAlchemy URL", fix)


def _create(row: RowType) -> str:
    keys = _KEYS[row]
    columns = [f"{one.name} {_TYPES.get(str(one.type), 'VARCHAR(255)' if one.name in keys else 'TEXT')}" for one in fields(row)]
    return f"CREATE TABLE IF NOT EXISTS {_TABLES[row]} ({', '.join(columns)}, PRIMARY KEY ({', '.join(keys)}))"


def _insert(row: RowType) -> str:
    names = [one.name for one in fields(row)]
    return f"INSERT INTO {_TABLES[row]} ({', '.join(names)}) VALUES ({', '.join(':' + name for name in names)})"


def _values(row: VerdictRow | ClaimRow) -> dict[str, Any]:
    named = zip((one.name for one in fields(row)), astuple(row), strict=True)
    return {name: int(value) if isinstance(value, bool) else value for name, value in named}


def _all(session: Session, row: type[Row]) -> Iterator[Row]:
    if not session.has(_TABLES[row]):
        return
    names = [one.name for one in fields(row)]
    for values in session.run(f"SELECT {', '.join(names)} FROM {_TABLES[row]} ORDER BY {_ORDER[row]}"):
        named = dict(zip(names, values, strict=True))
        if "is_blocking" in named:
            named["is_blocking"] = bool(named["is_blocking"])
        yield row(**named)
