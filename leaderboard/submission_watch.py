"""Wakes the callers that wait for new submissions of a tournament."""

import asyncio
import math

from podrace.errors import Unavailable


class SubmissionWatch:
    """Which submissions have arrived since this service was started.

    async for every page of submissions after `sequence`: send it
    await watch.wait_after(tournament_id, sequence)
    """

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self._newest: dict[str, float] = {}
        self._closing = False

    async def notify(self, tournament_id: str, sequence: int) -> None:
        """Reports that a submission with this sequence number was recorded."""
        async with self._condition:
            self._newest[tournament_id] = max(sequence, self._newest.get(tournament_id, 0))
            self._condition.notify_all()

    async def end(self, tournament_id: str) -> None:
        """Ends all waits for a tournament that was deleted, present and future."""
        async with self._condition:
            self._newest[tournament_id] = math.inf
            self._condition.notify_all()

    async def wait_after(self, tournament_id: str, sequence: int) -> None:
        """Waits until a later submission of the tournament has arrived since this service was started.

        Also returns if the tournament was deleted.

        Raises:
            Unavailable: The service is shutting down.
        """
        async with self._condition:
            await self._condition.wait_for(lambda: self._closing or self._newest.get(tournament_id, 0) > sequence)
        if self._closing:
            raise Unavailable("the leaderboard is shutting down; watch again with the last resume_token")

    async def close(self) -> None:
        """Ends all waits, present and future, with Unavailable."""
        async with self._condition:
            self._closing = True
            self._condition.notify_all()
