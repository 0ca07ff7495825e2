"""Configuration of the orchestrator."""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.launchers import EXTERNAL, LAUNCHERS
from orchestrator.launchers.options import LauncherOptions
from podrace.checkpoint_store import check_uri
from podrace.config import unknown
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.rpc import ServerConfig
from podrace.telemetry import TelemetryConfig


@dataclass(frozen=True)
class Config:
    """One orchestrator."""

    server: ServerConfig = field(default_factory=lambda: ServerConfig(listen="127.0.0.1:50051"))
    """Where it listens; pods are given the bound address."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs and metrics; pods are given the same format and level."""
    database: Path = Path("podrace-home/orchestrator.sqlite")
    """File that remembers everything; one orchestrator at a time."""
    leaderboard: str = "127.0.0.1:50052"
    """Address of the leaderboard; told to pods and to whoever asks for a tournament."""
    store: str = "podrace-home/store"
    """Checkpoint store that pods are told to use."""
    runtime_folder: Path = Path(tempfile.gettempdir()) / "podrace"
    """Where sockets and the pods' folders lie; short, because Linux limits socket paths to 107 bytes."""
    log_folder: Path = Path("podrace-home/logs")
    """One log file a pod."""
    lifeline: str = ""
    """Socket of whoever this service, and its pods, must not outlive; empty: nobody."""
    mesh_id: str = ""
    """Which embedded mesh this is; with it, tournaments and pods end with the service. Empty: a standing service."""
    start_pods: bool = True
    """False: only answers what is known; nothing can be trained or evaluated."""
    lease_duration_seconds: float = 10.0
    """A pod that was silent for this long may lose its agent to another."""
    reconcile_period_seconds: float = 0.5
    """Longest time between two looks at everything."""
    orphan_seconds: float = 60.0
    """A pod without an answer from here for this long publishes and goes."""
    terminate_seconds: float = 20.0
    """A pod told to go that is still there after this long gets SIGTERM."""
    kill_seconds: float = 60.0
    """And after this long, SIGKILL."""
    stop_grace_seconds: float = 20.0
    """When an embedded mesh ends, its pods may take this long to publish."""
    launcher: str = "process"
    """What starts pods: `process`, `docker` or `kubernetes`; `external`: others do, and whoever asks is given work."""
    launchers: LauncherOptions = field(default_factory=LauncherOptions)
    """Options of each."""
    advertised: str = ""
    """Where pods reach this service, if not where it listens (in a container: its name on the network and the port)."""


def check(config: Config) -> None:
    """Refuses settings that cannot work, before anything is opened.

    Raises:
        InvalidArgument: With the key and the value.
    """
    for key in ("lease_duration_seconds", "reconcile_period_seconds", "orphan_seconds"):
        if not getattr(config, key) > 0:
            raise InvalidArgument(f"{key} = {getattr(config, key):g}: expected more than 0")
    if config.kill_seconds < config.terminate_seconds:
        raise InvalidArgument(
            f"kill_seconds = {config.kill_seconds:g}:"
            f" expected at least terminate_seconds = {config.terminate_seconds:g}"
        )
    check_uri(config.store)
    if config.launcher not in (*LAUNCHERS, EXTERNAL):
        raise InvalidArgument(unknown("launcher", "launcher", config.launcher, (*LAUNCHERS, EXTERNAL)))


def make_folders(config: Config) -> None:
    """Makes the folders it writes to, for this user alone.

    Raises:
        FailedPrecondition: One cannot be made or written to; the message names the key.
    """
    for key in ("runtime_folder", "log_folder"):
        folder: Path = getattr(config, key)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise FailedPrecondition(
                f"{key} = {str(folder)!r}: cannot be made: {error.strerror}; choose another"
            ) from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise FailedPrecondition(f"{key} = {str(folder)!r}: cannot be written to; choose another")
