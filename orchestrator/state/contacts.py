"""Keeps in memory when pods called last, and since when this process has been able to receive calls.

The event loop owns this state: no other thread may read or write it.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

STALL_SECONDS = 3.0
"""Time between two ticks after which this process counts as interrupted, for instance by SIGSTOP."""


class Contacts:
    """Calls of pods, renewals of their leases included.

    contacts.expect_first_call(started_pod_ids, now)
    with contacts.waiting_call(pod_id, clock.monotonic):
        answer = await ...
    contacts.tick(now)  # every second

    Attributes:
        listening_since: Monotonic time since when this process has been running without interruption.
        calls: Number of calls that have begun or ended.
    """

    def __init__(self) -> None:
        self._last_calls: dict[str, float] = {}
        self._last_begins: dict[str, float] = {}
        self._opening: set[str] = set()
        self._waiting: Counter[str] = Counter()
        # Monotonic time since when a pod that has never called is known to run, by pod.
        self._running_since: dict[str, float] = {}
        self._unstarted: set[str] = set()
        self._last_tick: float | None = None
        self.listening_since = 0.0
        self.calls = 0

    @contextlib.contextmanager
    def waiting_call(self, pod_id: str, monotonic: Callable[[], float]) -> Iterator[None]:
        """Marks a call of a pod as waiting for an answer, and records its end."""
        begin = monotonic()
        self.calls += 1
        self._waiting[pod_id] += 1
        self._confirm_start(pod_id)
        try:
            yield
        finally:
            self._waiting[pod_id] -= 1
            self._waiting += Counter()
            self.record(pod_id, monotonic())
            self._last_begins[pod_id] = begin

    def record(self, pod_id: str, now: float, *, opening: bool = False) -> None:
        """Records a call of a pod that ended now, and whether the pod reported that it opens its roles."""
        self.calls += 1
        self._confirm_start(pod_id)
        self._last_calls[pod_id] = self._last_begins[pod_id] = now
        (self._opening.add if opening else self._opening.discard)(pod_id)

    def forget(self, pod_id: str) -> None:
        """Expects no more calls of a pod, because it exits or is gone."""
        self._last_calls.pop(pod_id, None)
        self._last_begins.pop(pod_id, None)
        self._opening.discard(pod_id)
        self._confirm_start(pod_id)

    def expect_later(self, pod_ids: Iterable[str]) -> None:
        """Expects no call of these pods until they have called again, because their processes have not started."""
        for pod_id in pod_ids:
            self.forget(pod_id)
            self._unstarted.add(pod_id)

    def expect_first_call(self, pod_ids: Iterable[str], now: float) -> None:
        """Expects the first call of those of these pods that have not called, because their processes have started."""
        for pod_id in pod_ids:
            if pod_id not in self._last_calls and pod_id not in self._waiting:
                self._unstarted.discard(pod_id)
                self._running_since.setdefault(pod_id, now)

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

    def last_begin(self, pod_id: str) -> float | None:
        """Returns when the last call of a pod began that has ended; None if there was none."""
        return self._last_begins.get(pod_id)

    def running_since(self, pod_id: str) -> float | None:
        """Returns since when a pod has been known to run that has not called yet; None if it has, or does not run."""
        return self._running_since.get(pod_id)

    def is_opening(self, pod_id: str) -> bool:
        """Returns whether a pod reported with its last call that it opens its roles."""
        return pod_id in self._opening

    def is_waiting(self, pod_id: str) -> bool:
        """Returns whether a call of a pod waits for an answer."""
        return pod_id in self._waiting

    def _confirm_start(self, pod_id: str) -> None:
        self._unstarted.discard(pod_id)
        self._running_since.pop(pod_id, None)
