"""The lease on an assignment as its pod holds it: renewed in the background, with progress going up and directives
coming down.

Leases travel as durations and are counted on this pod's monotonic clock from before the request was sent, so that no
two clocks need to agree. Whatever ends the work early (a directive, a signal, a lost lifeline) arrives in one place:
`stop`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog
from google.protobuf.duration_pb2 import Duration

from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import FailedPrecondition, NotFound, PodraceError
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc

_log = structlog.get_logger(__name__)
RENEW_DEADLINE_SECONDS = 5.0
COMPLETE_DEADLINE_SECONDS = 10.0


class Lease:
    """One assignment held.

    async with Lease(orchestrator, assignment, orphan_seconds=60) as lease:
        while not lease.stop.done():
            ...
            lease.progress.environment_steps = steps
        await lease.complete(pb.OUTCOME_FINISHED)
    """

    def __init__(
        self,
        orchestrator: "pb_grpc.OrchestratorServiceAsyncStub",
        assignment: pb.Assignment,
        *,
        orphan_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Holds what was acquired; `stop` can be set from outside, too."""
        self.assignment = assignment
        self.progress = pb.Progress()
        self.stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the work is to end before its budget does."""
        self.ours = True
        """False once the agent belongs to another pod: nothing of it may be published or completed here."""
        self._orchestrator = orchestrator
        self._orphan_seconds = orphan_seconds
        self._clock = clock
        self._heard = clock()
        self._lease_seconds = assignment.lease_duration.ToTimedelta().total_seconds()
        self._ran: tuple[float, float] | None = None
        if assignment.HasField("running_duration"):
            self._ran = _seconds(assignment.running_duration), self._heard
        self._renewing: asyncio.Task[None] | None = None

    @property
    def running_seconds(self) -> float | None:
        """Time the tournament has been running, pauses left out, counted on from what the orchestrator told last.

        None if it never did.
        """
        if self._ran is None:
            return None
        told, then = self._ran
        return told + self._clock() - then

    async def __aenter__(self) -> Self:
        """Begins to renew."""
        self._renewing = asyncio.create_task(self._renew_forever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops renewing."""
        if self._renewing:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing

    def request_stop(self, reason: str, *, ours: bool = True) -> None:
        """Asks for the end of the work; the first reason stays."""
        self.ours = self.ours and ours
        if not self.stop.done():
            self.stop.set_result(reason)

    async def complete(
        self, outcome: pb.Outcome.ValueType, message: str = "", evaluation: Evaluation | None = None
    ) -> None:
        """Ends the lease and says how it went; raises what the orchestrator answers."""
        request = pb.CompleteAssignmentRequest(
            request_id=f"{self.assignment.assignment_id}.complete",
            assignment_id=self.assignment.assignment_id,
            lease_epoch=self.assignment.lease_epoch,
            outcome=outcome,
            message=message,
            progress=self.progress,
            evaluation=evaluation,
        )
        await rpc.call(self._orchestrator.CompleteAssignment, request, deadline_seconds=COMPLETE_DEADLINE_SECONDS)

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            await self.renew()

    async def renew(self) -> None:
        """Renews once. Silence is borne for `orphan_seconds`; a lease that another pod holds ends the work at once."""
        request = pb.RenewAssignmentRequest(
            assignment_id=self.assignment.assignment_id,
            lease_epoch=self.assignment.lease_epoch,
            progress=self.progress,
        )
        sent = self._clock()
        try:
            response = await rpc.call(
                self._orchestrator.RenewAssignment, request, deadline_seconds=RENEW_DEADLINE_SECONDS
            )
        except (FailedPrecondition, NotFound) as error:
            self.request_stop(error.message, ours=False)
        except PodraceError as error:
            silence = self._clock() - self._heard
            _log.warning("the orchestrator does not answer", error=error.message, seconds=round(silence, 1))
            if silence > self._orphan_seconds:
                self.request_stop(f"no answer from the orchestrator for {silence:.0f} s")
        else:
            self._heard = sent
            self._lease_seconds = response.lease_duration.ToTimedelta().total_seconds()
            if response.HasField("running_duration"):
                self._ran = _seconds(response.running_duration), self._clock()
            if response.directive == pb.DIRECTIVE_CANCEL:
                self.request_stop(response.reason or "the orchestrator cancelled the assignment", ours=False)
            elif response.directive != pb.DIRECTIVE_CONTINUE:
                # DRAIN, and every value that this build does not know: the contract requires it, and no work is lost.
                self.request_stop(response.reason or "the orchestrator drains this pod")


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
