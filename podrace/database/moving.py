"""Moves the database of a service from a file of SQLite to a server of PostgreSQL, completely or not at all.

Invariants:
- All rows are copied in one transaction of the server, with the tables. Until it is committed, the server has nothing.
- The file is locked meanwhile, so no service writes to it. It is marked as moved just before the transaction is
  committed, and no service opens a file that is marked. So at no time can two services work on the two.
- A move that was interrupted can be repeated. If the process died between the mark and the commit, the repetition
  copies again; if it died after the commit, the repetition finds the database on the server by its id.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from podrace.database.deadline import Link
from podrace.database.format import Format, moved
from podrace.database.leadership import Leadership, LeaseTimes
from podrace.database.postgresql import PostgresqlEngine, PostgresqlServer
from podrace.errors import DataLoss, FailedPrecondition, NotFound

OWNERS: Mapping[int, str] = {0x706F7263: "orchestrator", 0x706F6C62: "leaderboard"}
"""The service that each application id belongs to."""
LOCK_WAIT_SECONDS = 2.0
IDENTITY = "identity"
LEASE_TIMES = LeaseTimes()
COLUMNS = """
SELECT column_name, is_identity = 'YES' FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
"""


class _DoneError(Exception):
    """Ends a transaction of the server in which nothing is left to do."""


@dataclass(frozen=True)
class Moved:
    """What was moved."""

    service: str
    """The service whose database it is."""
    database_id: str
    rows: Mapping[str, int]
    """Number of rows by table."""
    earlier: bool
    """Whether an earlier move had copied it already."""


async def move(path: Path, url: str, password: str) -> Moved:
    """Moves the database in a file to a server, and marks the file as moved.

    Args:
        path: The file. Its service must not run.
        url: The database on the server, without a password. It has no records of the service yet.
        password: The password; empty: libpq finds it.

    Raises:
        NotFound: There is no such file.
        FailedPrecondition: A service has the file open or leads on the server, the file is none of a service, or the
            server has other records of it.
        Unavailable: The server cannot be reached.
        DataLoss: The file is damaged, or the copy differs from it.
    """
    if not path.is_file():
        raise NotFound(f"database {path}: there is no such file")
    with _locked(path) as source:
        server = PostgresqlServer(url, password, source.format)

        def refuse(leader: str) -> None:
            raise FailedPrecondition(
                f"database {url}: {source.format.owner} {leader} uses it; stop all replicas of it first"
            )

        leadership = await Leadership.acquire(server.connect, "podrace migrate", times=LEASE_TIMES, on_standby=refuse)
        filling = _Filling(source, url)
        try:
            PostgresqlEngine.open(server, leadership, fill=filling).close()
        except _DoneError:
            leadership.resign()
            source.mark()
        except BaseException:
            leadership.resign()
            raise
        return Moved(source.format.owner, source.database_id, filling.rows, filling.earlier)


def take_back(path: Path) -> str:
    """Removes the mark of a file that was moved, so that its service opens it again; returns the name of the service.

    Raises:
        NotFound: There is no such file.
        FailedPrecondition: It is not marked.
    """
    if not path.is_file():
        raise NotFound(f"database {path}: there is no such file")
    with _locked(path) as source:
        if not source.marked:
            raise FailedPrecondition(f"database {path}: was not moved; its service can open it")
        source.mark(source.format.application_id)
        return source.format.owner


class _Source:
    """The locked file."""

    def __init__(self, path: Path, opened: sqlite3.Connection) -> None:
        self._opened = opened
        (application_id,) = opened.execute("PRAGMA application_id").fetchone()
        (version,) = opened.execute("PRAGMA user_version").fetchone()
        owner, self.marked = OWNERS.get(application_id), False
        if owner is None:
            application_id = moved(application_id)
            owner, self.marked = OWNERS.get(application_id), True
        if owner is None:
            raise FailedPrecondition(f"database {path}: is none of the orchestrator or the leaderboard")
        (damage,) = opened.execute("PRAGMA quick_check(1)").fetchone()
        if damage != "ok":
            raise DataLoss(f"database {path}: is damaged: {' '.join(damage.split())}; restore a copy")
        listed = opened.execute(
            "SELECT type, name, sql FROM sqlite_master"
            " WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
        ).fetchall()
        if IDENTITY not in {name for _, name, _ in listed}:
            raise FailedPrecondition(f"database {path}: was written by an early version; start its service once")
        self.tables = [name for kind, name, _ in listed if kind == "table" and name != IDENTITY]
        schema = ";".join(statement for _, name, statement in listed if name != IDENTITY)
        self.format = Format(owner, application_id, version, schema)
        self.identity = opened.execute("SELECT database_id, backup_epoch, restored_epoch FROM identity").fetchone()
        self.database_id = str(self.identity[0])

    def mark(self, application_id: int | None = None) -> None:
        """Marks the file durably as moved, or gives it an application id."""
        self._opened.execute("COMMIT")
        self._opened.execute(f"PRAGMA application_id = {application_id or moved(self.format.application_id)}")
        self._opened.execute("BEGIN EXCLUSIVE")

    def columns(self, table: str) -> list[str]:
        """Returns the names of the columns of a table."""
        return [row[1] for row in self._opened.execute(f'PRAGMA table_info("{table}")')]

    def rows(self, table: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
        """Yields the values of columns of all rows."""
        return self._opened.execute(f'SELECT {", ".join(columns)} FROM "{table}"')

    def last_number(self, table: str) -> int:
        """Returns the last number that a table with AUTOINCREMENT has given; 0 for other tables."""
        known = self._opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone()
        found = known and self._opened.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        return int(found[0]) if found else 0


@contextmanager
def _locked(path: Path) -> Iterator[_Source]:
    try:
        with closing(sqlite3.connect(path, timeout=LOCK_WAIT_SECONDS, isolation_level=None)) as opened:
            opened.execute("PRAGMA locking_mode = EXCLUSIVE")
            opened.execute("PRAGMA synchronous = FULL")
            opened.execute("BEGIN EXCLUSIVE")
            yield _Source(path, opened)
            opened.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise FailedPrecondition(f"database {path}: its service has it open; stop it first") from None
        raise FailedPrecondition(f"database {path}: cannot be read: {error}") from None
    except sqlite3.DatabaseError as error:
        raise DataLoss(f"database {path}: is damaged: {error}; restore a copy") from None


class _Filling:
    """Copies the rows within the transaction of the server that creates the tables."""

    def __init__(self, source: _Source, url: str) -> None:
        self._source, self._url = source, url
        self.rows: dict[str, int] = {}
        self.earlier = False

    def __call__(self, link: Link) -> None:
        """Copies everything, and marks the file."""
        ((database_id,),) = link.execute("SELECT database_id FROM identity").fetchall()
        present = {table: self._count(link, table) for table in self._source.tables}
        if database_id == self._source.database_id:
            self.rows, self.earlier = present, True
            raise _DoneError
        if any(present.values()):
            raise FailedPrecondition(
                f"database {self._url}: has records of the {self._source.format.owner} already; name an empty one"
            )
        try:
            for table in self._source.tables:
                self.rows[table] = self._copy(link, table)
        except psycopg.DataError as error:
            raise FailedPrecondition(f"database {self._url}: refuses a value: {' '.join(str(error).split())}") from None
        statement = "UPDATE identity SET database_id = %s, backup_epoch = %s, restored_epoch = %s"
        link.execute(statement, list(self._source.identity))
        self._source.mark()

    def _copy(self, link: Link, table: str) -> int:
        found = link.execute(COLUMNS, [self._source.format.owner, table]).fetchall()
        numbered = [name for name, identity in found if identity]
        columns = [*self._source.columns(table), *(["rowid"] if "rowid" in numbered else [])]
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), names)
        count = 0
        with link.cursor() as cursor, cursor.copy(statement) as copy:
            for row in self._source.rows(table, columns):
                copy.write_row(row)
                count += 1
        if self._count(link, table) != count:
            raise DataLoss(f"database {self._url}: has {self._count(link, table)} of {count} rows of {table}")
        for column in numbered:
            self._continue_numbers(link, table, column)
        return count

    def _continue_numbers(self, link: Link, table: str, column: str) -> None:
        """Lets a column continue after its highest number, and after those of rows that were deleted."""
        statement = sql.SQL("SELECT coalesce(max({}), 0) FROM {}").format(sql.Identifier(column), sql.Identifier(table))
        ((highest,),) = link.execute(statement).fetchall()
        last = max(highest, self._source.last_number(table))
        if last:
            link.execute("SELECT setval(pg_get_serial_sequence(%s, %s), %s)", [table, column, last])

    @staticmethod
    def _count(link: Link, table: str) -> int:
        ((count,),) = link.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchall()
        return int(count)
