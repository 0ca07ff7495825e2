"""Defines and checks the configuration of the orchestrator."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from orchestrator.decisions.event_retention import DEFAULT_EVENTS, LEAST_EVENTS
from orchestrator.decisions.log_retention import LogLimits
from orchestrator.decisions.quotas import Quotas
from orchestrator.launchers import EXTERNAL, LAUNCHERS
from orchestrator.launchers.options import LauncherOptions
from podrace.access.service_access import AccessConfig
from podrace.backup.config import BackupConfig
from podrace.backup.config import check as check_backup
from podrace.checkpoint_store import check_uri
from podrace.checkpoint_store.assignment_store import DIRECT, GRANTED, check_store_access
from podrace.config import unknown
from podrace.database import DatabaseLocation
from podrace.errors import InvalidArgument
from podrace.limits.config import Allowed
from podrace.ownership import make_own_folder, make_private_folder
from podrace.progress_deadlines import ProgressDeadlines
from podrace.progress_deadlines import check as check_progress
from podrace.rpc import ServerConfig
from podrace.telemetry import TelemetryConfig

GRANTING_LAUNCHERS = ("docker", "kubernetes")
"""Launchers whose pods run apart from the service, so that they need no credentials."""
LONGEST_KEEP_DAYS = 36_500
MOST_EVENTS = 100_000_000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Config:
    """Configuration of one orchestrator."""

    server: ServerConfig = field(default_factory=lambda: ServerConfig(listen="127.0.0.1:50051"))
    """Address the service listens on; pods receive the bound address."""
    access: AccessConfig = field(default_factory=AccessConfig)
    """Who may call the service."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs and metrics; pods use the same log format and level."""
    database: str = "podrace-home/orchestrator.sqlite"
    """Database: a file of SQLite, or `postgresql://USER@HOST:PORT/DATABASE`. Only one orchestrator writes to it at a
    time; with PostgreSQL, others wait until they can take over."""
    database_password_file: str = ""
    """File with the password of the PostgreSQL database; empty: libpq finds it (`PGPASSWORD`, `PGPASSFILE`)."""
    backup: BackupConfig = field(default_factory=BackupConfig)
    """Backups of the database in the checkpoint store. Without credentials of an S3 store, this service gets each
    transfer granted by the leaderboard."""
    leaderboard: str = "127.0.0.1:50052"
    """Address of the leaderboard; passed to pods and returned with tournaments."""
    token_leaderboard: str = ""
    """Address of the leaderboard for callers that present a token of an identity provider or of Kubernetes and no
    certificate (its `server.token_listen`); empty: `leaderboard`."""
    store: str = "podrace-home/store"
    """Checkpoint store that pods use."""
    store_access: str = ""
    """How pods access the store. `direct`: with its credentials, `granted`: the leaderboard grants each transfer, and
    pods have no credentials. Empty: `granted` with the launchers `docker` and `kubernetes`, else `direct`."""
    runtime_folder: Path = Path(tempfile.gettempdir()) / "podrace"
    """Folder of sockets and of the pods' folders; keep it short, because Linux limits socket paths to 107 bytes."""
    log_folder: Path = Path("podrace-home/logs")
    """Folder with one log file per pod."""
    logs: LogLimits = field(default_factory=LogLimits)
    """How much is kept of the logs in `log_folder`."""
    lifeline: str = ""
    """Lifeline of the process that this service and its pods must not outlive; empty: none."""
    mesh_id: str = ""
    """Id of the embedded mesh; if set, tournaments and pods end with the service. Empty: an independent service."""
    start_pods: bool = True
    """False: the service only answers queries; nothing can be trained or evaluated."""
    lease_duration_seconds: float = 10.0
    """The agent of a pod that has not renewed its lease for this long may be assigned to another pod."""
    reconcile_period_seconds: float = 0.5
    """Maximum time between two reconcile cycles."""
    orphan_seconds: float = 60.0
    """A pod that gets no response from the orchestrator for this long publishes and stops."""
    terminate_seconds: float = 20.0
    """A pod that is still running this long after it was asked to stop gets SIGTERM."""
    kill_seconds: float = 60.0
    """A pod that is still running this long after it was asked to stop gets SIGKILL."""
    silent_seconds: float = 10.0
    """A pod that has not called for this long after its lease has expired is killed and replaced, with every launcher
    but `external`: its processes are stopped or blocked, or its network does not work."""
    opening_silent_seconds: float = 120.0
    """The same for a pod that opens its roles: a simulator that compiles may block its process."""
    starting_silent_seconds: float = 600.0
    """A pod that runs and has not called for this long is killed and replaced. A pod that waits for a node or an image
    does not run."""
    together_silent_seconds: float = 120.0
    """If all pods (at least two) stopped calling together, they are killed this long after their last call: perhaps
    only the network between them and the orchestrator is interrupted, and they continue to train without it. An
    interruption that is longer costs the training since their last checkpoints; pods that hang keep their GPUs for this
    long."""
    progress: ProgressDeadlines = field(default_factory=ProgressDeadlines)
    """How long a role of a pod may make no progress; passed to pods."""
    stop_grace_seconds: float = 20.0
    """Time that pods have to publish when an embedded mesh stops."""
    keep_days: float = 0.0
    """Tournaments are deleted this many days after their end, with their checkpoints; 0: never."""
    low_water_bytes: int = 128 << 20
    """While the disk of the database has less free space, or less than 2 % of its size if that is smaller, no agents
    are generated; 0: no limit."""
    kept_events: int = DEFAULT_EVENTS
    """Events that are kept of each tournament, at least 1,000; the oldest of the frequent kinds are deleted first, and
    those that explain the result never. 0: all."""
    archive: bool = False
    """Archive each tournament in the checkpoint store before it is deleted."""
    launcher: str = "process"
    """What starts pods: `process`, `docker`, `kubernetes`, or `external` for pods that are started elsewhere."""
    launchers: LauncherOptions = field(default_factory=LauncherOptions)
    """Options of each launcher."""
    allow: Allowed = field(default_factory=Allowed)
    """What the specifications of tournaments may name; passed to the pods that this service starts."""
    quota: Quotas = field(default_factory=Quotas)
    """What one owner of tournaments may have, and how owners share the pods."""
    advertised: str = ""
    """Address where pods reach this service, if not `server.listen` (in a container: its host name and port)."""


