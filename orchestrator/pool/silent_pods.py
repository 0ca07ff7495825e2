"""Finds the pods that no longer call, so that they are killed and replaced."""

from collections.abc import Iterator, Sequence

from orchestrator.decisions import pod_silence
from orchestrator.decisions.pod_silence import Contact, SilenceLimits
from orchestrator.decisions.pool_size import KillPod
from orchestrator.launchers.base import ListedPod
from orchestrator.state.runtime import RuntimeState


class SilentPods:
    """Compares what is known about the calls of pods with the limits.

    silent.compare(await launcher.list(), now)
    for kill in silent.due(now):
        await launcher.stop(kill.pod_id, kill=True)
    """

    def __init__(self, runtime: RuntimeState, limits: SilenceLimits) -> None:
        self._runtime, self._limits = runtime, limits

    def compare(self, listed: Sequence[ListedPod], now: float) -> None:
        """Expects calls of the pods that run, and none of those that wait for a node or an image."""
        contacts = self._runtime.contacts
        contacts.expect_later(pod.pod_id for pod in listed if not pod.started)
        contacts.expect_first_call((pod.pod_id for pod in listed if pod.started), now)

    def due(self, now: float) -> Iterator[KillPod]:
        """Yields the pods that are killed now, with the reason."""
        contacts, leases = self._runtime.contacts, self._runtime.leases
        for pod_id in filter(contacts.is_expected, list(self._runtime.cache.pods)):
            since, lease_seconds = contacts.listening_since, leases.duration_seconds
            reason = pod_silence.why_killed(now, self._contact(pod_id), since, lease_seconds, self._limits)
            if reason:
                yield KillPod(pod_id, reason)

    def _contact(self, pod_id: str) -> Contact:
        contacts, lease = self._runtime.contacts, self._runtime.leases.latest_of_pod(pod_id)
        return Contact(
            contacts.last_call(pod_id),
            lease.expires if lease else None,
            contacts.is_waiting(pod_id),
            opening=contacts.is_opening(pod_id),
            running_since=contacts.running_since(pod_id),
            overdue_role=pod_silence.overdue_role(lease.progress.roles) if lease else "",
        )
