"""Defines what identifies the database of a service, and its tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from podrace.errors import ResourceExhausted

LARGEST_NUMBER = 2**63 - 1
IDENTITY = """
CREATE TABLE IF NOT EXISTS identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), database_id TEXT NOT NULL, backup_epoch INTEGER NOT NULL,
    restored_epoch INTEGER NOT NULL)
"""
"""One row: an id that no other database has, the epoch with which it is backed up, and the one with which it was
restored last; 0: none."""
ADD_IDENTITY = "INSERT INTO identity VALUES (1, ?, 0, 0) ON CONFLICT DO NOTHING"
MOVED = 1 << 30
"""Bit of an application id that is inverted in a file that was moved to a server, so that no version opens it."""


def moved(application_id: int) -> int:
    """Returns the application id that a file has after its database was moved, or of one that was moved, before."""
    return application_id ^ MOVED


class DatabaseDamaged(ResourceExhausted):
    """A database was found damaged while it was open. Callers wait, as for a full disk, until a copy is restored."""


@dataclass(frozen=True)
class Format:
    """Identification and schema of a service's database."""

    owner: str
    """Name of the service for messages, such as `leaderboard`; the schema of its tables in PostgreSQL."""
    application_id: int
    """Marks a database of this service."""
    version: int
    """Version of the schema; a database with a later version is refused."""
    schema: str
    """Statements that create the tables of a new database, in the dialect of SQLite."""
    additions: str = ""
    """Statements that create tables that databases of this version may lack and earlier builds ignore: `CREATE TABLE
    IF NOT EXISTS ...`."""
    migrations: Mapping[int, str] = field(default_factory=dict)
    """Statements that turn a database of a version into one of the next version. One of a version without an entry is
    refused."""

    def migration(self, version: int) -> list[str] | None:
        """Returns the statements from a version to the present one; None if a step is missing or it is a later one."""
        steps = range(version, self.version)
        if version > self.version or any(step not in self.migrations for step in steps):
            return None
        return [statement for step in steps for statement in self.migrations[step].split(";")]
