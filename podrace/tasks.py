"""Waits for asyncio tasks and stops together, and wakes waiters repeatedly."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


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


async def first_finished(*work: "Coroutine[Any, Any, Any] | asyncio.Future[Any]") -> "set[asyncio.Future[Any]]":
    """Runs coroutines and tasks concurrently until the first has finished; cancels the others and waits for their end.

    Returns:
        The tasks that finished first, with their results or errors.
    """
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(one) for one in work]
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


async def finish_in_thread(work: Callable[..., Result], *arguments: Any, **keywords: Any) -> Result:
    """Runs a function in a thread and waits for its end, also if the caller is cancelled meanwhile.

    For work under a lock: a thread cannot be cancelled, and would continue without the lock. A cancellation is raised
    when the function has returned, and its result or error is dropped.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments, **keywords))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        task.exception()  # read, so that asyncio does not report it
        raise cancelled
    return task.result()


async def wait_at_most(awaitable: Awaitable[object], seconds: float | None) -> bool:
    """Waits for an awaitable, but no longer than this many seconds (None: no limit). Returns whether it finished."""
    try:
        await asyncio.wait_for(awaitable, seconds)
    except TimeoutError:
        return False
    return True


class ChangeSignal:
    """Wakes every task that waits for a change.

    change = signal.next_change()  # before reading, so that no change in between is missed
    if not is_ready():
        await change.wait()
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        """Returns an event that the next `notify_all` sets."""
        return self._event

    def notify_all(self) -> None:
        """Wakes every task that waits for the current event."""
        self._event.set()
        self._event = asyncio.Event()
