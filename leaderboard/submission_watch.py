"""Owns the waking of those who watch: who waits for submissions of a tournament is told when there are new ones."""

import asyncio

from podrace.errors import Unavailable


class Arrivals:
    """What has arrived, as far as watchers need to know.

    async for every page of submissions after `sequence`: send it
    await arrivals.after(tournament_id, sequence)
    """

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self._newest: dict[str, int] = {}
        self._closing = False

    async def tell(self, tournament_id: str, sequence: int) -> None:
        """A submission with this sequence number is durable."""
        async with self._condition:
            self._newest[tournament_id] = max(sequence, self._newest.get(tournament_id, 0))
            self._condition.notify_all()

    async def after(self, tournament_id: str, sequence: int) -> None:
        """Waits until a later submission of the tournament has arrived since this service was started.

        Raises:
            Unavailable: The service is going down.
        """
        async with self._condition:
            await self._condition.wait_for(lambda: self._closing or self._newest.get(tournament_id, 0) > sequence)
        if self._closing:
            raise Unavailable("the leaderboard is going down; watch again with the last resume_token")

    async def close(self) -> None:
        """Sends everybody away who waits or will wait."""
        async with self._condition:
            self._closing = True
            self._condition.notify_all()
