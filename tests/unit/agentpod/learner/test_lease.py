"""What a pod does with the answer to a renewal."""

import asyncio
from types import SimpleNamespace

import pytest
from google.protobuf.duration_pb2 import Duration

from agentpod.learner.lease import Lease
from podrace.errors import (
    DataLoss,
    DeadlineExceeded,
    Internal,
    PermissionDenied,
    PodraceError,
    ResourceExhausted,
    Unavailable,
)
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

UNKNOWN = 99


async def lease_after(directive: int, reason: str = "") -> Lease:
    """A lease that was renewed once and got this directive."""

    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        return pb.RenewAssignmentResponse(directive=directive, reason=reason)

    lease = Lease(SimpleNamespace(RenewAssignment=renew), pb.Assignment(assignment_id="t-a0.1"), orphan_seconds=60.0)
    await lease.renew()
    return lease


async def test_the_evaluation_epoch_is_the_one_that_was_reported_last():
    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        return pb.RenewAssignmentResponse(directive=pb.DIRECTIVE_CONTINUE, evaluation_epoch=3)

    assignment = pb.Assignment(assignment_id="t-a0.1", evaluation_epoch=2)
    lease = Lease(SimpleNamespace(RenewAssignment=renew), assignment, orphan_seconds=60.0)
    assert lease.evaluation_epoch == 2
    await lease.renew()
    assert lease.evaluation_epoch == 3


