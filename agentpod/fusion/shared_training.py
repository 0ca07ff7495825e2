"""Announces to followers which training the leader shares, if any."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from agentpod.fusion.follower_calls import FollowerCalls
from agentpod.fusion.rendezvous import LeaderRendezvous
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import NOT_OPEN, FailedPrecondition, InvalidArgument
from podrace.tasks import ChangeSignal


class SharedTraining:
    """The training that the leader shares at present, or none.

    shared = SharedTraining(learners, learners_here, restart_seconds)

    Args:
        learners: Number of learners of the pod, the leader included.
        learners_here: How many of them are on the leader's host.
        restart_seconds: How long a follower on another host whose connection broke may take to call again.
        clock: Monotonic clock in seconds.

    Attributes:
        training: The answer to GetTraining; its session is empty while nothing is shared.
        calls: The calls of the followers.
    """

    def __init__(
        self,
        learners: int,
        learners_here: int,
        restart_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learners = learners
        self.calls = FollowerCalls(learners_here, restart_seconds, clock=clock)
        self.training = pb.GetTrainingResponse()
        self._rendezvous: LeaderRendezvous | None = None
        self._changes = ChangeSignal()
        self._ended = False
        self._followers: set[int] = set()
        self._ready: set[int] = set()

    def share(self, training: pb.GetTrainingResponse, rendezvous: LeaderRendezvous) -> None:
        """Shares a training with the followers."""
        self.training, self._rendezvous = training, rendezvous
        self._changes.notify_all()

    def prepare(self, training: pb.GetTrainingResponse) -> None:
        """Shares a training that has not begun: the followers open their roles for it, and then try to join."""
        self._ready.clear()
        self.training, self._rendezvous = training, None
        self._changes.notify_all()

    async def all_ready(self) -> bool:
        """Waits until every follower is ready for the training that is prepared; False if that was withdrawn."""
        session = self.training.session
        while self.training.session == session and len(self._ready) < self._learners - 1:
            await self._changes.next_change().wait()
        return self.training.session == session

    async def join(self, request: pb.JoinFusionRequest) -> pb.JoinFusionResponse:
        """See JoinFusion; a follower that calls it before the training has begun is ready for it.

        Raises:
            FailedPrecondition: The training has not begun, or nothing is shared (NOT_OPEN).
        """
        prepared = self._rendezvous is None and request.session == self.training.session
        if prepared and 0 < request.learner_index < self._learners:
            self._ready.add(request.learner_index)
            self._changes.notify_all()
        return await self.rendezvous.join(request)

    def withdraw(self) -> None:
        """Stops sharing."""
        self.training, self._rendezvous = pb.GetTrainingResponse(), None
        self._changes.notify_all()

    def end(self) -> None:
        """Stops sharing permanently and wakes all waiting calls."""
        self._ended = True
        self.withdraw()
        self.training.ending = True

    async def all_notified(self, wait_seconds: float) -> bool:
        """Waits until every follower that asks has received the end; returns whether that happened in time.

        A follower on another host that asks only after the server has stopped would take the leader for lost.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                while self._followers:
                    await self._changes.next_change().wait()
        return not self._followers

    @property
    def rendezvous(self) -> LeaderRendezvous:
        """Rendezvous of the shared training.

        Raises:
            FailedPrecondition: Nothing is shared (NOT_OPEN).
        """
        if self._rendezvous is None:
            raise FailedPrecondition("this pod shares no training at present", reason=NOT_OPEN)
        return self._rendezvous

    async def wait_for_change(self, session: str, wait_seconds: float, learner: int) -> pb.GetTrainingResponse:
        """Returns what is shared as soon as its session differs from `session`, or after `wait_seconds`.

        A cancelled call takes the learner out of its fusion round; for learners on this host, the lifeline is more
        reliable.

        Raises:
            InvalidArgument: The pod has no follower of this number.
        """
        if not 0 < learner < self._learners:
            raise InvalidArgument(
                f"learner_index = {learner} must be at least 1 and less than {self._learners}, the learners of the pod"
            )
        self._followers.add(learner)
        try:
            with self.calls.in_progress(learner), suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    while self.training.session == session and not self._ended:
                        await self._changes.next_change().wait()
        except asyncio.CancelledError:
            self._forget(learner)
            if self._rendezvous is not None:
                self._rendezvous.learner_disconnected(learner)
            raise
        if self._ended:
            self._forget(learner)
        return self.training

    def _forget(self, learner: int) -> None:
        self._followers.discard(learner)
        self._changes.notify_all()
