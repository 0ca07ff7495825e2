"""The one thread of a process that does tensor work, so that its event loop answers heartbeats during a long update.

One thread and not a pool: in a fused pod, rollouts, updates and evaluations take turns on it, in the order they were
asked for.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ComputeThread:
    """Runs functions one after the other on its thread."""

    def __init__(self) -> None:
        """Starts no thread until it is needed."""
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Queues a call and waits for its result; whoever stops waiting does not stop the call."""
        future = asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))
        # Whoever stopped waiting does not want to hear of its error either.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(future)

    def close(self) -> None:
        """Drops what is queued; what runs is left to end by itself, or with the process."""
        self._executor.shutdown(wait=False, cancel_futures=True)
