"""Finds the pods that no longer call, so that they are killed and replaced."""

from collections.abc import Iterator, Sequence

import structlog

from orchestrator.decisions import pod_silence
from orchestrator.decisions.pod_silence import Contact, SilenceLimits
from orchestrator.decisions.pool_size import KillPod
from orchestrator.launchers.base import ListedPod
from orchestrator.state.runtime import RuntimeState

_log = structlog.get_logger(__name__)


class SilentPods:
    """Compares what is known about the calls of pods with the limits.

    silent.compare(await launcher.list(), now)
    for kill in silent.due(now):
        await launcher.stop(kill.pod_id, kill=True)
    """

    def __init__(self, runtime: RuntimeState, limits: SilenceLimits) -> None:
        self._runtime, self._limits = runtime, limits
        self._together: frozenset[str] = frozenset()
        # Monotonic time at which a pod called again after none had called for a while.
        self._resumed_at = 0.0

    def compare(self, listed: Sequence[ListedPod], now: float) -> None:
        """Expects calls of the pods that run, and none of those that wait for a node or an image."""
        contacts = self._runtime.contacts
        contacts.expect_later(pod.pod_id for pod in listed if not pod.started)
        contacts.expect_first_call((pod.pod_id for pod in listed if pod.started), now)

    def due(self, now: float) -> Iterator[KillPod]:
        """Yields the pods that are killed now, with the reason."""
        expected = filter(self._runtime.contacts.is_expected, self._runtime.cache.pods)
        contacts, lease_seconds = {pod_id: self._contact(pod_id) for pod_id in expected}, self._lease_seconds
        together = pod_silence.silent_together(now, contacts, lease_seconds, self._together)
        self._notice(now, together)
        # A pod that has lost its connection needs some time to call again, as after a restart of this service.
        since = max(self._runtime.contacts.listening_since, self._resumed_at)
        for pod_id, contact in contacts.items():
            reason = pod_silence.why_killed(
                now, contact, since, lease_seconds, self._limits, together=pod_id in together
            )
            if reason:
                yield KillPod(pod_id, reason)

    def _notice(self, now: float, together: frozenset[str]) -> None:
        """Logs when all pods stop calling together, and when one of them calls again."""
        if together and not self._together:
            line = "no pod calls: the likely cause is the connection, so the pods are not replaced yet"
            _log.warning(line, pods=len(together), replaced_after_seconds=self._limits.together_seconds)
        elif self._together and not together:
            _log.info("pods call again")
            self._resumed_at = now + self._lease_seconds
        self._together = together

    @property
    def _lease_seconds(self) -> float:
        return self._runtime.leases.duration_seconds

    def _contact(self, pod_id: str) -> Contact:
        contacts, lease = self._runtime.contacts, self._runtime.leases.latest_of_pod(pod_id)
        return Contact(
            contacts.last_call(pod_id),
            lease.expires if lease else None,
            contacts.is_waiting(pod_id),
            opening=contacts.is_opening(pod_id),
            running_since=contacts.running_since(pod_id),
            last_begin=contacts.last_begin(pod_id),
            overdue_role=pod_silence.overdue_role(lease.progress.roles) if lease else "",
        )
