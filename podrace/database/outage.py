"""Waits while the server of a database cannot be used, and logs each outage once."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from podrace.backoff import exponential
from podrace.errors import PodraceError, Unavailable

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 5.0
"""Longest wait between two attempts: this much later than possible, a replica leads after an outage."""
Result = TypeVar("Result")
_log = structlog.get_logger(__name__)


class Outage:
    """The outages of a server, as a process that must use it sees them.

    outage = Outage()
    opened = await outage.wait_until_usable(open)  # `open` raises Unavailable while the server cannot be used
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Begins without an outage.

        Args:
            monotonic: Returns monotonic time in seconds.
            sleep: Waits.
            uniform: Draws each wait between half and all of it, so that replicas do not connect at the same moment.
        """
        self._monotonic, self._sleep, self._uniform = monotonic, sleep, uniform
        self._failures, self._begin = 0, 0.0

    async def wait_until_usable(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Repeats an attempt that raises Unavailable, without a time limit.

        Args:
            attempt: Uses the server. It calls `end` when the server answers although the attempt is not finished.

        Raises:
            PodraceError: The attempt failed for a reason that waiting does not solve.
        """
        while True:
            try:
                result = await attempt()
            except Unavailable as error:
                await self.wait(error)
            else:
                self.end()
                return result

    async def wait(self, error: PodraceError) -> None:
        """Waits after a failed attempt: twice as long after each one, up to a limit."""
        if not self._failures:
            self._begin = self._monotonic()
            _log.warning("the database cannot be used; trying again until it can", error=error.message)
        self._failures += 1
        longest = exponential(self._failures, FIRST_SECONDS, LONGEST_SECONDS)
        await self._sleep(self._uniform(longest / 2, longest))

    def end(self) -> None:
        """Records that the server can be used."""
        if self._failures:
            _log.info("the database can be used again", seconds=round(self._monotonic() - self._begin, 1))
        self._failures = 0
