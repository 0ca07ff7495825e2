"""Owns work that is done once for all who want it at the same time, and goes on when they have gone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Shared(Generic[Result]):
    """Work by key.

    result = await shared.once("cartpole-a3", lambda: make(3))
    await shared.close()
    """

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[Result]] = {}

    async def once(self, key: str, work: Callable[[], Awaitable[Result]]) -> Result:
        """Does the work, or waits for what somebody else has begun under this key; raises what it raises."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.ensure_future(_awaited(work))
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: str, done: asyncio.Task[Result]) -> None:
        del self._running[key]
        if not done.cancelled():
            # Looked at, or asyncio would complain where all who waited have gone.
            done.exception()

    async def close(self) -> None:
        """Ends what runs."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _awaited(work: Callable[[], Awaitable[Result]]) -> Result:
    return await work()
