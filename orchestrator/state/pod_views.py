"""Keeps one `PodView` per pod, which is created when the pod's record changes.

Every reconcile cycle reads the views of thousands of pods. Creating them again in each cycle would trigger the garbage
collector every few seconds, which delays every call.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from orchestrator.decisions.pod_sizes.changes import limits_of
from orchestrator.decisions.pool_size import PodView
from orchestrator.state.clock import Clock
from orchestrator.state.records import PodRecord
from orchestrator.state.runtime import RuntimeState


class PodViews:
    """Views of pods.

    views = PodViews(runtime, clock)
    pool_size.decide(now, ..., views.views_of(now, recorded), ...)
    views.mark_terminated("cartpole-p0")
    """

    def __init__(self, runtime: RuntimeState, clock: Clock) -> None:
        self._runtime, self._clock = runtime, clock
        self._views: dict[str, tuple[PodRecord, PodView]] = {}

    def views_of(self, now: float, recorded: Sequence[PodRecord]) -> list[PodView]:
        """Returns the view of each pod, in the same order.

        Args:
            now: Monotonic time; a pod whose record has a drain reason for the first time counts as drained since now.
            recorded: All pods; views of other pods are dropped.
        """
        views_by_pod = self._views
        views = [
            known[1] if (known := views_by_pod.get(pod.pod_id)) and known[0] is pod else self._make(now, pod)
            for pod in recorded
        ]
        if len(views_by_pod) > len(views):
            self._views = {pod.pod_id: views_by_pod[pod.pod_id] for pod in recorded}
        return views

    def mark_terminated(self, pod_id: str) -> None:
        """Records that a pod was sent SIGTERM."""
        if known := self._views.get(pod_id):
            self._views[pod_id] = known[0], replace(known[1], terminated=True)

    def _make(self, now: float, pod: PodRecord) -> PodView:
        drained_since, terminated = (now, False) if pod.drain_reason else (None, False)
        known = self._views.get(pod.pod_id)
        if pod.drain_reason and known and known[1].drained_since is not None:
            # The pod was asked to stop before, and something else in its record has changed.
            drained_since, terminated = known[1].drained_since, known[1].terminated
        view = PodView(
            pod.pod_id,
            pod.tournament_id,
            pod.reserved,
            # The start time on the monotonic clock.
            min(now, now - self._clock.wall() + pod.start_time),
            drained_since,
            terminated,
            partial(self._runtime.leases.pod_activity, pod.pod_id),
            self._units(pod),
        )
        self._views[pod.pod_id] = pod, view
        return view

    def _units(self, pod: PodRecord) -> int:
        """Returns how many pods of the specification's size a pod counts as."""
        tournament = self._runtime.cache.tournaments.get(pod.tournament_id)
        limits = limits_of(tournament.spec) if tournament else None
        return max(1, round(pod.cores / limits.cores)) if limits else 1