@pytest.mark.parametrize(("lease_seconds", "pauses"), [(30.0, [1.0, 10.0, 10.0]), (1.5, [0.5, 0.5, 0.5])])
async def test_a_lease_is_renewed_within_a_second_and_then_every_third_of_its_duration(lease_seconds, pauses):
    slept: list[float] = []
    duration = Duration(seconds=int(lease_seconds), nanos=int(lease_seconds % 1 * 1e9))
    third_pause = asyncio.Event()

    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        return pb.RenewAssignmentResponse(directive=pb.DIRECTIVE_CONTINUE, lease_duration=duration)

    async def pause(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            third_pause.set()
            await asyncio.Event().wait()

    orchestrator = SimpleNamespace(RenewAssignment=renew)
    assignment = pb.Assignment(assignment_id="t-a0.1", lease_duration=duration)
    async with Lease(orchestrator, assignment, orphan_seconds=60.0, clock=lambda: 0.0, pause=pause):
        await third_pause.wait()
    assert slept == pytest.approx(pauses)


async def test_a_renewal_without_an_answer_is_followed_by_the_next_one_at_once():
    """After a half-open connection a lease of 10 s would otherwise expire before the second attempt is answered."""
    now, slept, third_pause = 100.0, [], asyncio.Event()

    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        nonlocal now
        now += timeout if len(slept) == 1 else 0.25
        if len(slept) == 1:
            raise DeadlineExceeded("no answer")
        return pb.RenewAssignmentResponse(lease_duration=Duration(seconds=12))

    async def pause(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            third_pause.set()
            await asyncio.Event().wait()

    assignment = pb.Assignment(assignment_id="t-a0.1", lease_duration=Duration(seconds=12))
    orchestrator = SimpleNamespace(RenewAssignment=renew)
    async with Lease(orchestrator, assignment, orphan_seconds=60.0, clock=lambda: now, pause=pause):
        await third_pause.wait()
    assert slept == [1.0, 0.0, 3.75]


async def test_a_pod_sends_the_token_of_its_lease_and_the_one_that_replaced_it():
    sent: list[str] = []

    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        sent.append(request.lease_token)
        token = "second" if len(sent) == 2 else ""
        return pb.RenewAssignmentResponse(directive=pb.DIRECTIVE_CONTINUE, lease_token=token)

    async def complete(request: pb.CompleteAssignmentRequest, timeout: float) -> pb.CompleteAssignmentResponse:
        sent.append(request.lease_token)
        return pb.CompleteAssignmentResponse()

    assignment = pb.Assignment(assignment_id="t-a0.1", lease_token="first")
    orchestrator = SimpleNamespace(RenewAssignment=renew, CompleteAssignment=complete)
    lease = Lease(orchestrator, assignment, orphan_seconds=60.0)
    for _ in range(3):
        await lease.renew()
    await lease.complete(pb.OUTCOME_FINISHED)
    assert sent == ["first", "first", "second", "second"]
    assert lease.token == "second"


async def test_a_pod_whose_token_is_refused_publishes_nothing():
    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        raise PermissionDenied("lease_token: is missing")

    lease = Lease(SimpleNamespace(RenewAssignment=renew), pb.Assignment(assignment_id="t-a0.1"), orphan_seconds=60.0)
    await lease.renew()
    assert (lease.stop.done(), lease.held) == (True, False)


async def test_a_pod_that_is_to_continue_continues():
    lease = await lease_after(pb.DIRECTIVE_CONTINUE)
    assert not lease.stop.done()


@pytest.mark.parametrize("directive", [pb.DIRECTIVE_DRAIN, UNKNOWN, pb.DIRECTIVE_UNSPECIFIED])
async def test_a_pod_drains_on_drain_and_on_every_directive_that_it_does_not_know(directive):
    lease = await lease_after(directive, "the pool shrinks")
    assert lease.stop.result() == "the pool shrinks"
    assert lease.held, "it publishes and completes its assignment"


@pytest.mark.parametrize("directive", [pb.DIRECTIVE_DRAIN, UNKNOWN])
async def test_a_pod_that_drains_has_a_reason_even_without_one_from_the_orchestrator(directive):
    assert (await lease_after(directive)).stop.result()


async def test_a_pod_whose_assignment_is_cancelled_publishes_nothing():
    lease = await lease_after(pb.DIRECTIVE_CANCEL)
    assert lease.stop.done()
    assert not lease.held


async def test_a_pod_that_yields_holds_its_agent_until_it_has_published():
    lease = await lease_after(pb.DIRECTIVE_YIELD, "a check waits")
    assert (lease.stop.result(), lease.held, lease.yielded) == ("a check waits", True, True)
    assert not (await lease_after(pb.DIRECTIVE_DRAIN)).yielded


async def test_a_pod_that_was_stopped_before_does_not_yield():
    answers = iter([pb.DIRECTIVE_DRAIN, pb.DIRECTIVE_YIELD])

    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        return pb.RenewAssignmentResponse(directive=next(answers), reason="the pool shrinks")

    lease = Lease(SimpleNamespace(RenewAssignment=renew), pb.Assignment(assignment_id="t-a0.1"), orphan_seconds=60.0)
    await lease.renew()
    await lease.renew()
    assert not lease.yielded


async def test_an_agent_that_is_stopped_early_stays_so_when_the_directive_is_repeated():
    lease = await lease_after(pb.DIRECTIVE_STOP, "the trial falls behind")
    await lease.renew()
    assert (lease.stop.result(), lease.held, lease.stopped_early) == ("the trial falls behind", True, True)


async def test_a_stuck_role_is_reported_until_a_renewal_is_answered() -> None:
    sent: list[list[int]] = []

    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        sent.append([stuck.number for stuck in request.stuck_roles])
        if len(sent) == 1:
            raise Unavailable("it restarts")
        return pb.RenewAssignmentResponse(directive=pb.DIRECTIVE_CONTINUE)

    lease = Lease(SimpleNamespace(RenewAssignment=renew), pb.Assignment(assignment_id="t-a0.1"), orphan_seconds=60.0)
    await lease.report_stuck(pb.StuckRole())
    await lease.report_stuck(pb.StuckRole())
    await lease.renew()
    assert sent == [[1], [1, 2], []]


async def test_a_report_that_two_renewals_sent_does_not_take_a_later_one_with_it() -> None:
    answered, sent = asyncio.Event(), []

    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        sent.append([stuck.number for stuck in request.stuck_roles])
        if len(sent) == 3:
            raise Unavailable("it restarts")
        if len(sent) < 3:
            await answered.wait()
        return pb.RenewAssignmentResponse(directive=pb.DIRECTIVE_CONTINUE)

    lease = Lease(SimpleNamespace(RenewAssignment=renew), pb.Assignment(assignment_id="t-a0.1"), orphan_seconds=60.0)
    overlapping = [asyncio.ensure_future(lease.report_stuck(pb.StuckRole())), asyncio.ensure_future(lease.renew())]
    while len(sent) < 2:
        await asyncio.sleep(0)
    await lease.report_stuck(pb.StuckRole())
    answered.set()
    await asyncio.gather(*overlapping)
    await lease.renew()
    assert sent == [[1], [1], [1, 2], [2]]


@pytest.mark.parametrize(
    ("answer", "stops"),
    [
        *((error("the disk is full"), False) for error in (ResourceExhausted, DataLoss, Internal)),
        *((error("nothing came"), True) for error in (Unavailable, DeadlineExceeded)),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_only_a_pod_without_any_answer_for_a_long_time_is_orphaned(answer: PodraceError, stops: bool) -> None:
    now = 0.0

    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        raise answer

    orchestrator, assignment = SimpleNamespace(RenewAssignment=renew), pb.Assignment(assignment_id="t-a0.1")
    lease = Lease(orchestrator, assignment, orphan_seconds=60.0, clock=lambda: now)
    for _ in range(100):
        now += 3.0
        await lease.renew()
    assert lease.stop.done() == stops
    assert lease.held


async def test_reports_of_stuck_roles_are_repeated_until_they_are_recorded() -> None:
    answers = iter([ResourceExhausted("the disk is full"), None, None])
    sent: list[int] = []

    async def renew(request: pb.RenewAssignmentRequest, timeout: float) -> pb.RenewAssignmentResponse:
        sent.append(len(request.stuck_roles))
        if error := next(answers):
            raise error
        return pb.RenewAssignmentResponse(directive=pb.DIRECTIVE_CONTINUE)

    lease = Lease(SimpleNamespace(RenewAssignment=renew), pb.Assignment(assignment_id="t-a0.1"), orphan_seconds=60.0)
    await lease.report_stuck(pb.StuckRole())
    for _ in range(2):
        await lease.renew()
    assert sent == [1, 1, 0]


class FullOrchestrator:
    """Has no space to record the end of an assignment, until the given number of attempts."""

    def __init__(self, refusals: float) -> None:
        self.refusals, self.requests, self.pauses = refusals, list[pb.CompleteAssignmentRequest](), list[float]()

    async def CompleteAssignment(
        self, request: pb.CompleteAssignmentRequest, timeout: float
    ) -> pb.CompleteAssignmentResponse:
        self.requests.append(request)
        if len(self.requests) <= self.refusals:
            raise ResourceExhausted("the disk is full")
        return pb.CompleteAssignmentResponse()

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def test_the_end_of_an_assignment_is_reported_until_there_is_space_to_record_it() -> None:
    full = FullOrchestrator(refusals=7)
    lease = Lease(full, pb.Assignment(assignment_id="t-a0.1"), orphan_seconds=60.0, pause=full.pause)
    await lease.complete(pb.OUTCOME_FINISHED)
    assert len(full.requests) == 8
    assert len({request.request_id for request in full.requests}) == 1
    assert all(low <= found <= 2 * low for found, low in zip(full.pauses, [0.5, 1, 2, 4, 8, 15, 15], strict=True))


async def test_a_pod_that_must_stop_does_not_wait_for_space() -> None:
    full = FullOrchestrator(refusals=float("inf"))
    lease = Lease(full, pb.Assignment(assignment_id="t-a0.1"), orphan_seconds=60.0)

    async def stop_meanwhile(seconds: float) -> None:
        lease.request_stop("SIGTERM")
        await asyncio.Event().wait()

    lease._pause = stop_meanwhile
    with pytest.raises(ResourceExhausted):
        await lease.complete(pb.OUTCOME_FINISHED)
    assert len(full.requests) == 2
