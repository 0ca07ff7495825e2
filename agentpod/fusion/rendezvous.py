"""Lets the learners of a pod meet for fusion rounds: in process on the leader, and by rpc on followers."""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import structlog

from agentpod.fusion.reachability import LEADER
from agentpod.fusion.rounds import Arrival, FusionOptions, FusionRounds, Membership, RoundReport
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import NOT_OPEN, DeadlineExceeded, FailedPrecondition
from podrace.processes import lifeline
from podrace.tasks import ChangeSignal, wait_at_most
from podrace.tensor_transport.group_store import GroupStore

_log = structlog.get_logger(__name__)
DEADLINE_SECONDS = 120.0
"""Deadline of one JoinFusion or CommitFusion rpc; the rpc is repeated after it."""


class Rendezvous(Protocol):
    """A fusion round from a learner's point of view.

    membership = await rendezvous.join(request)
    ...                                         # compute the average
    outcome = await rendezvous.commit(request)
    """

    async def join(self, request: pb.JoinFusionRequest) -> pb.JoinFusionResponse:
        """See JoinFusion in protos/podrace/agentpod/v1/agentpod.proto."""
        ...

    async def commit(self, request: pb.CommitFusionRequest) -> pb.CommitFusionResponse:
        """See CommitFusion in protos/podrace/agentpod/v1/agentpod.proto."""
        ...


class RemoteRendezvous:
    """Calls the leader's rendezvous from another process."""

    def __init__(self, stub: Any) -> None:
        """Takes the stub of the leader's LearnerService."""
        self._stub = stub

    async def join(self, request: pb.JoinFusionRequest) -> pb.JoinFusionResponse:
        """See Rendezvous.join."""
        response: pb.JoinFusionResponse = await self._repeated(self._stub.JoinFusion, request)
        return response

    async def commit(self, request: pb.CommitFusionRequest) -> pb.CommitFusionResponse:
        """See Rendezvous.commit."""
        response: pb.CommitFusionResponse = await self._repeated(self._stub.CommitFusion, request)
        return response

    async def _repeated(self, method: Any, request: Any) -> Any:
        """Repeats the call until it is answered: updates on the other side may take longer than any deadline."""
        while True:
            with suppress(DeadlineExceeded):
                return await rpc.call(method, request, deadline_seconds=DEADLINE_SECONDS)


class LeaderRendezvous:
    """Serves the rendezvous of one session on the leader.

    agentpod.fusion.rounds decides; this class waits for the decisions.

    Attributes:
        session: Of the training that the learners share.
    """

    def __init__(
        self,
        session: str,
        learners: int,
        options: FusionOptions,
        lifeline_of: Callable[[int], Path | None],
        clock: Callable[[], float] = time.monotonic,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        """Expects all learners of the agent.

        Args:
            session: Of the training.
            learners: Number of learners, including the leader.
            options: Fusion options.
            lifeline_of: Returns the lifeline of a learner, by index; None for a learner on another host, which is
                reported by `learner_disconnected`.
            clock: Returns seconds, monotonic.
            host: Address of this machine, reachable from all learners.
        """
        self.session = session
        self._rounds = FusionRounds(learners, options)
        self._store = GroupStore(host)
        self._lifeline_of, self._clock = lifeline_of, clock
        self._watches: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._elsewhere: dict[int, tuple[int, str]] = {}
        self._changes = ChangeSignal()
        self._closed = False

    async def join(self, request: pb.JoinFusionRequest) -> pb.JoinFusionResponse:
        """See Rendezvous.join; raises LeaderIsolated on the leader if no other learner can be reached from it."""
        self._check_session(request.session)
        member = request.learner_index, request.incarnation
        self._start_watch(member)
        self._rounds.arrive(
            Arrival(
                index=request.learner_index,
                incarnation=request.incarnation,
                applied_round=request.applied_round,
                epoch=request.epoch,
                environment_steps=request.environment_steps,
                time=self._clock(),
            )
        )
        membership: Membership = await self._wait_for(lambda: self._rounds.membership(member))
        return pb.JoinFusionResponse(
            round=membership.round,
            epoch=membership.epoch,
            rank=membership.members.index(member),
            size=len(membership.members),
            store_address=self._store.address,
            prefix=f"{self.session}/{membership.epoch}",
            joiner_ranks=sorted(membership.joiners),
            reason=membership.reason,
        )

    async def commit(self, request: pb.CommitFusionRequest) -> pb.CommitFusionResponse:
        """See Rendezvous.commit."""
        self._check_session(request.session)
        self._rounds.report(
            RoundReport(
                member=(request.learner_index, request.incarnation),
                epoch=request.epoch,
                round=request.round,
                digest=request.digest,
                failure=request.failure,
                time=self._clock(),
            )
        )
        outcome = await self._wait_for(lambda: self._rounds.outcome(request.epoch, request.round))
        return pb.CommitFusionResponse(
            committed=outcome.committed, environment_steps=outcome.environment_steps, reason=outcome.reason
        )

    def learner_disconnected(self, learner: int) -> None:
        """Stops waiting for a learner of another host, which may have exited, until it arrives again."""
        member = self._elsewhere.get(learner)
        if member is not None:
            _log.warning("learner on another host disconnected", learner=learner)
            self._rounds.leave(member)
            self._changes.notify_all()

    async def close(self) -> None:
        """Ends the session; waiting calls fail with FailedPrecondition (NOT_OPEN)."""
        self._closed = True
        self._changes.notify_all()
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)
        self._store.close()

    async def _wait_for(self, ready: Callable[[], Any]) -> Any:
        """Waits until `ready` returns a result, which calls of the others or a timeout bring about."""
        self._changes.notify_all()
        while True:
            due = self._rounds.advance(self._clock())
            for warning in self._rounds.take_warnings():
                _log.warning(warning)
            if (found := ready()) is not None:
                # The decision may also release other waiting calls.
                self._changes.notify_all()
                return found
            self._check_session(self.session)
            change = self._changes.next_change()
            await wait_at_most(change.wait(), None if due == math.inf else max(0.0, due - self._clock()))

    def _check_session(self, session: str) -> None:
        if self._closed or session != self.session:
            raise FailedPrecondition(f"session {session!r} has ended", reason=NOT_OPEN)

    def _start_watch(self, member: tuple[int, str]) -> None:
        if member[0] == LEADER or member in self._watches:
            return
        path = self._lifeline_of(member[0])
        if path is None:
            self._elsewhere[member[0]] = member
        else:
            self._watches[member] = asyncio.create_task(self._watch_lifeline(member, path))

    async def _watch_lifeline(self, member: tuple[int, str], path: Path) -> None:
        reason = await lifeline.lost(path)
        _log.warning("learner exited", learner=member[0], reason=reason)
        self._rounds.leave(member)
        self._changes.notify_all()
