"""What starts and stops pods: the interface, and the launchers by name.

A launcher knows pods, not tournaments; its list is the truth about what runs, whoever started it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.scale import Resources
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
        """Pods that run; what dead ones left behind is cleared away."""
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

    def last_words(self, pod_id: str) -> str:
        """The last line of a pod's log; empty when there is none. The pod may be gone."""
        ...


@dataclass(frozen=True)
class Surroundings:
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


Open = Callable[[Surroundings, Callable[[], None]], AbstractAsyncContextManager[Launcher]]
"""Opens a launcher, given what its pods are told and what to call when a pod has died."""


def _process(surroundings: Surroundings, on_death: Callable[[], None]) -> AbstractAsyncContextManager[Launcher]:
    from orchestrator.launchers.process import ProcessLauncher

    return ProcessLauncher(surroundings, on_death)


LAUNCHERS: dict[str, Open] = {"process": _process}
