"""Configuration of the leaderboard."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from leaderboard.ranking.retention import Retention
from podrace.rpc import ServerConfig
from podrace.telemetry import TelemetryConfig


@dataclass(frozen=True)
class PartsConfig:
    """What the processes of custom parts (`evolution.generator` and `updater` = `python:module:function`) may have."""

    memory_bytes: int = 4 << 30
    """Memory of each; 0: as much as there is."""


@dataclass(frozen=True)
class Config:
    """One leaderboard."""

    server: ServerConfig = field(default_factory=lambda: ServerConfig(listen="127.0.0.1:50052"))
    """Where it listens."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs and metrics."""
    database: Path = Path("podrace-home/leaderboard.sqlite")
    """File that remembers everything; one leaderboard at a time."""
    store: str = "podrace-home/store"
    """Checkpoint store; the same that the pods publish to."""
    runtime_folder: Path = Path(tempfile.gettempdir()) / "podrace"
    """Where the sockets of custom parts' processes lie; short, because Linux limits socket paths to 107 bytes."""
    parts: PartsConfig = field(default_factory=PartsConfig)
    """Those processes."""
    lifeline: str = ""
    """Socket of whoever this service must not outlive; empty: nobody."""
    collect_period_seconds: float = 600.0
    """Time between two collections of training files that nobody can reach; 0: never."""
    collect_grace_seconds: float = 3600.0
    """Younger files stay. It must exceed the longest time from the first file of a checkpoint to its submission."""
    retention: Retention = field(default_factory=Retention)
    """Which scored checkpoints keep their training files."""
