"""Where the learners of a pod meet for a fusion round: at the head, which keeps the record; from elsewhere, by rpc."""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import structlog

from agentpod.fusion.rounds import LEADER, Arrival, FusionOptions, FusionRounds, Membership, RoundReport
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import NOT_OPEN, DeadlineExceeded, FailedPrecondition
from podrace.processes import lifeline
from podrace.tensor_transport.group import GroupStore

_log = structlog.get_logger(__name__)
DEADLINE_SECONDS = 120.0


class Rendezvous(Protocol):
    """A round, as a learner sees it.

    formed = await rendezvous.join(request)
    ...                                         # average aside
    outcome = await rendezvous.commit(request)
    """

    async def join(self, request: pb.JoinFusionRequest) -> pb.JoinFusionResponse:
        """See JoinFusion in the contract."""
        ...

    async def commit(self, request: pb.CommitFusionRequest) -> pb.CommitFusionResponse:
        """See CommitFusion in the contract."""
        ...


class RemoteRendezvous:
    """The head's, called from another process."""

    def __init__(self, stub: Any) -> None:
        """Calls a LearnerService."""
        self._stub = stub

    async def join(self, request: pb.JoinFusionRequest) -> pb.JoinFusionResponse:
        """See Rendezvous."""
        response: pb.JoinFusionResponse = await self._repeated(self._stub.JoinFusion, request)
        return response

    async def commit(self, request: pb.CommitFusionRequest) -> pb.CommitFusionResponse:
        """See Rendezvous."""
        response: pb.CommitFusionResponse = await self._repeated(self._stub.CommitFusion, request)
        return response

    async def _repeated(self, method: Any, request: Any) -> Any:
        """Calls until there is an answer: another learner may take longer for its updates than any deadline."""
        while True:
            with suppress(DeadlineExceeded):
                return await rpc.call(method, request, deadline_seconds=DEADLINE_SECONDS)


class LeaderRendezvous:
    """The head's own, for one session: agentpod.fusion.rounds decides, this waits.

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
        """Expects all learners.

        Args:
            session: Of the training.
            learners: How many there are, the head among them.
            options: How they are fused.
            lifeline_of: Where a learner, by index, holds its lifeline; None on another host, for which there is `miss`.
            clock: Seconds.
            host: Address of this machine that the learners can reach.
        """
        self.session = session
        self._rounds = FusionRounds(learners, options)
        self._store = GroupStore(host)
        self._lifeline_of, self._clock = lifeline_of, clock
        self._watches: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._elsewhere: dict[int, tuple[int, str]] = {}
        self._changed = asyncio.Event()
        self._closed = False

    async def join(self, request: pb.JoinFusionRequest) -> pb.JoinFusionResponse:
        """See Rendezvous."""
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
        """See Rendezvous."""
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
        """A learner of another host may be gone: nobody waits for it until it arrives again."""
        member = self._elsewhere.get(learner)
        if member is not None:
            _log.warning("a learner of another host has broken off", learner=learner)
            self._rounds.leave(member)
            self._notify()

    async def close(self) -> None:
        """Ends the session: whoever waits is told."""
        self._closed = True
        self._changed.set()
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)
        self._store.close()

    async def _wait_for(self, ready: Callable[[], Any]) -> Any:
        """Waits for what others, or the passing of time, bring about."""
        self._notify()
        while True:
            due = self._rounds.advance(self._clock())
            if (found := ready()) is not None:
                # What was decided just now is news to the others that wait.
                self._notify()
                return found
            self._check_session(self.session)
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), None if due == math.inf else max(0.0, due - self._clock()))
            except TimeoutError:
                continue

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _check_session(self, session: str) -> None:
        if self._closed or session != self.session:
            raise FailedPrecondition(f"session {session!r} is over", reason=NOT_OPEN)

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
        _log.warning("a learner is gone", learner=member[0], reason=reason)
        self._rounds.leave(member)
        self._notify()
