"""Runs all tensor work of a process on one thread, so that its event loop answers heartbeats during a long update.

There is one thread and not a pool: in a fused pod, rollouts, updates and evaluations run one after another, in the
order in which they were submitted.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import structlog

from agentpod.current_device import is_usable, use_device
from agentpod.liveness.activity import Activity
from agentpod.liveness.supervisor_actions import EXIT_GPU_LOST, exit_at_once
from agentpod.memory_errors import exhausted, settings_of
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_PREPARING
from podrace.printable import one_line

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_log = structlog.get_logger(__name__)


class ComputeThread:
    """Runs functions one after another on a dedicated thread, which is started by the first call.

    If a function fails and the GPU cannot be used any more, the process exits: its CUDA context is lost, and the fault
    is neither the agent's nor the specification's. Another process continues with the last checkpoint.

    Attributes:
        activity: What the thread does.
    """

    def __init__(self, device: str = "cpu", *, leave: Callable[[int], None] = exit_at_once) -> None:
        """Starts no thread yet.

        Args:
            device: Device that the functions compute on; if it is a GPU, it is the current device of the thread.
            leave: Ends this process with an exit code.
        """
        self._device, self._leave, self._prepared = device, leave, False
        self.activity = Activity()
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

        Raises:
            FailedPrecondition: The thread cannot use its GPU.
            ResourceExhausted: Memory is exhausted; the message names the settings that
                agentpod.memory_errors.needs_memory_for gave the function.
        """
        called, settings = partial(function, *args, **kwargs), settings_of(function)
        future = asyncio.wrap_future(self._executor.submit(self._call, called, settings))
        # Retrieves the exception, so that asyncio does not log it as unhandled when the caller was cancelled.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(future)

    def _call(self, function: Callable[[], Result], settings: str) -> Result:
        if not self._prepared:
            # The current device belongs to a thread, and a new thread starts with the first GPU.
            use_device(self._device)
            self._prepared = True
        try:
            with self.activity.doing(ROLE_PHASE_PREPARING):
                return function()
        except (RuntimeError, MemoryError) as error:
            if (reported := exhausted(error, self._device, settings)) is None:
                if not is_usable(self._device):
                    _log.critical(
                        "this process exits, because its GPU cannot be used any more", error=one_line(str(error))
                    )
                    self._leave(EXIT_GPU_LOST)
                raise
            # Without its traceback, which keeps the tensors of the failed computation alive.
            raise reported from None
        finally:
            self.activity.tick()

    def close(self) -> None:
        """Discards queued calls. A running call is not interrupted; it ends by itself or with the process."""
        self._executor.shutdown(wait=False, cancel_futures=True)
