"""Opens a database of a PostgreSQL server, to which one process writes: the leader.

Each service has a schema that is named after it, so several services can share a database. A format of an
earlier version is migrated when the database is opened: one step per version, all in one transaction.
"""

import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

from podrace.database.deadline import Deadline, Link, interrupt
from podrace.database.dialect import definitions, translated, values_of
from podrace.database.format import ADD_IDENTITY, IDENTITY, DatabaseDamaged, Format
from podrace.database.leadership import IDLE_SECONDS, LOCK, TABLE, Leadership
from podrace.errors import (
    FailedPrecondition,
    InvalidArgument,
    PodraceError,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)

CONNECT_SECONDS = 5
STATEMENT_SECONDS = 10.0
"""Time for the answer to a statement of leadership. A takeover waits for the last transaction of the leader."""
TRANSACTION_SECONDS = 60.0
"""Time for a transaction of changes. A leader whose lease expires ends its transaction before."""
SILENT_SECONDS = 4
"""A connection on which the server acknowledges nothing for this long is closed."""
FORMAT = "CREATE TABLE IF NOT EXISTS format (application_id BIGINT NOT NULL, version BIGINT NOT NULL)"
UNSAFE_COMMIT = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)
REFUSED = re.compile(
    "authentication failed|no password supplied|(database|role) .* does not exist|not permitted to log in"
    r"|no pg_hba\.conf entry|permission denied|certificate|does not support SSL|invalid .* value"
)
"""Messages of a server that answers but refuses this client, and of a client with wrong settings: waiting does not help
them. An error of a connection that is being opened has no code."""
UNTRUSTED = "certificate verify failed"
"""Message of the TLS library of the client. The wheels of psycopg have their own, whose folder of authorities does not
exist: `sslrootcert=system` needs SSL_CERT_DIR."""
SCHEMA_EXISTS = "SELECT 1 FROM pg_namespace WHERE nspname = %s"


class PostgresqlServer:
    """A database on a server, and how to connect to it."""

    def __init__(self, url: str, password: str, format: Format) -> None:
        """Remembers where the database is.

        Args:
            url: URL of libpq, without a password.
            password: The password; empty: libpq finds it.
            format: Identification and schema of the database.
        """
        self.url, self.format, self._password, self._prepared = url, format, password, False

    def connect(self) -> "PostgresqlConnection":
        """Opens a connection, whose statements are transactions of their own until BEGIN is executed.

        Raises:
            FailedPrecondition: The server refuses the connection, or the schema cannot be created.
            Unavailable: The server cannot be reached, is starting, or accepts no changes.
        """
        try:
            link = self._open()
            deadline = Deadline(link)
            try:
                with deadline.within(STATEMENT_SECONDS):
                    link.execute(UNSAFE_COMMIT)
                    if not self._prepared:
                        self._create_schema(link)
                        self._prepared = True
            except BaseException:
                deadline.close()
                link.close()
                raise
        except psycopg.Error as error:
            raise self.refusal(error) from None
        return PostgresqlConnection(link, deadline, self)

    def refusal(self, error: psycopg.Error) -> PodraceError:
        """Returns why the server does not do what this service needs at its start."""
        line = " ".join(str(error).split())
        # After a failover the former primary, or a standby of the server, accepts no changes for a while.
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction) or (
            isinstance(error, psycopg.OperationalError) and not REFUSED.search(line)
        ):
            return Unavailable(f"database {self.url}: {line}")
        remedy = "correct the setting `database` or the rights of its user"
        if UNTRUSTED in line:
            remedy = (
                "name the authority by `sslrootcert=FILE`, or set SSL_CERT_DIR=/etc/ssl/certs for that of the system"
            )
        return FailedPrecondition(f"database {self.url}: {line}; {remedy}")

    def _open(self) -> Link:
        idle = int(IDLE_SECONDS * 1000)
        options: dict[str, Any] = {"password": self._password} if self._password else {}
        link: Link = psycopg.connect(
            self.url,
            autocommit=True,
            # The client of a server whose databases have no encoding (SQL_ASCII) would return texts as bytes.
            client_encoding="utf8",
            connect_timeout=CONNECT_SECONDS,
            tcp_user_timeout=SILENT_SECONDS * 1000,
            keepalives_idle=SILENT_SECONDS,
            keepalives_interval=1,
            keepalives_count=2,
            application_name=f"podrace {self.format.owner}",
            options=f"-c search_path={self.format.owner} -c idle_in_transaction_session_timeout={idle}",
            **options,
        )
        link.adapters.register_dumper(int, Int8Dumper)
        return link

    def _create_schema(self, link: Link) -> None:
        with link.transaction():
            # Replicas that start together would create the same tables.
            link.execute("SELECT pg_advisory_xact_lock(%s)", [self.format.application_id])
            if not link.execute(SCHEMA_EXISTS, [self.format.owner]).fetchall():
                link.execute(f'CREATE SCHEMA "{self.format.owner}"'.encode())
            for statement in TABLE.split(";"):
                link.execute(statement.encode())


