"""Keeps in memory when pods called last, and since when this process has been able to receive calls.

The event loop owns this state: no other thread may read or write it.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

STALL_SECONDS = 3.0
"""Time between two ticks after which this process counts as interrupted, for instance by SIGSTOP."""


class Contacts:
    """Calls of pods outside their leases; see `Leases` for renewals.

    with contacts.waiting_call(pod_id, clock.monotonic):
        answer = await ...
    contacts.tick(now)  # every second

    Attributes:
        listening_since: Monotonic time since when this process has been running without interruption.
    """

    def __init__(self) -> None:
        self._last_calls: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        self._unstarted: set[str] = set()
        self._last_tick: float | None = None
        self.listening_since = 0.0

    @contextlib.contextmanager
    def waiting_call(self, pod_id: str, monotonic: Callable[[], float]) -> Iterator[None]:
        """Marks a call of a pod as waiting for an answer, and records its end."""
        self._waiting[pod_id] += 1
        self._unstarted.discard(pod_id)
        try:
            yield
        finally:
            self._waiting[pod_id] -= 1
            self._waiting += Counter()
            self.record(pod_id, monotonic())

    def record(self, pod_id: str, now: float) -> None:
        """Records a call of a pod that ended now."""
        self._last_calls[pod_id] = now

    def forget(self, pod_id: str) -> None:
        """Expects no more calls of a pod, because it exits or is gone."""
        self._last_calls.pop(pod_id, None)
        self._unstarted.discard(pod_id)

    def expect_later(self, pod_ids: Iterable[str]) -> None:
        """Expects no call of these pods until they have called again, because their processes have not started."""
        for pod_id in pod_ids:
            self.forget(pod_id)
            self._unstarted.add(pod_id)

    def confirm_start(self, pod_id: str) -> None:
        """Records that a pod runs, because it has renewed a lease."""
        self._unstarted.discard(pod_id)

    def is_expected(self, pod_id: str) -> bool:
        """Returns whether a pod runs as far as known, so that it should call."""
        return pod_id not in self._unstarted

    def tick(self, now: float) -> None:
        """Records that this process runs."""
        if self._last_tick is None or now - self._last_tick > STALL_SECONDS:
            self.listening_since = now
        self._last_tick = now

    def last_call(self, pod_id: str) -> float | None:
        """Returns the end of the last call of a pod; None if there was none."""
        return self._last_calls.get(pod_id)

    def is_waiting(self, pod_id: str) -> bool:
        """Returns whether a call of a pod waits for an answer."""
        return pod_id in self._waiting
