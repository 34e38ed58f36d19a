"""One transaction on an SQLite file, or on any database by URL through SQLAlchemy (imported only when a history is a URL)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection

BUSY_S = 30.0
"""How long a writer of an SQLite file waits for another one."""
Rows = list[tuple[Any, ...]]
Values = Sequence[dict[str, Any]]


class DatabaseError(Exception):
    """What a database or its driver complained about, in words."""


class AlreadyThereError(DatabaseError):
    """Another writer made the same table or row at the same time."""


class SqliteSession:
    """One transaction on an SQLite file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def has(self, table: str) -> bool:
        """Return whether there is such a table."""
        return bool(self.run("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name", [{"name": table}]))

    def run(self, statement: str, values: Values = ({},)) -> Rows:
        """Run a statement for each set of named values and return the rows of the last one, where it has any."""
        rows: Rows = []
        for one in values:
            rows = self._connection.execute(statement, one).fetchall()
        return rows


@contextmanager
def sqlite_session(path: Path, *, writes: bool) -> Iterator[SqliteSession]:
    """Yield a transaction; a writer takes the file's lock at its start, so that two never meet half-way.

    Raises:
        DatabaseError: the file cannot be used, or is no SQLite file.
    """
    place = f"{path.absolute().as_uri()}?mode={'rwc' if writes else 'ro'}"
    try:
        if writes:
            path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(place, uri=True, timeout=BUSY_S, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            yield SqliteSession(connection)  # closing without a commit rolls back
            connection.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise DatabaseError(str(error)) from error


class UrlSession:
    """One transaction on the database of a URL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def has(self, table: str) -> bool:
        """Return whether there is such a table."""
        from sqlalchemy import inspect

        return inspect(self._connection).has_table(table)

    def run(self, statement: str, values: Values = ({},)) -> Rows:
        """Run a statement for each set of named values and return the rows of the last one, where it has any."""
        from sqlalchemy import text

        result = self._connection.execute(text(statement), list(values) if len(values) > 1 else values[0])
        return [tuple(row) for row in result] if result.returns_rows else []


@contextmanager
def url_session(url: str) -> Iterator[UrlSession]:
    """Yield a transaction on the database of an SQLAlchemy URL.

    Raises:
        DatabaseError: SQLAlchemy or the driver is missing, or the database cannot be reached or refuses.
        AlreadyThereError: another writer made the same table or row at the same time.
    """
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
        from sqlalchemy.pool import NullPool
    except ImportError as error:
        raise DatabaseError("a URL needs SQLAlchemy (pip install 'replay-gate[history]')") from error
    try:
        with create_engine(url, poolclass=NullPool).begin() as connection:
            yield UrlSession(connection)
    except IntegrityError as error:
        raise AlreadyThereError(str(error.orig)) from error
    except DBAPIError as error:
        raise DatabaseError(str(error.orig)) from error
    except (SQLAlchemyError, ValueError) as error:
        raise DatabaseError(type(error).__name__ + ": the URL cannot be used") from error
    except ImportError as error:
        raise DatabaseError(f"the database's driver is missing ({error})") from error
