"""Configuration of the simulator service."""

from dataclasses import dataclass, field

from podrace.rpc import ServerConfig
from podrace.telemetry import TelemetryConfig


@dataclass(frozen=True)
class Limits:
    """What one service does for its callers, whom it does not trust with sizes or names."""

    serves: tuple[str, ...] = ()
    """Ids that are served, those that begin alike with a final `*`; empty: all but those that import a module or reach
    another process (`python:`, `isaacgym:`, `isaaclab:`, `grpc://`, `module:Name-v0`), which have to be named."""
    maximum_streams: int = 16
    """Batches that are open at a time."""
    maximum_environments: int = 4096
    """Environments of one batch."""
    maximum_threads: int = 16
    """Threads, or processes, that a caller's options may ask for."""
    maximum_step_bytes: int = 2**28
    """Elements of one step of a batch, all its tensors together."""
    idle_seconds: float = 1800.0
    """A stream without a request for this long is ended: its caller is gone."""


@dataclass(frozen=True)
class Config:
    """One service."""

    server: ServerConfig = field(default_factory=lambda: ServerConfig(listen="127.0.0.1:50053"))
    """Where it listens."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs and metrics."""
    limits: Limits = field(default_factory=Limits)
    """What it serves."""
    device: str = "cpu"
    """Where the simulators compute, in torch's words."""
    threads: int = 1
    """torch threads of each batch."""
    lifeline: str = ""
    """Lifeline of whoever this service must not outlive; empty: nobody."""
