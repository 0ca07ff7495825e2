"""Defines how a service backs up its database."""

import re
from dataclasses import dataclass

from podrace.database import DatabaseLocation
from podrace.errors import InvalidArgument

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
MOST_HOURS = 1000


@dataclass(frozen=True)
class BackupConfig:
    """Backups of the database in the checkpoint store."""

    period_seconds: float = 0.0
    """Time between two backups; 0: none are made. With backups or `rebuild`, a service whose database file does not
    exist starts from the newest one, and does not start while the store cannot be read."""
    name: str = "main"
    """Distinguishes the meshes that share a store."""
    rebuild: bool = False
    """Whether a service whose database is empty, and that has no backup either, rebuilds what can be derived from other
    sources: the leaderboard by the checkpoints in the store, the orchestrator by the leaderboard and by the pods that
    run. Only for a store that belongs to one mesh. The service does not start while the store or the leaderboard does
    not answer."""
    hours: int = 24
    """Besides the newest two backups, one of each of this many past hours is kept. Backups that a person asked for
    are kept for 30 days."""


def check(config: BackupConfig, database: DatabaseLocation) -> None:
    """Checks the settings for a database.

    Raises:
        InvalidArgument: A value is not allowed; the message has its key and value.
    """
    if config.period_seconds < 0:
        raise InvalidArgument(f"backup.period_seconds = {config.period_seconds:g}: expected at least 0")
    if config.period_seconds and database.file is None:
        raise InvalidArgument(
            f"backup.period_seconds = {config.period_seconds:g}: a database of PostgreSQL is backed up by its own"
            " tools; set 0"
        )
    if not NAME.fullmatch(config.name):
        raise InvalidArgument(f"backup.name = {config.name!r}: expected lower-case letters, digits and '-'")
    if not 0 <= config.hours <= MOST_HOURS:
        raise InvalidArgument(f"backup.hours = {config.hours}: expected 0 to {MOST_HOURS}")
