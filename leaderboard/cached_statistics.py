"""Owns statistics that are told again and again: computed anew only so often that they take a small share of the time.

To read and digest a tournament takes longer the longer it lasts, and a custom generator is shown its statistics with
every agent.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leaderboard.evolution.agents import round_begin
from leaderboard.plugins.requests import read_statistics
from leaderboard.score_statistics import statistics_of
from podrace.database import Database
from podrace.leaderboard.v1.leaderboard_pb2 import AlgorithmStatistics
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

SHORTEST_VALIDITY_SECONDS = 1.0
VALIDITY_FACTOR = 20.0
"""They are valid for this many times what it took to compute them."""
MOST_TOURNAMENTS = 100


@dataclass(frozen=True)
class _Known:
    statistics: Sequence[AlgorithmStatistics]
    below: int | None
    until: float


class RecentStatistics:
    """Statistics by tournament, as of lately."""

    def __init__(self, state: Database, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._state, self._monotonic = state, monotonic
        self._known: dict[str, _Known] = {}

    async def of(self, tournament_id: str, spec: TournamentSpec, number: int) -> Sequence[AlgorithmStatistics]:
        """What the generator of an agent is shown; in a synchronous tournament, of the earlier rounds."""
        below = round_begin(spec, number) if spec.synchronous else None
        known = self._known.get(tournament_id)
        now = self._monotonic()
        if known is not None and (known.below == below if spec.synchronous else now < known.until):
            return known.statistics
        agents, candidates = await self._state.transact(read_statistics, tournament_id, below)
        statistics = await asyncio.to_thread(statistics_of, spec, agents, candidates)
        then = self._monotonic()
        until = then + max(SHORTEST_VALIDITY_SECONDS, VALIDITY_FACTOR * (then - now))
        self._known.pop(tournament_id, None)
        self._known[tournament_id] = _Known(statistics, below, until)
        while len(self._known) > MOST_TOURNAMENTS:
            del self._known[next(iter(self._known))]
        return statistics
