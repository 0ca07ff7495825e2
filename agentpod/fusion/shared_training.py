"""Where the other learners of a pod learn what the head trains."""

import asyncio
from contextlib import suppress

from agentpod.fusion.rendezvous import LeaderRendezvous
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import NOT_OPEN, FailedPrecondition


class SharedTraining:
    """The training that is shared at present, or none.

    Attributes:
        training: What GetTraining answers; without a session while nothing is shared.
    """

    def __init__(self) -> None:
        """Nothing is shared."""
        self.training = pb.GetTrainingResponse()
        self._rendezvous: LeaderRendezvous | None = None
        self._changed = asyncio.Event()
        self._ended = False

    def share(self, training: pb.GetTrainingResponse, rendezvous: LeaderRendezvous) -> None:
        """Invites the other learners."""
        self.training, self._rendezvous = training, rendezvous
        self._notify()

    def withdraw(self) -> None:
        """Sends everybody home."""
        self.training, self._rendezvous = pb.GetTrainingResponse(), None
        self._notify()

    def end(self) -> None:
        """Nothing will be shared any more: whoever waits is told."""
        self._ended = True
        self.withdraw()
        self.training.ending = True

    def learner_disconnected(self, learner: int) -> None:
        """A learner has broken off its call; the lifeline tells more of those of this host."""
        if self._rendezvous is not None:
            self._rendezvous.learner_disconnected(learner)

    @property
    def rendezvous(self) -> LeaderRendezvous:
        """Where the learners meet.

        Raises:
            FailedPrecondition: Nothing is shared (NOT_OPEN).
        """
        if self._rendezvous is None:
            raise FailedPrecondition("this pod shares no training at present", reason=NOT_OPEN)
        return self._rendezvous

    async def wait_for_change(self, session: str, wait_seconds: float) -> pb.GetTrainingResponse:
        """What is shared, as soon as it is something else than the caller knows, or after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                while self.training.session == session and not self._ended:
                    await self._changed.wait()
        return self.training

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
