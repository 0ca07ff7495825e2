"""Caches the statistics that generator plugins receive, so that computing them takes a bounded share of the time.

Every request to a generator plugin has the statistics of its tournament, and reading and computing them takes longer
the more agents the tournament has.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leaderboard.evolution.agents import round_begin
from leaderboard.plugins.requests import read_statistics
from podrace.database import Database
from podrace.leaderboard.v1.leaderboard_pb2 import AlgorithmStatistics
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SHORTEST_VALIDITY_SECONDS = 1.0
VALIDITY_FACTOR = 20.0
"""Statistics are valid for this many times as long as it took to compute them."""
MOST_TOURNAMENTS = 100


@dataclass(frozen=True)
class _CacheEntry:
    statistics: Sequence[AlgorithmStatistics]
    below: int | None
    until: float


class CachedStatistics:
    """Recent statistics by tournament."""

    def __init__(self, state: Database, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._state, self._monotonic = state, monotonic
        self._entries: dict[str, _CacheEntry] = {}

    async def of(self, tournament_id: str, spec: TournamentSpec, number: int) -> Sequence[AlgorithmStatistics]:
        """Returns the statistics that the generator of an agent receives.

        In a synchronous tournament they are those of the earlier rounds, so that they do not depend on which pod was
        faster.

        Args:
            tournament_id: The tournament.
            spec: Its resolved specification.
            number: Position of the agent.
        """
        below = round_begin(spec, number) if spec.synchronous else None
        entry = self._entries.get(tournament_id)
        now = self._monotonic()
        if entry is not None and (entry.below == below if spec.synchronous else now < entry.until):
            return entry.statistics
        scores = await self._state.transact(read_statistics, tournament_id, spec, below)
        statistics = await asyncio.to_thread(scores.statistics)
        then = self._monotonic()
        until = then + max(SHORTEST_VALIDITY_SECONDS, VALIDITY_FACTOR * (then - now))
        self._entries.pop(tournament_id, None)
        self._entries[tournament_id] = _CacheEntry(statistics, below, until)
        while len(self._entries) > MOST_TOURNAMENTS:
            del self._entries[next(iter(self._entries))]
        return statistics
