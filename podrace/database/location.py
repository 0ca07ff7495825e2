"""Finds out where the database of a service is, from its configuration, and opens it."""

import asyncio
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

import structlog

from podrace.database.database import Database
from podrace.database.format import Format
from podrace.database.leadership import Leadership, LeaseTimes
from podrace.database.outage import Outage
from podrace.errors import FailedPrecondition, InvalidArgument, Unimplemented

SCHEMES = ("postgresql://", "postgres://")
LEASE_TIMES = LeaseTimes()
_NO_FILE = re.compile(r"^postgres(ql)?:|password\s*=", re.IGNORECASE)
"""What looks like a URL or the parameters of libpq, and would become the name of a file that logs show."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class DatabaseLocation:
    """Where a database is: in a file of SQLite, or on a server of PostgreSQL."""

    file: Path | None
    """The file; None: it is on a server."""
    url: str = ""
    """Address of the server and name of the database, without a password."""
    password_file: str = ""
    """File with the password; empty: libpq finds it (`PGPASSWORD`, `PGPASSFILE`)."""

    def __str__(self) -> str:
        return self.url or str(self.file)

    @classmethod
    def of(cls, database: str, password_file: str = "") -> "DatabaseLocation":
        """Returns the location that the settings `database` and `database_password_file` mean.

        Raises:
            InvalidArgument: The URL is malformed or has a password.
        """
        if not database.startswith(SCHEMES):
            if "://" in database or _NO_FILE.search(database):
                raise InvalidArgument("database: expected the path of a file, or postgresql://USER@HOST:PORT/DATABASE")
            if not database:
                raise InvalidArgument("database is empty: expected the path of a file, or postgresql://USER@HOST/NAME")
            return cls(Path(database))
        try:
            has_password = _has_password(urlsplit(database))
        except ValueError:
            raise InvalidArgument("database: not a URL; expected postgresql://USER@HOST:PORT/DATABASE") from None
        if has_password:
            raise InvalidArgument(
                "database: the URL has a password, which logs would show; write it to a file, and name that in"
                " database_password_file"
            )
        return cls(None, database, password_file)


def _has_password(url: SplitResult) -> bool:
    """Returns whether a URL has a password; raises ValueError if it is malformed.

    A password with `/`, `?` or `#` in it ends the host, so what follows has the `@`.
    """
    keys = parse_qs(url.query, keep_blank_values=True)
    malformed = url.port is not None and not url.hostname
    if malformed or url.fragment or "@" in url.path:
        raise ValueError("not a URL of a database")
    return url.password is not None or any("password" in key.lower() for key in keys)


async def open_database(
    location: DatabaseLocation,
    format: Format,
    clock: Callable[[], float],
    *,
    address: str = "",
    on_standby: Callable[[str], None] = lambda leader: None,
    times: LeaseTimes = LEASE_TIMES,
) -> tuple[Database, Leadership | None]:
    """Opens a database, on a server once this process leads; returns it with the leadership, None for a file.

    While the server cannot be used, it is tried again without a time limit: a supervisor that starts the process again
    and again would wait longer each time.

    Args:
        location: Where it is.
        format: Identification and schema of the database.
        clock: Returns wall time, seconds since 1970.
        address: Where this process can be reached; standbys name it.
        on_standby: Receives the address of the leader while another process leads.
        times: Times of the leader's lease.

    Raises:
        PodraceError: The database cannot be opened, for a reason that waiting does not solve; see `Database.open`.
        Unimplemented: The package for PostgreSQL is missing.
    """
    if location.file is not None:
        return await asyncio.to_thread(Database.open, location.file, format, clock), None
    try:
        from podrace.database.postgresql import PostgresqlEngine, PostgresqlServer  # imported only where it is used
    except ImportError:
        raise Unimplemented(
            f"database {location.url!r} needs the package psycopg: pip install 'psycopg[binary]>=3.2'"
            " (podrace[postgresql])"
        ) from None
    server = PostgresqlServer(location.url, read_password(location), format)
    outage = Outage()

    def observe(leader: str) -> None:
        outage.end()
        on_standby(leader)

    async def attempt() -> tuple[PostgresqlEngine, Leadership]:
        leadership = await Leadership.acquire(server.connect, address, times=times, on_standby=observe)
        try:
            # In a thread: health checks are answered meanwhile.
            return await asyncio.to_thread(PostgresqlEngine.open, server, leadership), leadership
        except BaseException:
            await asyncio.to_thread(leadership.resign)
            raise

    engine, leadership = await outage.wait_until_usable(attempt)
    return Database(engine, clock), leadership


def read_password(location: DatabaseLocation) -> str:
    """Returns the password in the file that a location names; empty if it names none. Warns if others can read it.

    Raises:
        FailedPrecondition: The file cannot be read.
    """
    if not location.password_file:
        return ""
    try:
        with Path(location.password_file).open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & stat.S_IROTH:
                _log.warning(
                    "other users can read the password of the database: remove their rights",
                    database_password_file=location.password_file,
                    mode=f"{mode:04o}",
                )
            return file.read().strip()
    except OSError as error:
        raise FailedPrecondition(
            f"database_password_file = {location.password_file!r}: cannot be read: {error.strerror}"
        ) from None
