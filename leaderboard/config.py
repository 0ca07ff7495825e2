"""Defines the configuration of the leaderboard."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from leaderboard.ranking.retention import Retention
from podrace.access.service_access import AccessConfig
from podrace.backup.config import BackupConfig
from podrace.backup.config import check as check_backup
from podrace.checkpoint_store import check_uri
from podrace.database import DatabaseLocation
from podrace.errors import InvalidArgument
from podrace.limits.config import Allowed
from podrace.rpc import ServerConfig
from podrace.telemetry import TelemetryConfig


@dataclass(frozen=True)
class PluginConfig:
    """Limits of the child processes that run generator and updater functions (`python:module:function`)."""

    memory_bytes: int = 4 << 30
    """Data memory of each process that runs a generator or updater function; 0: no limit."""
    user_code_uid: int = 65_280
    """First of the user ids for the processes that run such functions: each gets a different one, from this one on. No
    person, pod (`launchers.process.user_code_uid` of the orchestrator) or other service may have them. They are used if
    the leaderboard runs as root, unless `allow.everything` is set. 0, or without root: the processes have the user id
    of the leaderboard."""
    user_code_uids: int = 240
    """Number of these user ids."""
    host: str = ""
    """Socket (`unix:/path`) of a plugin host, which runs these processes as its own user: `python -m
    leaderboard.plugins.host`, in a separate container. Empty: the leaderboard starts them itself."""
    host_uid: int = 10_002
    """User of the plugin host. Nothing is sent to a socket of another user."""

    def __post_init__(self) -> None:
        """Rejects a host on a network, where it would need a key that functions could read.

        Raises:
            InvalidArgument: The address is no Unix socket.
        """
        if self.host and not self.host.startswith("unix:/"):
            raise InvalidArgument(f"plugins.host = {self.host!r}: expected unix:/path")


@dataclass(frozen=True)
class Config:
    """The configuration of one leaderboard."""

    server: ServerConfig = field(default_factory=lambda: ServerConfig(listen="127.0.0.1:50052"))
    """Where it listens."""
    access: AccessConfig = field(default_factory=AccessConfig)
    """Who may call the service."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs and metrics."""
    database: str = "podrace-home/leaderboard.sqlite"
    """Database with everything that is recorded: a file of SQLite, or `postgresql://USER@HOST:PORT/DATABASE`. Only one
    leaderboard writes to it at a time; with PostgreSQL, others wait until they can take over."""
    database_password_file: str = ""
    """File with the password of the PostgreSQL database; empty: libpq finds it (`PGPASSWORD`, `PGPASSFILE`)."""
    store: str = "podrace-home/store"
    """Checkpoint store; the one that the pods publish to."""
    runtime_folder: Path = Path(tempfile.gettempdir()) / "podrace"
    """Folder of the sockets of plugin processes; short, because Linux limits socket paths to 107 bytes."""
    plugins: PluginConfig = field(default_factory=PluginConfig)
    """Limits of plugin processes."""
    allow: Allowed = field(default_factory=Allowed)
    """Which generators and updaters specifications may name, whatever the orchestrator sends."""
    lifeline: str = ""
    """The service stops when the holder of this lifeline is gone; empty: it is not watched."""
    collect_period_seconds: float = 600.0
    """Time between two deletions of checkpoint files that nothing refers to; 0: never."""
    collect_grace_seconds: float = 3600.0
    """Younger files are kept. Must exceed the longest time from the first file of a checkpoint to its submission."""
    low_water_bytes: int = 128 << 20
    """Free space, or 2 % of the size of the disk if that is smaller. While the disk of the database, or of a store in a
    folder, has less, no agents are generated, and unneeded checkpoint files are deleted at once; 0: no limit. The same
    holds while a store refuses to store because it is full."""
    store_capacity_bytes: int = 0
    """Bytes that the store may hold, for a store that is not a folder; 0: unknown. `low_water_bytes` of them must stay
    free, or 2 % if that is less, as measured by each deletion of unneeded files (`collect_period_seconds`). State less
    than the store can hold, because checkpoints are stored between two measurements."""
    backup: BackupConfig = field(default_factory=BackupConfig)
    """Backups of the database in the checkpoint store."""
    retention: Retention = field(default_factory=Retention)
    """Which scored checkpoints keep their files."""


NOT_NEGATIVE = ("collect_period_seconds", "collect_grace_seconds", "low_water_bytes", "store_capacity_bytes")


def check(config: Config) -> None:
    """Rejects invalid settings, before anything is opened.

    Raises:
        InvalidArgument: A setting is invalid; the message has its key and value.
    """
    for key in NOT_NEGATIVE:
        if not getattr(config, key) >= 0:
            raise InvalidArgument(f"{key} = {getattr(config, key):g}: expected at least 0")
    if config.store_capacity_bytes and not config.collect_period_seconds:
        raise InvalidArgument(
            f"store_capacity_bytes = {config.store_capacity_bytes}: the store is measured when unneeded files are"
            " deleted; set collect_period_seconds above 0"
        )
    check_uri(config.store)
    check_backup(config.backup, location_of(config))


def location_of(config: Config) -> DatabaseLocation:
    """Returns where the database is; raises InvalidArgument if the setting is malformed."""
    return DatabaseLocation.of(config.database, config.database_password_file)
