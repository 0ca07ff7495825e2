"""Shares one run of a piece of work among concurrent callers; the work continues when a caller gives up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """Work by key.

    result = await flights.run("cartpole-a3", lambda: make(3))
    await flights.close()
    """

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[Result]] = {}

    async def run(self, key: str, work: Callable[[], Awaitable[Result]]) -> Result:
        """Does the work, or waits for the work that runs under this key; raises what the work raises."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.ensure_future(_awaited(work))
            task.add_done_callback(lambda done: self._remove(key, done))
        return await asyncio.shield(task)

    def _remove(self, key: str, done: asyncio.Task[Result]) -> None:
        del self._running[key]
        if not done.cancelled():
            # Retrieves the exception: asyncio logs one that no caller retrieves.
            done.exception()

    async def close(self) -> None:
        """Cancels all running work."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _awaited(work: Callable[[], Awaitable[Result]]) -> Result:
    return await work()
