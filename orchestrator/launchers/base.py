"""Defines the interface between the orchestrator and what starts and stops pods.

A launcher manages pods, not tournaments. Its list is the authoritative list of running pods, whatever started them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from orchestrator.decisions.resources import Capacity, Resources
from podrace.access.tokens import PodTokens
from podrace.checkpoint_store.assignment_store import DIRECT
from podrace.database.leadership import CheckLeads, only_replica
from podrace.errors import FieldViolation
from podrace.limits.config import NOTHING, Allowed
from podrace.progress_deadlines import ProgressDeadlines
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import PodSpec, TournamentSpec


@dataclass(frozen=True)
class NewPod:
    """A pod to start."""

    pod_id: str
    tournament_id: str
    spec: PodSpec
    """Resolved specification: every field is set."""
    user_code: bool = False
    """Whether the specification of the tournament names user code that workers or the evaluator import."""
    replaces: str = ""
    """The pod that it replaces when it is ready, whose processors and GPUs it may share until then; empty: none."""
    retired: tuple[str, ...] = ()
    """Pods that were asked to stop to make room for it, whose processors and GPUs it may share until they have
    stopped."""


@dataclass(frozen=True)
class ListedPod:
    """A pod that runs or is about to."""

    pod_id: str
    tournament_id: str
    start_time: float
    """Seconds since 1970."""
    layout: int
    """Value of the contract's enum Layout."""
    reserved: Resources
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Addresses of its Prometheus endpoints by role, as reachable from outside; empty if they are not known."""
    started: bool = True
    """Whether its leader runs; False while the pod waits for a node or an image, also after it was evicted."""
    removed: bool = False
    """Whether its platform removes or has removed its processes: a lost or drained node, or preemption."""


class Launcher(Protocol):
    """Starts and stops pods.

    known = {pod.pod_id for pod in await launcher.list()}
    if new.pod_id not in known:
        await launcher.start(new)
    ...
    await launcher.stop(pod_id, kill=False)
    ...
    print(launcher.last_log_line(pod_id))
    """

    async def list(self) -> Sequence[ListedPod]:
        """Lists running pods, and cleans up after dead ones.

        Raises:
            Unavailable: The Docker Engine or API server does not respond.
        """
        ...

    async def start(self, pod: NewPod) -> None:
        """Starts a pod and returns when it is listed; a running pod is left unchanged.

        Raises:
            InvalidArgument: Such a pod can never be started; the message says why.
            FailedPrecondition: Something must be fixed before it can start, such as a missing image.
            Unavailable: It cannot be started now: the platform does not respond, is overloaded, or has no room.
        """
        ...

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        """Asks a pod to publish and stop, or kills it; ignored for a pod that is not running.

        Whatever delays it after leadership was checked, it does not reach a pod of the same id that was started later.
        """
        ...

    async def capacity(self) -> Capacity:
        """Returns the capacity for pods.

        Raises:
            Unavailable: The Docker Engine or API server does not respond.
        """
        ...

    def last_log_line(self, pod_id: str) -> str:
        """Returns the last line of the log of a pod, running or gone; empty if there is none."""
        ...


@runtime_checkable
class EventSink(Protocol):
    """A launcher that also records events on its platform.

    state.on_event(launcher.record_event)
    """

    def record_event(self, kind: str, message: str, ids: Mapping[str, str]) -> None:
        """Forwards an event on a best-effort basis; never blocks, never raises.

        Args:
            kind: Value of the contract's Event.kind.
            message: What happened, and why.
            ids: `tournament_id`, and `pod_id` or `agent_id` if the event is about one.
        """
        ...


@runtime_checkable
class Inspector(Protocol):
    """A launcher that can try out a specification where its pods would run.

    found = await launcher.inspect(spec)
    """

    async def inspect(self, spec: TournamentSpec) -> Sequence[FieldViolation]:
        """Makes the environments and algorithms of a resolved specification once, in a process with limits.

        Returns:
            What makes the specification unusable here, by key.

        Raises:
            Unavailable: The process exited before it answered, which is probably due to the environment.
            DeadlineExceeded: The process did not answer in time.
        """
        ...


@dataclass(frozen=True)
class PodEnvironment:
    """Settings that all pods share."""

    orchestrator: str
    """Address of the orchestrator."""
    leaderboard: str
    """Address of the leaderboard."""
    store: str
    """Checkpoint store."""
    runtime_folder: Path
    """Folder of sockets and of the pods' folders."""
    log_folder: Path
    """Folder with one log file per pod."""
    lifeline: str
    """Lifeline of a process that the pods must not outlive; empty: none."""
    orphan_seconds: float
    """A pod that gets no response from the orchestrator for this long publishes and stops."""
    telemetry: TelemetryConfig
    """Log and metrics settings of the pods."""
    progress: ProgressDeadlines = field(default_factory=ProgressDeadlines)
    """How long a role of a pod may make no progress."""
    insecure: bool = False
    """Whether ports that other machines reach may be without TLS."""
    pod_tokens: PodTokens = field(default_factory=lambda: PodTokens(None))
    """Makes the token that the leader of a pod starts with."""
    store_access: str = DIRECT
    """Key of podrace.checkpoint_store.assignment_store.STORE_ACCESS."""
    allow: Allowed = NOTHING
    """What the specifications of tournaments may name."""
    owns_tournament: Callable[[str], bool] = lambda _: True
    """Whether a tournament is one of this orchestrator's. Others may use the same runtime folder, and the files of
    their pods are left to them."""
    check_leads: CheckLeads = only_replica
    """Called before each change to pods. A dead pod of this machine is cleaned up without: it stays dead."""


LauncherContext = AbstractAsyncContextManager[Launcher]
"""Closing a launcher leaves its pods running."""
