"""Defines the configuration of a policy server."""

from dataclasses import dataclass, field

from podrace.access.service_access import AccessConfig
from podrace.rpc import ServerConfig
from podrace.serving.engine import EngineLimits
from podrace.telemetry import TelemetryConfig

CALLS_PER_SECOND = 1_000.0
"""Default limit of the calls of one caller: a control loop calls at each step, so it is higher than elsewhere."""


@dataclass(frozen=True)
class GateConfig:
    """Examination of a policy before it replaces the one that serves."""

    episodes: int = 0
    """Fresh episodes on which the pods of the tournament evaluate both policies, with the same seed; 0: no gate."""
    maximum_errors: float = 1.0
    """The offered policy is refused if its mean return is lower by more than this many standard errors of the
    difference."""
    deadline_seconds: float = 600.0
    """Time that the evaluation may take; afterwards it is cancelled, and the policy is offered again after a pause of
    60 s, which doubles with each failure in a row, up to 1800 s."""


@dataclass(frozen=True)
class ServingConfig:
    """The configuration of one policy server. Either `folder`, or `orchestrator` and `tournament`, must be set."""

    server: ServerConfig = field(default_factory=lambda: ServerConfig(listen="127.0.0.1:8001"))
    """The address for gRPC."""
    rest_listen: str = "127.0.0.1:8000"
    """Address for the Open Inference Protocol over HTTP, with TLS if `server.listen` has it; empty: none."""
    access: AccessConfig = field(default_factory=lambda: AccessConfig(calls_per_second=CALLS_PER_SECOND))
    """Who may call the service."""
    anonymous: bool = False
    """Let callers without credentials act and read, as viewers. They share the sessions of one caller."""
    telemetry: TelemetryConfig = field(default_factory=lambda: TelemetryConfig(metrics_listen="127.0.0.1:8002"))
    """Logs and metrics."""
    folder: str = ""
    """Folder that `podrace export` wrote. Another export into it is served when it is complete."""
    folder_awaited: bool = False
    """Start although the folder has no policy yet, and serve the first one that is written."""
    orchestrator: str = ""
    """Address of the orchestrator of a tournament."""
    tournament: str = ""
    """Id of a tournament, whose champion is followed."""
    version: str = ""
    """Digest of the manifest of a candidate that is pinned at the start; empty: the champion is followed."""
    agent: str = ""
    """Agent of the environment whose policy is served, if agents have separate parameters."""
    poll_seconds: float = 2.0
    """Time between two polls for a new champion or a new export."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Examination of a policy before it replaces the one that serves."""
    limits: EngineLimits = field(default_factory=EngineLimits)
    """Bounds of batches, sessions and loaded versions."""
    lifeline: str = ""
    """The server stops when the holder of this lifeline is gone; empty: it is not watched."""
