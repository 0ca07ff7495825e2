"""Owns what decisions see of pods: a view of each, made when its record is new and kept until that changes.

Thousands of pods are looked at again and again. Were their views made anew each time, the garbage collector would go
through everything that is remembered every few seconds, and every call would wait for it.
"""

from collections.abc import Sequence
from functools import partial

from orchestrator.clock import Clock
from orchestrator.live import Live
from orchestrator.records import PodRecord
from orchestrator.scale import PodView


class Views:
    """Views of pods, by their ids.

    views = Views(live, clock)
    scale.decide(now, ..., views.of(now, recorded), ...)
    views.forget("cartpole-p0")  # when the pod is gone
    """

    def __init__(self, live: Live, clock: Clock) -> None:
        self._live, self._clock = live, clock
        self._made: dict[str, tuple[PodRecord, PodView]] = {}
        self._drained_since: dict[str, float] = {}
        self._terminated: set[str] = set()

    def of(self, now: float, recorded: Sequence[PodRecord]) -> list[PodView]:
        """A view of each pod, in the same order.

        Args:
            now: Monotonic time of the look, at which a pod counts as told to go whose record says so for the first time.
            recorded: The pods.
        """
        made = self._made
        views = [
            known[1] if (known := made.get(pod.pod_id)) and known[0] is pod else self._make(now, pod)
            for pod in recorded
        ]
        if len(made) > len(views):
            self._keep_only({pod.pod_id for pod in recorded})
        return views

    def note_terminated(self, pod_id: str) -> None:
        """The pod was sent SIGTERM."""
        self._terminated.add(pod_id)
        self._made.pop(pod_id, None)

    def forget(self, pod_id: str) -> None:
        """The pod is gone; who comes under its name is another."""
        self._drained_since.pop(pod_id, None)
        self._terminated.discard(pod_id)

    def _keep_only(self, pod_ids: set[str]) -> None:
        for gone in self._made.keys() - pod_ids:
            del self._made[gone]
            self.forget(gone)

    def _make(self, now: float, pod: PodRecord) -> PodView:
        if pod.drain_reason:
            self._drained_since.setdefault(pod.pod_id, now)
        else:
            # Another pod of this name, or a visitor that has come back.
            self.forget(pod.pod_id)
        view = PodView(
            pod.pod_id,
            pod.tournament_id,
            pod.reserved,
            # What its start was by the monotonic clock.
            min(now, now - self._clock.wall() + pod.start_time),
            self._drained_since.get(pod.pod_id),
            pod.pod_id in self._terminated,
            partial(self._live.standing, pod.pod_id),
        )
        self._made[pod.pod_id] = pod, view
        return view
