"""Owns pods that somebody else starts and stops: starts nothing, lists whoever asks for work.

How many there are is decided outside (`docker compose up --scale agentpod=N`); what each works for, by
orchestrator.assignments.external_pods.
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

STOPPED_RESPONDING = "it fell silent; what it said stands where it was started"


class ExternalPodSource(Protocol):
    """As much as is asked of orchestrator.assignments.external_pods."""

    def count(self) -> int:
        """How many there are."""
        ...

    def expected(self) -> list[PodRecord]:
        """Those recorded who are there, or may come back."""
        ...


class ExternalLauncher(AbstractAsyncContextManager["ExternalLauncher"]):
    """Pods that come by themselves. See Launcher for the verbs."""

    def __init__(self, external_pods: ExternalPodSource, options: ExternalOptions) -> None:
        self._external_pods, self._options = external_pods, options

    async def __aenter__(self) -> Self:
        """Opens nothing."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves the pods as they are."""

    async def list(self) -> Sequence[ListedPod]:
        """See Launcher."""
        return [self._listed(pod) for pod in self._external_pods.expected()]

    async def start(self, pod: NewPod) -> None:
        """Never asked for."""
        raise Unavailable("pods are started elsewhere (launcher = 'external')")

    async def stop(self, pod_id: str, *, kill: bool) -> None:
        """Nothing: who was told to go hears of it when it next reports."""

    async def capacity(self) -> Capacity:
        """A core for each pod that is there: what it really has is its own affair."""
        return Capacity(Resources(float(self._external_pods.count()), 0, 0), 0)

    def last_log_line(self, pod_id: str) -> str:
        """See Launcher."""
        return STOPPED_RESPONDING

    def _listed(self, pod: PodRecord) -> ListedPod:
        port = self._options.metrics_port
        metrics = {"learner": f"{pod.pod_id}:{port}"} if port else {}
        return ListedPod(pod.pod_id, pod.tournament_id, pod.start_time, pod.layout, pod.reserved, metrics)
