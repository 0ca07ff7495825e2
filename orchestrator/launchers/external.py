"""Lists external pods, which are started and stopped outside the orchestrator.

Their number is set outside (`docker compose up --scale agentpod=N`); `orchestrator.assignments.external_pods` decides
which tournament each works for.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self

from orchestrator.decisions.resources import Capacity, Resources
from orchestrator.launchers.base import ListedPod, NewPod
from orchestrator.launchers.options import ExternalOptions
from orchestrator.state.records import PodRecord
from podrace.errors import Unavailable

STOPPED_RESPONDING = "it stopped responding; its log is where it was started"


class ExternalPodSource(Protocol):
    """What the launcher needs of `orchestrator.assignments.external_pods`."""

    def count(self) -> int:
        """Returns the number of external pods."""
        ...

    def expected(self) -> list[PodRecord]:
        """Returns the records of pods that are present, or may return."""
        ...


class ExternalLauncher(AbstractAsyncContextManager["ExternalLauncher"]):
    """Launcher of external pods; see `Launcher` for the methods."""

    def __init__(self, external_pods: ExternalPodSource, options: ExternalOptions) -> None:
        self._external_pods, self._options = external_pods, options

    async def __aenter__(self) -> Self:
        """Returns the launcher, which has nothing to open."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves the pods as they are."""

    async def list(self) -> Sequence[ListedPod]:
        """See Launcher."""
        return [self._listed(pod) for pod in self._external_pods.expected()]

    async def start(self, pod: NewPod) -> None:
        """Raises Unavailable; not called, because the rules for external pods start none."""
        raise Unavailable("pods are started elsewhere (launcher = 'external')")

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        """Has no effect: the orchestrator notifies the pod when it next reports."""

    async def capacity(self) -> Capacity:
        """Returns one core per external pod; their real resources are not known."""
        return Capacity(Resources(float(self._external_pods.count()), 0, 0), 0)

    def last_log_line(self, pod_id: str) -> str:
        """See Launcher."""
        return STOPPED_RESPONDING

    def _listed(self, pod: PodRecord) -> ListedPod:
        port = self._options.metrics_port
        metrics = {"learner": f"{pod.pod_id}:{port}"} if port else {}
        return ListedPod(pod.pod_id, pod.tournament_id, pod.start_time, pod.layout, pod.reserved, metrics)
