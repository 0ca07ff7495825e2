"""Owns what decisions see of pods: a view of each, made when its record is new and kept until that changes.

Thousands of pods are looked at again and again. Were their views made anew each time, the garbage collector would go
through everything that is remembered every few seconds, and every call would wait for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from orchestrator.decisions.pool_size import PodView
from orchestrator.state.clock import Clock
from orchestrator.state.records import PodRecord
from orchestrator.state.runtime import Live


class Views:
    """Views of pods, by their ids.

    views = Views(live, clock)
    scale.decide(now, ..., views.of(now, recorded), ...)
    views.note_terminated("cartpole-p0")
    """

    def __init__(self, live: Live, clock: Clock) -> None:
        self._live, self._clock = live, clock
        self._made: dict[str, tuple[PodRecord, PodView]] = {}

    def of(self, now: float, recorded: Sequence[PodRecord]) -> list[PodView]:
        """A view of each pod, in the same order.

        Args:
            now: Monotonic time of the look; a pod whose record first says so now was told to go now.
            recorded: All pods; of others nothing is known any more.
        """
        made = self._made
        views = [
            known[1] if (known := made.get(pod.pod_id)) and known[0] is pod else self._make(now, pod)
            for pod in recorded
        ]
        if len(made) > len(views):
            self._made = {pod.pod_id: made[pod.pod_id] for pod in recorded}
        return views

    def note_terminated(self, pod_id: str) -> None:
        """The pod was sent SIGTERM."""
        if known := self._made.get(pod_id):
            self._made[pod_id] = known[0], replace(known[1], terminated=True)

    def _make(self, now: float, pod: PodRecord) -> PodView:
        drained_since, terminated = (now, False) if pod.drain_reason else (None, False)
        known = self._made.get(pod.pod_id)
        if pod.drain_reason and known and known[1].drained_since is not None:
            # It is going already, and something else about it has changed.
            drained_since, terminated = known[1].drained_since, known[1].terminated
        view = PodView(
            pod.pod_id,
            pod.tournament_id,
            pod.reserved,
            # What its start was by the monotonic clock.
            min(now, now - self._clock.wall() + pod.start_time),
            drained_since,
            terminated,
            partial(self._live.standing, pod.pod_id),
        )
        self._made[pod.pod_id] = pod, view
        return view
