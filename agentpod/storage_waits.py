"""Waits while checkpoints can be neither stored nor submitted, and repeats the operation until it succeeds.

A checkpoint store that is full, unreachable, read-only or refuses its credentials, or a full volume of the leaderboard,
is a state of the mesh, not a fault of the agent. The agent's newest state stays in memory until storage accepts it, and
its pod continues by itself.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import structlog

from agentpod.liveness.activity import Activity
from podrace.backoff import exponential
from podrace.errors import DeadlineExceeded, PodraceError, ResourceExhausted, Unavailable
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_WAITING
from podrace.tasks import wait_at_most

FIRST_WAIT_SECONDS = 1.0
"""Longest wait after the first failure, doubled after each further one. A wait is drawn from the upper half of it."""
LONGEST_WAIT_SECONDS = 30.0
STORAGE_FAULTS = (Unavailable, DeadlineExceeded, ResourceExhausted)
"""Errors of the store and the leaderboard that end by themselves or by an operator, without a change to the agent."""

HUNG_SECONDS = 120.0
"""An attempt that takes longer is reported as a fault. It is not repeated meanwhile: its thread cannot be stopped."""

Result = TypeVar("Result")
_log = structlog.get_logger(__name__)


class StorageUnreachable(Unavailable):
    """Storage has not answered this pod for so long that another pod shall try."""


class StorageWaits:
    """Repeats operations of one assignment.

    waits = StorageWaits(lease.stop, progress.report_storage_fault)
    digest = await waits.until_stored(lambda: store_checkpoint(frozen))

    Attributes:
        activity: What the learner does.
    """

    def __init__(
        self,
        stop: "asyncio.Future[str]",
        report: Callable[[str], None],
        activity: Activity | None = None,
        *,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the waits of one assignment.

        Args:
            stop: Completed when the work must end. Nothing waits after that.
            report: Receives the error while an operation waits, and an empty text when it has succeeded.
            activity: What the learner does. Meanwhile it waits, and does not count as stuck.
            draw: Draws from 0 to 1, so that many pods do not repeat at the same moment.
            clock: Monotonic clock in seconds.
        """
        self._stop, self._report, self._draw, self._clock = stop, report, draw, clock
        self.activity = activity or Activity()

    def waiting(self) -> AbstractContextManager[None]:
        """Records for the duration of a block that the learner waits for the store or the leaderboard."""
        return self.activity.doing(ROLE_PHASE_WAITING)

    async def until_stored(
        self, operation: Callable[[], Awaitable[Result]], *, unanswered_seconds: float = math.inf
    ) -> Result:
        """Returns the result of an operation that can be repeated, once storage accepts it.

        Args:
            operation: The operation.
            unanswered_seconds: How long storage may give no answer. A refusal because it is full is an answer.

        Raises:
            StorageUnreachable: There was no answer for so long.
            Unavailable: The work must end, and storage still refuses. The next pod that claims the agent continues from
                the last published checkpoint.
            PodraceError: Another error of the operation.
        """
        with self.waiting():
            return await self._repeat(operation, unanswered_seconds)

    async def _repeat(self, operation: Callable[[], Awaitable[Result]], unanswered_seconds: float) -> Result:
        failures, last_answer = 0, self._clock()
        while True:
            try:
                result = await self._attempt(operation)
            except STORAGE_FAULTS as error:
                failures += 1
                if isinstance(error, ResourceExhausted):
                    last_answer = self._clock()
                if (silence := self._clock() - last_answer) >= unanswered_seconds:
                    raise StorageUnreachable(f"no answer for {silence:.0f} s: {error.message}") from error
                await self._wait(error, failures)
                continue
            if failures:
                _log.info("storage accepts checkpoints again", attempts=failures + 1)
                self._report("")
            return result

    async def _attempt(self, operation: Callable[[], Awaitable[Result]]) -> Result:
        """Runs the operation once, and reports one that hangs, such as a call on a folder whose server is away."""
        attempt, begin = asyncio.ensure_future(operation()), self._clock()
        try:
            while not (await asyncio.wait([attempt], timeout=HUNG_SECONDS))[0]:
                fault = f"storage has not answered for {self._clock() - begin:.0f} s"
                _log.warning("waiting for storage", error=fault)
                self._report(fault)
                if self._stop.done():
                    raise Unavailable(fault)
        finally:
            attempt.cancel()
        if self._clock() - begin >= HUNG_SECONDS:
            self._report("")
        return attempt.result()

    async def _wait(self, error: PodraceError, failures: int) -> None:
        if self._stop.done():
            raise Unavailable(error.message, reason=error.reason) from error
        seconds = self._seconds(failures)
        _log.warning("waiting for storage", error=error.message, seconds=round(seconds, 1))
        self._report(error.message)
        await wait_at_most(asyncio.shield(self._stop), seconds)

    def _seconds(self, failures: int) -> float:
        longest = exponential(failures, FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        return longest * (1 + self._draw()) / 2
