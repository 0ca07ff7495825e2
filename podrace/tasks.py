"""Waits for asyncio tasks and stops together, and wakes waiters repeatedly."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any


async def finish_unless_stopped(task: "asyncio.Task[Any]", stop: "asyncio.Future[Any]") -> bool:
    """Waits until a task has finished or a stop is requested; a stop cancels the task and waits for its end.

    The result or error of the task stays with the task.

    Args:
        task: The work. It is cancelled as well when the caller is cancelled.
        stop: Done when a stop is requested; never cancelled here.

    Returns:
        Whether the task finished before the stop.
    """
    try:
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.done():
        return True
    task.cancel()
    await asyncio.wait([task])
    return False


async def first_finished(*work: "Coroutine[Any, Any, Any] | asyncio.Task[Any]") -> "set[asyncio.Task[Any]]":
    """Runs coroutines and tasks concurrently until the first has finished; cancels the others and waits for their end.

    Returns:
        The tasks that finished first, with their results or errors.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done
    finally:
        await cancel_all(*tasks)


async def cancel_all(*tasks: "asyncio.Future[Any]") -> None:
    """Cancels tasks and waits for their end; their results and errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_at_most(awaitable: Awaitable[object], seconds: float) -> bool:
    """Waits for an awaitable, but no longer than this many seconds. Returns whether it finished."""
    try:
        await asyncio.wait_for(awaitable, seconds)
    except TimeoutError:
        return False
    return True


class Notifier:
    """Wakes everything that waits, again and again.

    await notifier.wait()   # in any number of tasks
    notifier.notify()       # wakes those that wait now; later waits need another call
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wakes all current waiters."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Waits for the next call of `notify`."""
        await self._event.wait()
