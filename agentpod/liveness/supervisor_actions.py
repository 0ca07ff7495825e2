"""Carries out what a supervisor asks of its learner: shows progress, reports stuck roles, and ends the pod."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

import structlog

from podrace.orchestrator.v1 import orchestrator_pb2 as pb

EXIT_STUCK = 5
"""Exit code of a learner that makes no progress itself."""
EXIT_GPU_LOST = 6
"""Exit code of a role whose CUDA context is lost: after some errors, every call fails until the process ends."""
STOP_SECONDS = 30.0
"""Time that a learner has to publish and exit after one of its roles was lost and cannot be restarted."""
_log = structlog.get_logger(__name__)


def exit_at_once(code: int) -> None:
    """Ends this process without waiting for its threads, one of which hangs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class SupervisorActions:
    """What a supervisor can ask of its learner.

    actions = SupervisorActions(progress.report_roles, lease.report_stuck, lease.request_exit)
    """

    def __init__(
        self,
        show: Callable[[Sequence[pb.RoleProgress]], None],
        report: Callable[[pb.StuckRole], Awaitable[None]],
        request_exit: Callable[[str], None] | None,
        *,
        leave: Callable[[int], None] = exit_at_once,
    ) -> None:
        """Starts with nothing to replace.

        Args:
            show: Reports the progress of the roles.
            report: Reports a stuck role at once.
            request_exit: Lets this learner publish and exit; None: it exits at once, because it publishes nothing.
            leave: Ends this process.
        """
        self.show, self.report = show, report
        self._request_exit, self._leave = request_exit, leave
        self._leaving: asyncio.TimerHandle | None = None

    async def replace_pod(self, reason: str, *, stuck_process: bool) -> None:
        """Ends the pod, because a role cannot be restarted; at once if it is this process that is stuck."""
        if stuck_process or self._request_exit is None:
            _log.error("this process is replaced", reason=reason)
            self._leave(EXIT_STUCK)
            return
        self._request_exit(reason)
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().call_later(STOP_SECONDS, self._leave, EXIT_STUCK)

    def close(self) -> None:
        """Ends the wait for the exit, because the work has ended."""
        if self._leaving:
            self._leaving.cancel()
