"""Remembers the storage that tournaments use, as last measured, and refuses new agents of those above their quota."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import prometheus_client

from leaderboard.ranking.checkpoint_quota import Cut
from podrace.errors import QUOTA_EXCEEDED, ResourceExhausted

SETTING = "assignment.tournament_checkpoint_bytes"
RETRY_SECONDS = 60.0
"""Time between two collections that are requested because a tournament is above its quota, or space is short."""
DELETED = prometheus_client.Counter(
    "podrace_leaderboard_quota_deleted_bytes", "Bytes of checkpoints deleted because of the quota of a tournament"
)
ABOVE = prometheus_client.Gauge(
    "podrace_leaderboard_tournaments_above_quota",
    "Tournaments whose needed checkpoints exceed their quota, so that they get no agents",
)


@dataclass(frozen=True)
class Measured:
    """What a collection left in the store."""

    kept_bytes: Mapping[str, int]
    """Bytes by tournament, those of objects that are too young to be deleted included."""
    needed_bytes: Mapping[str, int]
    """Bytes of the checkpoints that no quota deletes, of the tournaments that have one."""
    quotas: Mapping[str, int]
    """`assignment.tournament_checkpoint_bytes` of the tournaments that have it."""
    cuts: Mapping[str, Cut]
    """What was deleted because of a quota, by tournament."""


class CheckpointQuotas:
    """Compares the storage of tournaments with their quotas.

    quotas.measure(measured)                  # after each collection
    quotas.check(tournament_id, owner)            # before an agent is generated
    quotas.report(tournament_id)              # for the events of the orchestrator
    """

    def __init__(
        self, request_collection: Callable[[], None] = lambda: None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts without measurements: nothing is refused before the first collection.

        Args:
            request_collection: Requests a collection before its time.
            monotonic: Clock in seconds.
        """
        self._request_collection, self._monotonic = request_collection, monotonic
        self._next_request = -RETRY_SECONDS
        self._above: Mapping[str, tuple[int, int]] = {}
        self._deleted: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._bytes: Counter[str] = Counter()

    def measure(self, found: Measured) -> None:
        """Remembers what a collection left."""
        self._above = {
            name: (found.needed_bytes.get(name, 0), quota)
            for name, quota in found.quotas.items()
            if found.needed_bytes.get(name, 0) > quota
        }
        ABOVE.set(len(self._above))
        for name in self._deleted.keys() - found.quotas.keys():
            # It was deleted.
            del self._deleted[name], self._bytes[name]
        for name, cut in found.cuts.items():
            self._deleted[name].update(cut.counts)
            self._bytes[name] += cut.deleted_bytes
            DELETED.inc(cut.deleted_bytes)

    def check(self, tournament_id: str, owner: str) -> None:
        """Refuses an agent of a tournament whose checkpoints exceed its quota, and requests a collection.

        Args:
            tournament_id: The tournament.
            owner: Its owner, for the error.

        Raises:
            ResourceExhausted: They do (QUOTA_EXCEEDED).
        """
        if tournament_id not in self._above:
            return
        now, (needed, quota) = self._monotonic(), self._above[tournament_id]
        if now >= self._next_request:
            self._next_request = now + RETRY_SECONDS
            self._request_collection()
        raise ResourceExhausted(
            f"the checkpoints that {tournament_id} needs exceed its quota: {needed} bytes, and {SETTING} allows"
            f" {quota}; it continues when agents have ended and their checkpoints were deleted; otherwise stop it"
            " (podrace stop), and continue its best agent with evolution.ancestor_agent_id",
            reason=QUOTA_EXCEEDED,
            metadata={"setting": SETTING, "limit": str(quota), "owner": owner},
            retry_seconds=RETRY_SECONDS,
        )

    def report(self, tournament_id: str) -> str:
        """Returns what was deleted of a tournament because of its quota; empty: nothing."""
        counts = self._deleted.get(tournament_id)
        if not counts:
            return ""
        what = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        return f"{what}: {self._bytes[tournament_id]} bytes, because of {SETTING}"