class _Rows:
    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows = rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Returns the rows."""
        return self._rows


class PostgresqlConnection:
    """A connection to a server that executes statements of leadership."""

    def __init__(self, link: Link, deadline: Deadline, server: PostgresqlServer) -> None:
        self.link, self.deadline, self._server = link, deadline, server

    def execute(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """Executes a statement with `%s` for each value and returns its rows; raises PodraceError."""
        try:
            with self.deadline.within(STATEMENT_SECONDS):
                cursor = self.link.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise self._server.refusal(error) from None

    def close(self) -> None:
        """Closes the connection."""
        self.deadline.close()
        self.link.close()


class _Changes:
    """Executes the statements of changes; implements podrace.database.transaction.Connection."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> _Rows:
        """Executes a statement in the dialect of SQLite."""
        cursor = self._link.execute(translated(statement).encode(), values_of(values))
        return _Rows(cursor.fetchall() if cursor.description else [])


class PostgresqlEngine:
    """The connection of a leader; implements podrace.database.database.Engine.

    engine = PostgresqlEngine.open(server, leadership)

    The first change of a transaction needs no savepoint: if it fails, the transaction begins again. A savepoint is
    released together with the next one, which saves waiting for the server.

    Attributes:
        connection: Executes the statements of changes.
    """

    def __init__(self, server: PostgresqlServer, connection: PostgresqlConnection, leadership: Leadership) -> None:
        self._server, self._link, self._leadership = server, connection.link, leadership
        self._deadline = connection.deadline
        self.connection = _Changes(self._link)
        # A statement that waits for an answer would keep the process from ending.
        leadership.on_lost(partial(interrupt, self._link))
        self._begin = f"BEGIN; {LOCK.format(epoch=leadership.epoch)}".encode()
        self._changes = 0

    @classmethod
    def open(
        cls, server: PostgresqlServer, leadership: Leadership, fill: Callable[[Link], None] = lambda link: None
    ) -> "PostgresqlEngine":
        """Connects, and creates or migrates the tables.

        Args:
            server: The server.
            leadership: The lease of this process.
            fill: Writes more in the same transaction; its errors end it without effect.

        Raises:
            PodraceError: The database cannot be used, or another process leads.
        """
        connection = server.connect()
        self = cls(server, connection, leadership)
        try:
            self.begin()
            # Large databases take long to migrate, or to fill.
            self._deadline.end()
            self._prepare(server.format)
            fill(connection.link)
            self.commit()
        except psycopg.Error as error:
            connection.close()
            raise server.refusal(error) from None
        except BaseException:
            connection.close()
            raise
        return self

    def begin(self) -> None:
        """Begins a transaction, and locks the epoch of this process until it ends.

        Raises:
            Unavailable: Another process has taken over.
        """
        self._changes = 0
        self._deadline.begin(TRANSACTION_SECONDS)
        cursor = self._link.execute(self._begin)
        cursor.nextset()
        if not cursor.fetchall():
            self._leadership.lose()
            raise Unavailable(f"another replica of the {self._server.format.owner} leads; call it instead")

    def commit(self) -> None:
        """Commits the transaction; the server has written it when this returns."""
        message = self._link.execute(b"COMMIT").statusmessage
        self._deadline.end()
        if message != "COMMIT":
            raise Unavailable(f"database {self._server.url}: the transaction was rolled back")

    def roll_back(self) -> None:
        """Ends the transaction without effect."""
        with suppress(psycopg.Error):
            if self._link.info.transaction_status != TransactionStatus.IDLE:
                self._link.execute(b"ROLLBACK")
        self._deadline.end()

    def save(self) -> None:
        """Begins a change."""
        self._changes += 1
        if self._changes == 2:
            self._link.execute(b"SAVEPOINT change")
        elif self._changes > 2:
            self._link.execute(b"RELEASE change; SAVEPOINT change")

    def keep(self) -> None:
        """Ends a change that succeeded."""

    def undo(self) -> bool:
        """Takes back the change; returns False if the connection is lost."""
        if self._link.closed:
            return False
        if self._changes == 1:
            self._link.execute(b"ROLLBACK")
            self.begin()
        else:
            self._link.execute(b"ROLLBACK TO change")
        return True

    def copy_to(self, path: Path, between: Callable[[], None]) -> None:
        """Raises Unimplemented: a server is backed up by its own tools."""
        raise Unimplemented("a database of PostgreSQL is backed up by its own tools, such as pg_dump")

    def translated(self, error: Exception) -> Exception:
        """Translates errors that a caller can handle. After a lost connection this process does not lead any more."""
        if not isinstance(error, psycopg.Error):
            return error
        line = f"database {self._server.url}: {' '.join(str(error).split())}"
        if isinstance(error, psycopg.errors.DiskFull):
            return ResourceExhausted(f"{line}; free some space")
        if isinstance(error, psycopg.errors.DataCorrupted | psycopg.errors.IndexCorrupted):
            return DatabaseDamaged(f"{line}; restore a backup")
        if isinstance(error, psycopg.DataError):
            # The caller may have sent the value. It need not know where the server is.
            return InvalidArgument(f"the database refuses a value: {' '.join(str(error).split())}")
        if self._link.closed or isinstance(error, psycopg.OperationalError | psycopg.errors.ReadOnlySqlTransaction):
            # Whether a commit took effect may be unknown, so what is in memory may differ from the database.
            self._leadership.lose()
            return Unavailable(line)
        return error

    def close(self) -> None:
        """Closes the connection, and ends the lease of the leader."""
        self._deadline.close()
        self._link.close()
        self._leadership.resign()

    def _prepare(self, format: Format) -> None:
        """Creates the tables of a new database, or migrates those of an earlier version."""
        self._link.execute(FORMAT)
        found = self._link.execute("SELECT application_id, version FROM format").fetchall()
        if not found:
            self._define(format.schema)
            self._link.execute("INSERT INTO format VALUES (%s, %s)", [format.application_id, format.version])
        elif found[0][0] != format.application_id:
            raise FailedPrecondition(f"database {self._server.url}: belongs to another program; choose another")
        else:
            self._migrate(format, found[0][1])
        self._define(format.additions)
        self._define(IDENTITY)
        self.connection.execute(ADD_IDENTITY, [secrets.token_hex(16)])

    def _migrate(self, format: Format, version: int) -> None:
        statements = format.migration(version)
        if statements is None:
            raise FailedPrecondition(
                f"database {self._server.url}: was written by another version (format {version}, this one reads"
                f" {format.version}); use that version or choose another database"
            )
        for statement in statements:
            self._define(statement)
        self._link.execute("UPDATE format SET version = %s", [format.version])

    def _define(self, statements: str) -> None:
        for statement in definitions(statements):
            self._link.execute(statement.encode())
