"""Records decisions of the orchestrator as Kubernetes Events on the tournament's ConfigMap, limited in rate."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from orchestrator.launchers.kubernetes.api_client import ApiClient, Object
from podrace.errors import PodraceError
from podrace.printable import printable

BURST = 20
"""Number of events that may be sent at once; the API server limits them as well."""
EVENTS_PER_SECOND = 0.5
QUEUE_LIMIT = 100
"""Further events are dropped while this many wait; the orchestrator's own event list is complete."""
LONGEST_MESSAGE = 1000
WARNING_KINDS = ("pod_died", "pod_killed", "pool_short", "role_stuck", "tournament_failed")
UNRECORDED_PREFIXES = ("agent_", "evaluation_")
"""Events about single agents and evaluations are not recorded: there are too many, and they do not concern pods."""
_log = structlog.get_logger(__name__)


class EventRecorder:
    """Sends events one after the other, within the rate limit.

    event_recorder = EventRecorder(cluster, owner)
    event_recorder.record_event("pod_started", "race-p0: ...", {"tournament_id": "race"})
    await event_recorder.close()
    """

    def __init__(
        self,
        cluster: Callable[[], ApiClient],
        owner: Callable[[str], Object],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the recorder.

        Args:
            cluster: Returns the client of the API server.
            owner: Finds or creates the ConfigMap of a tournament; blocks.
            monotonic: Clock of the rate limit.
        """
        self._cluster, self._owner, self._monotonic = cluster, owner, monotonic
        self._queue: deque[tuple[str, str, str]] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._allowed, self._counted = float(BURST), monotonic()
        self.dropped = 0

    def record_event(self, kind: str, message: str, ids: Mapping[str, str]) -> None:
        """Queues an event; never blocks."""
        tournament_id = ids.get("tournament_id", "")
        if not tournament_id or kind.startswith(UNRECORDED_PREFIXES):
            return
        if len(self._queue) >= QUEUE_LIMIT:
            self.dropped += 1
            return
        self._queue.append((kind, message, tournament_id))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def close(self) -> None:
        """Drops events that are not sent yet."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send_all(self) -> None:
        while self._queue:
            await asyncio.sleep(self._pause_seconds())
            self._allowed -= 1.0
            kind, message, tournament_id = self._queue.popleft()
            try:
                await asyncio.to_thread(self._send, kind, message, tournament_id)
            except PodraceError as error:
                _log.debug("could not record a Kubernetes event", kind=kind, error=error.message)

    def _pause_seconds(self) -> float:
        """Seconds until the next event may be sent."""
        now = self._monotonic()
        self._allowed = min(float(BURST), self._allowed + (now - self._counted) * EVENTS_PER_SECOND)
        self._counted = now
        return max(0.0, (1.0 - self._allowed) / EVENTS_PER_SECOND)

    def _send(self, kind: str, message: str, tournament_id: str) -> None:
        cluster = self._cluster()
        cluster.create("v1", "events", event_of(kind, message, self._owner(tournament_id), cluster.namespace))


def event_of(kind: str, message: str, owner: Object, namespace: str) -> dict[str, Any]:
    """Builds an Event about a tournament's ConfigMap."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = owner["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{about['name']}.",
            "labels": {"app.kubernetes.io/part-of": "podrace"},
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": about["name"],
            "namespace": namespace,
            "uid": about["uid"],
        },
        "reason": "".join(word.capitalize() for word in kind.split("_")),
        "message": printable(message)[:LONGEST_MESSAGE],
        "type": "Warning" if kind in WARNING_KINDS else "Normal",
        "source": {"component": "podrace-orchestrator"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
