"""Defines the configuration of the simulator service."""

from dataclasses import dataclass, field

from podrace.access.service_access import AccessConfig
from podrace.limits.config import Allowed
from podrace.rpc import ServerConfig
from podrace.telemetry import TelemetryConfig


@dataclass(frozen=True)
class Limits:
    """Limits on what callers may use: the service does not trust their ids or sizes."""

    serves: tuple[str, ...] = ()
    """Ids that may be requested; a final `*` matches every id with that prefix. Empty: all ids except those that import
    a module or reach another process (`python:`, `isaacgym:`, `isaaclab:`, `grpc://`, `module:Name-v0`), which must be
    listed here, or allowed by `allow`."""
    maximum_streams: int = 16
    """Batches that may be open at the same time."""
    maximum_environments: int = 4096
    """Environments in one batch."""
    maximum_threads: int = 16
    """Threads, or processes, that a caller may request by an option."""
    maximum_step_bytes: int = 2**28
    """Bytes of all tensors of one step of a batch."""
    idle_seconds: float = 1800.0
    """A stream without a request for this many seconds is closed; its caller is assumed to be gone."""


@dataclass(frozen=True)
class Config:
    """Configuration of one service process."""

    server: ServerConfig = field(default_factory=lambda: ServerConfig(listen="127.0.0.1:50053"))
    """The address it listens on."""
    access: AccessConfig = field(default_factory=lambda: AccessConfig(calls_per_second=0.0, open_streams=0))
    """Who may call the service. All pods of a mesh call as one user, so calls and streams of a caller have no limit
    besides `limits.maximum_streams`."""
    audience: str = ""
    """Address by which callers name the service, `grpc://host:port`, which is the audience of their tokens; empty:
    `server.listen`, by all names of this machine."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs and metrics."""
    limits: Limits = field(default_factory=Limits)
    """What callers may use."""
    allow: Allowed = field(default_factory=Allowed)
    """What ids and options may name."""
    device: str = "cpu"
    """Where the simulators compute, as a torch device string. On a GPU the batches take turns on one thread."""
    threads: int = 1
    """torch threads per batch; on a GPU, of all batches."""
    lifeline: str = ""
    """Lifeline of the process that this service must not outlive; empty: none."""
