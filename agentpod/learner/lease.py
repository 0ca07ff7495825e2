"""Holds the lease on an assignment: renews it in the background, reports progress and receives directives.

Leases travel as durations and are counted on this pod's monotonic clock from before the request was sent, so the clocks
of two machines need not agree. Everything that ends the work early (a directive, a signal, a lost lifeline) sets the
same future, `stop`.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import structlog
from google.protobuf.duration_pb2 import Duration

from podrace import backoff, rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import (
    DataLoss,
    FailedPrecondition,
    Internal,
    NotFound,
    PermissionDenied,
    PodraceError,
    ResourceExhausted,
)
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.tasks import finish_unless_stopped

_log = structlog.get_logger(__name__)
FIRST_RENEWAL_SECONDS = 1.0
"""An agent may be trained within less than a third of the lease; its progress is seen nevertheless."""
RENEW_DEADLINE_SECONDS = 5.0
COMPLETE_DEADLINE_SECONDS = 10.0
FIRST_REPEAT_SECONDS, LONGEST_REPEAT_SECONDS = 1.0, 30.0
"""Pauses between reports of an end that the orchestrator has no space to record."""
ANSWERS = (ResourceExhausted, DataLoss, Internal)
"""Errors that only a running orchestrator returns: its disk is full or damaged, or it has a defect. A pod that gets one
is not orphaned."""
MOST_REPORTS = 16
"""Reports of stuck roles in one renewal."""
LONGEST_MESSAGE = 10_000
"""Characters of the message of a completed assignment; an exception of user code may have more."""


class Lease:
    """The lease on one assignment.

        async with Lease(orchestrator, assignment, orphan_seconds=60) as lease:
            progress = ProgressReporter(lease)
            while not lease.stop.done():
                ...
            await lease.complete(pb.OUTCOME_FINISHED)

    Attributes:
        assignment: The assignment that was acquired.
        progress: What the next renewal reports; written and replaced by ProgressReporter only.
        before_report: Brings `progress` up to date before it is sent, given the time of the lease's clock.
        stop: Completed with the reason when the work must end before its budget is used up.
        stopped_early: Whether it must end because the strategy has no more use for the agent.
        held: False once the agent belongs to another pod: this pod must neither publish nor complete it any more.
        broken: Whether a role of the pod is stuck and cannot be restarted, so that the pod exits.
        yielded: Whether the work ends only because the pod is needed for other work, so that the pod does not exit.
    """

    def __init__(
        self,
        orchestrator: "pb_grpc.OrchestratorServiceAsyncStub",
        assignment: pb.Assignment,
        *,
        orphan_seconds: float,
        pod_id: str = "",
        on_token: Callable[[str], None] = lambda token: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Holds an assignment that was just acquired.

        Args:
            orchestrator: Stub of the orchestrator.
            assignment: The assignment.
            orphan_seconds: Without an answer from the orchestrator for this long, the work stops.
            pod_id: The pod; empty: requests do not name it.
            on_token: Receives the `pod_token` of each renewal.
            clock: Monotonic clock in seconds.
            pause: Waits for a number of seconds.
        """
        self.assignment = assignment
        self._on_token, self._pod_id = on_token, pod_id
        self.progress = pb.Progress()
        self.before_report: Callable[[float], None] = lambda now: None
        self.stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.held = True
        self.broken = False
        self.yielded = False
        self.stopped_early = False
        self._orchestrator = orchestrator
        self._orphan_seconds = orphan_seconds
        self._clock, self._pause = clock, pause
        self._last_answer = clock()
        self._lease_seconds = assignment.lease_duration.ToTimedelta().total_seconds()
        self._running: tuple[float, float] | None = None
        """Running time that the orchestrator reported last, and when by our clock."""
        if assignment.HasField("running_duration"):
            self._running = _seconds(assignment.running_duration), self._last_answer
        self._evaluation_epoch = assignment.evaluation_epoch
        self._renewing: asyncio.Task[None] | None = None
        self._stuck_roles: list[pb.StuckRole] = []
        self._stuck_count = 0

    @property
    def token(self) -> str:
        """Token of the lease, which calls for the agent carry."""
        return self.assignment.lease_token

    @property
    def evaluation_epoch(self) -> int:
        """Evaluation epoch that the orchestrator reported last: which episodes the agent is scored on."""
        return self._evaluation_epoch

    @property
    def running_seconds(self) -> float | None:
        """Seconds the tournament has been running, pauses excluded; None if the orchestrator never reported it.

        The time since the last report is added.
        """
        if self._running is None:
            return None
        reported, at = self._running
        return reported + self._clock() - at

    async def __aenter__(self) -> Self:
        """Starts to renew in the background."""
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

    def request_stop(self, reason: str, *, held: bool = True) -> None:
        """Requests the end of the work.

        Args:
            reason: Why. Only the first reason is kept.
            held: False if this pod no longer holds the agent.
        """
        self.held = self.held and held
        if not self.stop.done():
            self.stop.set_result(reason)

    def request_exit(self, reason: str) -> None:
        """Requests the end of the work and of the pod, because a role is stuck and cannot be restarted."""
        self.broken = True
        self.request_stop(reason)

    async def complete(
        self,
        outcome: pb.Outcome.ValueType,
        message: str = "",
        evaluation: Evaluation | None = None,
        *,
        gave_up: bool = False,
    ) -> None:
        """Ends the lease and reports the outcome.

        Args:
            outcome: How the assignment ended.
            message: Why.
            evaluation: Result of a successful evaluation.
            gave_up: Whether the work is given back because of an error that may come from the work itself.

        If the orchestrator has no space to record it, the report is repeated until the work must stop.

        Raises:
            PodraceError: The orchestrator's answer, or Unavailable.
        """
        self.before_report(self._clock())
        request = pb.CompleteAssignmentRequest(
            request_id=f"{self.assignment.assignment_id}.complete",
            assignment_id=self.assignment.assignment_id,
            lease_epoch=self.assignment.lease_epoch,
            outcome=outcome,
            message=message[:LONGEST_MESSAGE],
            progress=self.progress,
            evaluation=evaluation,
            lease_token=self.token,
            pod_id=self._pod_id,
            gave_up=gave_up,
        )
        failures = 0
        while not await self._reported(request):
            failures += 1
            seconds = backoff.exponential(failures, FIRST_REPEAT_SECONDS, LONGEST_REPEAT_SECONDS)
            # With jitter: all pods of a tournament may wait for the same disk.
            waiting = asyncio.ensure_future(self._pause(seconds * random.uniform(0.5, 1.0)))
            await finish_unless_stopped(waiting, self.stop)

    async def _reported(self, request: pb.CompleteAssignmentRequest) -> bool:
        """Reports the end once; returns False if the orchestrator has no space and the pod may wait."""
        try:
            await rpc.call(self._orchestrator.CompleteAssignment, request, deadline_seconds=COMPLETE_DEADLINE_SECONDS)
        except ResourceExhausted as error:
            if self.stop.done():
                raise
            _log.warning("the end of the assignment cannot be recorded yet; repeating", error=error.message)
            return False
        return True

    async def _renew_forever(self) -> None:
        await self._pause(min(FIRST_RENEWAL_SECONDS, self._lease_seconds / 3))
        while True:
            sent = self._clock()
            await self.renew()
            # A renewal without an answer has taken longer than this already, and the next one is sent at once.
            await self._pause(max(0.0, self._lease_seconds / 3 - (self._clock() - sent)))

    async def report_stuck(self, stuck: pb.StuckRole) -> None:
        """Reports a stuck role with a renewal now, or with a later one if the orchestrator does not answer."""
        self._stuck_count += 1
        stuck.number = self._stuck_count
        self._stuck_roles.append(stuck)
        await self.renew()

    async def renew(self) -> None:
        """Renews the lease once and obeys the directive in the answer.

        Without an answer the work continues for `orphan_seconds`; ANSWERS are answers. If another pod holds the lease,
        it stops at once.
        """
        self.before_report(self._clock())
        request = pb.RenewAssignmentRequest(
            assignment_id=self.assignment.assignment_id,
            lease_epoch=self.assignment.lease_epoch,
            progress=self.progress,
            lease_token=self.token,
            pod_id=self._pod_id,
            stuck_roles=self._stuck_roles[:MOST_REPORTS],
        )
        sent = self._clock()
        try:
            response = await rpc.call(
                self._orchestrator.RenewAssignment, request, deadline_seconds=RENEW_DEADLINE_SECONDS
            )
        except (FailedPrecondition, NotFound, PermissionDenied) as error:
            _log.warning("the lease is lost", error=error.message)
            self.request_stop(error.message, held=False)
        except ANSWERS as error:
            self._last_answer = sent
            _log.warning("the orchestrator cannot renew the lease now", error=error.message)
        except PodraceError as error:
            silence = self._clock() - self._last_answer
            _log.warning("the orchestrator does not answer", error=error.message, seconds=round(silence, 1))
            if silence > self._orphan_seconds:
                self.request_stop(f"no answer from the orchestrator for {silence:.0f} s")
        else:
            self._last_answer = sent
            # Not by position: two renewals that overlap may have sent the same reports.
            reported = {stuck.number for stuck in request.stuck_roles}
            self._stuck_roles = [stuck for stuck in self._stuck_roles if stuck.number not in reported]
            self._accept(response)

    def _accept(self, response: pb.RenewAssignmentResponse) -> None:
        self._lease_seconds = response.lease_duration.ToTimedelta().total_seconds()
        if response.HasField("running_duration"):
            self._running = _seconds(response.running_duration), self._clock()
        self._evaluation_epoch = response.evaluation_epoch
        self._on_token(response.pod_token)
        # In the message, which the checkpoint store of the assignment reads as well.
        self.assignment.lease_token = response.lease_token or self.token
        if response.directive != pb.DIRECTIVE_CONTINUE and not self.stop.done():
            directive = (
                pb.Directive.Name(response.directive) if response.directive in pb.Directive.values() else "unknown"
            )
            _log.info("directive received", directive=directive, reason=response.reason)
        if response.directive == pb.DIRECTIVE_CANCEL:
            self.request_stop(response.reason or "the orchestrator cancelled the assignment", held=False)
        elif response.directive == pb.DIRECTIVE_YIELD:
            self.yielded = self.yielded or not self.stop.done()
            self.request_stop(response.reason or "the orchestrator has more urgent work")
        elif response.directive == pb.DIRECTIVE_STOP:
            self.stopped_early = self.stopped_early or not self.stop.done()
            self.request_stop(response.reason or "the strategy stops this agent early")
        elif response.directive != pb.DIRECTIVE_CONTINUE:
            # DRAIN, and every value that this build does not know: the contract requires it, and no work is lost.
            self.request_stop(response.reason or "the orchestrator drains this pod")


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
