"""Finds the pods that no longer call, so that they are killed and replaced."""

import math
from collections.abc import Iterator, Sequence

import structlog

from orchestrator.decisions import pod_silence
from orchestrator.decisions.pod_silence import Contact, SilenceLimits
from orchestrator.decisions.pool_size import KillPod
from orchestrator.launchers.base import Launcher, ListedPod
from orchestrator.state.runtime import RuntimeState
from podrace.errors import Unavailable

NEVER_SILENT = SilenceLimits(math.inf, math.inf, math.inf, math.inf)
"""Limits for pods that nothing here can kill."""
_log = structlog.get_logger(__name__)


class SilentPods:
    """Compares what is known about the calls of pods with the limits.

    listed = await silent.list(launcher, now)
    for kill in silent.due(now):
        await launcher.stop(kill.pod_id, kill=True)
    """

    def __init__(self, runtime: RuntimeState, limits: SilenceLimits) -> None:
        self._runtime, self._limits = runtime, limits
        self._together: frozenset[str] = frozenset()
        # Monotonic time from which pods should call again after an interruption.
        self._resumed_at = 0.0
        # Monotonic time at which the launcher first did not answer; None if it answered the last time.
        self._unavailable_since: float | None = None

    async def list(self, launcher: Launcher, now: float) -> Sequence[ListedPod]:
        """Lists the pods. Expects calls of those that run, and none of those that wait for a node or an image.

        Raises:
            Unavailable: The launcher does not answer, which is taken into account as well.
        """
        try:
            listed = await launcher.list()
        except Unavailable:
            if self._unavailable_since is None:
                self._unavailable_since = now
            raise
        if pod_silence.was_cut_off(now, self._unavailable_since, self._lease_seconds):
            self._resumed_at = now + self._lease_seconds
        self._unavailable_since = None
        contacts = self._runtime.contacts
        contacts.expect_later(pod.pod_id for pod in listed if not pod.started)
        contacts.expect_first_call((pod.pod_id for pod in listed if pod.started), now)
        return listed

    def due(self, now: float) -> Iterator[KillPod]:
        """Yields the pods that are killed now, with the reason.

        Killing a pod takes time. Pods that call meanwhile are kept, and those that were silent together with them get
        time to call as well.
        """
        contacts, calls = dict[str, Contact](), -1
        for pod_id in list(self._runtime.cache.pods):
            if calls != self._runtime.contacts.calls:
                calls, contacts = self._runtime.contacts.calls, self._compare_contacts(now)
            if pod_id in contacts and (reason := self._why_killed(now, pod_id, contacts[pod_id])):
                yield KillPod(pod_id, reason, never_called=contacts[pod_id].running_since is not None)

    def _compare_contacts(self, now: float) -> dict[str, Contact]:
        """Returns the calls of all pods that run, and finds those that are silent together."""
        expected = filter(self._runtime.contacts.is_expected, self._runtime.cache.pods)
        contacts = {pod_id: self._contact(pod_id) for pod_id in expected}
        self._notice(now, pod_silence.silent_together(now, contacts, self._lease_seconds, self._together))
        return contacts

    def _why_killed(self, now: float, pod_id: str, contact: Contact) -> str:
        # A pod that has lost its connection needs some time to call again, as after a restart of this service.
        listening_since = self._runtime.contacts.listening_since
        since = pod_silence.counts_since(now, contact, listening_since, self._resumed_at, self._limits)
        return pod_silence.why_killed(
            *(now, contact, since, self._lease_seconds, self._limits), together=pod_id in self._together
        )

    def _notice(self, now: float, together: frozenset[str]) -> None:
        """Logs when all pods stop calling together, and when one of them calls again."""
        if together and not self._together:
            line = "no pod calls: the cause may be the connection, so the pods are not replaced yet"
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
