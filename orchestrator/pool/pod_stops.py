"""Terminates and kills pods, whether or not the database can be written at that time."""

from collections.abc import Iterable

import structlog

from orchestrator.decisions.pool_size import Action, KillPod, Stop, TerminatePod
from orchestrator.launchers.base import Launcher, ListedPod
from orchestrator.pool import pod_lifecycle
from orchestrator.state.database import StateDatabase
from orchestrator.state.pod_views import PodViews
from podrace.database.leadership import CheckLeads, only_replica
from podrace.errors import PodraceError

_log = structlog.get_logger(__name__)


class PodStops:
    """Stops pods, and records each kind of stop once for each pod.

    await stops.record_missing()  # in every reconcile cycle
    await stops.stop(KillPod(pod_id, reason))
    stops.forget(pod_id)
    """

    def __init__(
        self, state: StateDatabase, launcher: Launcher, views: PodViews, check_leads: CheckLeads = only_replica
    ) -> None:
        """Creates it.

        Args:
            state: Receives the events.
            launcher: Stops the pods.
            views: Are informed which pods were terminated.
            check_leads: Raises an error if another replica may lead. The launcher checks again, once it knows which
                processes, containers or objects the pod has.
        """
        self._state, self._launcher, self._views, self._check_leads = state, launcher, views, check_leads
        self._recorded: set[tuple[type[Stop], str]] = set()
        # Stops that could not be recorded, in order.
        self._missing: dict[tuple[type[Stop], str], Stop] = {}

    async def stop(self, action: Stop) -> None:
        """Records why a pod is stopped, and stops it even if that cannot be recorded now.

        Raises:
            Unavailable: The Docker Engine or API server does not respond, or another replica may lead.
        """
        key = type(action), action.pod_id
        if key not in self._recorded:
            self._missing.setdefault(key, action)
            try:
                await self._record(self._missing[key])
            except PodraceError as error:
                _log.warning(
                    "a pod is stopped, which cannot be recorded yet", pod_id=action.pod_id, error=error.message
                )
        kill = isinstance(action, KillPod)
        if not kill:
            self._views.mark_terminated(action.pod_id)
        self._check_leads()
        await self._launcher.stop(action.pod_id, kill=kill)

    async def stop_listed(self, actions: Iterable[Action], listed: Iterable[ListedPod]) -> None:
        """Stops pods that a launcher lists, and ignores all other actions."""
        present = {pod.pod_id for pod in listed}
        for action in actions:
            if isinstance(action, TerminatePod | KillPod) and action.pod_id in present:
                await self.stop(action)

    async def record_missing(self) -> None:
        """Records the stops that could not be recorded before.

        Raises:
            PodraceError: They cannot be recorded yet.
        """
        for action in list(self._missing.values()):
            await self._record(action)

    def forget(self, pod_id: str) -> bool:
        """Forgets a pod that is gone, and returns whether it was killed."""
        killed = (KillPod, pod_id) in self._recorded
        self._recorded -= {(TerminatePod, pod_id), (KillPod, pod_id)}
        return killed

    async def _record(self, action: Stop) -> None:
        await self._state.transact(pod_lifecycle.record_stop, action)
        self._recorded.add((type(action), action.pod_id))
        self._missing.pop((type(action), action.pod_id), None)
