"""Limits how many agents are generated at the same time, in total and for each tournament."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from orchestrator.state.records import TournamentRecord

CONCURRENT_GENERATIONS = 8
"""Maximum number of agents that are generated at the same time. When thousands of pods request work at once, they wait
here and not at the leaderboard, where each call has a deadline."""
GENERATIONS_OF_A_TOURNAMENT = 2
"""How many of them may be of one tournament: one is generated while the other one is sent or stored."""


class GenerationSlots:
    """The right to generate an agent now; other requests wait in the order in which they came.

    A call of a slow generator plugin takes up to 9 s. Without a limit for each tournament, the pods of one tournament
    would use all slots, and those of other tournaments would wait for them. In a synchronous tournament, every request
    generates the whole round, so one at a time does the work, and the requests after it find the round complete.

        async with slots.hold(tournament):
            ...  # generate
    """

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(CONCURRENT_GENERATIONS)
        # A semaphore exists while a request of the tournament holds it or waits for it.
        self._slots_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, tournament: TournamentRecord) -> AsyncIterator[None]:
        """Waits for a slot of the tournament, then for one of all, and holds both."""
        number = 1 if tournament.spec.synchronous else GENERATIONS_OF_A_TOURNAMENT
        own = self._slots_of.setdefault(tournament.tournament_id, asyncio.Semaphore(number))
        async with own, self._slots:
            yield