POSITIVE = (
    "lease_duration_seconds",
    "reconcile_period_seconds",
    "orphan_seconds",
    "silent_seconds",
    "starting_silent_seconds",
    "together_silent_seconds",
)
"""Settings that must be more than 0."""


def check(config: Config) -> None:
    """Rejects invalid settings, before anything is opened.

    Raises:
        InvalidArgument: A setting is invalid; the message has its key and value.
    """
    for key in POSITIVE:
        if not getattr(config, key) > 0:
            raise InvalidArgument(f"{key} = {getattr(config, key):g}: expected more than 0")
    if not 0 <= config.keep_days < LONGEST_KEEP_DAYS:
        raise InvalidArgument(f"keep_days = {config.keep_days:g}: expected 0 to {LONGEST_KEEP_DAYS}")
    if config.kept_events and not LEAST_EVENTS <= config.kept_events <= MOST_EVENTS:
        raise InvalidArgument(f"kept_events = {config.kept_events}: expected {LEAST_EVENTS} to {MOST_EVENTS}, or 0")
    if config.kill_seconds < config.terminate_seconds:
        raise InvalidArgument(
            f"kill_seconds = {config.kill_seconds:g}:"
            f" expected at least terminate_seconds = {config.terminate_seconds:g}"
        )
    check_progress(config.progress, "progress")
    check_uri(config.store)
    check_backup(config.backup, location_of(config))
    check_store_access(store_access_of(config))
    if config.allow.everything and not config.server.listen.startswith("unix:"):
        _log.warning("a caller that may create tournaments can run code as this user", setting="allow.everything")
    if config.launcher not in (*LAUNCHERS, EXTERNAL):
        raise InvalidArgument(unknown("launcher", "launcher", config.launcher, (*LAUNCHERS, EXTERNAL)))


def store_access_of(config: Config) -> str:
    """Returns how pods access the store: as configured, or as usual for the launcher."""
    return config.store_access or (GRANTED if config.launcher in GRANTING_LAUNCHERS else DIRECT)


def location_of(config: Config) -> DatabaseLocation:
    """Returns where the database is; raises InvalidArgument if the setting is malformed."""
    return DatabaseLocation.of(config.database, config.database_password_file)


def make_folders(config: Config) -> None:
    """Creates the folders that the orchestrator writes to, with access for this user only.

    Raises:
        FailedPrecondition: A folder cannot be created or written to, belongs to another user, or is open to others; the
            message names the key.
    """
    make_private_folder(config.runtime_folder, "choose another folder", key="runtime_folder")
    make_own_folder(config.log_folder, "choose another folder", key="log_folder", mode=0o700)
