"""Waits for a task or for a stop request, whichever comes first."""

import asyncio
from typing import Any


async def finish_unless_stopped(task: "asyncio.Task[Any]", stop: "asyncio.Future[Any]") -> bool:
    """Waits until a task has finished; a stop cancels the task and waits for the cancellation.

    The result or the error of the task is the caller's to read.

    Args:
        task: What to wait for.
        stop: Completed when the task is no longer wanted.

    Returns:
        Whether the task finished; False when it was cancelled because of the stop.
    """
    waited: list[asyncio.Future[Any]] = [task, stop]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return True
    task.cancel()
    await asyncio.wait([task])
    return False
