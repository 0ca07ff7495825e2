"""Runs all tensor work of a process on one thread, so that its event loop answers heartbeats during a long update.

There is one thread and not a pool: in a fused pod, rollouts, updates and evaluations run one after another, in the
order in which they were submitted.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ComputeThread:
    """Runs functions one after another on a dedicated thread, which is started by the first call."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Runs a function on the thread and waits for its result.

        Cancelling the caller does not interrupt a function that is already queued or running.

        Args:
            function: Called on the thread.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            What the function returned; an exception that it raised is raised here.
        """
        future = asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))
        # Retrieves the exception, so that asyncio does not log it as unhandled when the caller was cancelled.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(future)

    def close(self) -> None:
        """Discards queued calls. A running call is not interrupted; it ends by itself or with the process."""
        self._executor.shutdown(wait=False, cancel_futures=True)
