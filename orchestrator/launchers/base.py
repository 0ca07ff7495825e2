"""Defines what a launcher is: the interface between the orchestrator and what starts and stops pods.

A launcher knows pods, not tournaments; its list is the truth about what runs, whoever started it.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from orchestrator.decisions.resources import Capacity, Resources
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import PodSpec


@dataclass(frozen=True)
class NewPod:
    """A pod to be started."""

    pod_id: str
    tournament_id: str
    spec: PodSpec
    """Resolved: every field is set."""


@dataclass(frozen=True)
class ListedPod:
    """A pod that runs."""

    pod_id: str
    tournament_id: str
    start_time: float
    """Seconds since 1970."""
    layout: int
    """As in the contract's Layout."""
    reserved: Resources
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Addresses of its Prometheus endpoints, by role, as others reach them; empty where nobody can know."""


class Launcher(Protocol):
    """Starts and stops pods.

    known = {pod.pod_id for pod in await launcher.list()}
    if new.pod_id not in known:
        await launcher.start(new)
    ...
    await launcher.stop(pod_id, kill=False)
    ...
    print(launcher.last_words(pod_id))
    """

    async def list(self) -> Sequence[ListedPod]:
        """Pods that run; what dead ones left behind is cleared away.

        Raises:
            Unavailable: Whoever knows does not answer.
        """
        ...

    async def start(self, pod: NewPod) -> None:
        """Starts a pod and returns when it is listed; one that runs already is left as it is.

        Raises:
            InvalidArgument: No such pod can ever be started; the message says why.
            Unavailable: It could not be started this time.
        """
        ...

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        """Tells a pod to publish and go, or kills it; nothing happens to one that does not run."""
        ...

    async def capacity(self) -> Capacity:
        """What there is for pods.

        Raises:
            Unavailable: Whoever knows does not answer.
        """
        ...

    def last_log_line(self, pod_id: str) -> str:
        """The last line of a pod's log; empty when there is none. The pod may be gone."""
        ...


@runtime_checkable
class EventSink(Protocol):
    """A launcher whose machinery has a place of its own for what the orchestrator decides.

    state.on_event(launcher.record_event)
    """

    def record_event(self, kind: str, message: str, ids: Mapping[str, str]) -> None:
        """Passes an event on as well as it can; never blocks, never raises.

        Args:
            kind: As in the contract's Event.
            message: What happened, and why.
            ids: tournament_id, and pod_id or agent_id where it is about one.
        """
        ...


@dataclass(frozen=True)
class PodEnvironment:
    """What every pod is told."""

    orchestrator: str
    """Address of this service."""
    leaderboard: str
    """Address of the leaderboard."""
    store: str
    """Checkpoint store."""
    runtime_folder: Path
    """Where sockets and the pods' folders lie."""
    log_folder: Path
    """One log file a pod."""
    lifeline: str
    """Socket of whoever the pods must not outlive; empty: nobody."""
    orphan_seconds: float
    """A pod without an answer from the orchestrator for this long publishes and goes."""
    telemetry: TelemetryConfig
    """Logs and metrics of the pods."""


LauncherContext = AbstractAsyncContextManager[Launcher]
