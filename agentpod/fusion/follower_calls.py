"""Derives from the calls of the followers on other hosts whether they live."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping

from agentpod.config import learner_role
from agentpod.liveness.role_watch import RoleAnswer
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

ALIVE = RoleAnswer(pb.ROLE_PHASE_WAITING, 0)


class FollowerCalls:
    """The calls of GetTraining by followers on other hosts. They serve no port that could be polled.

    calls = FollowerCalls(first=2, restart_seconds=60.0, clock=time.monotonic)
    with calls.in_progress(learner):
        ...
    answers = calls.answers()

    A follower that lives always has a call in progress, except for a moment between two calls.
    """

    def __init__(self, first: int, restart_seconds: float, *, clock: Callable[[], float]) -> None:
        """Starts without calls.

        Args:
            first: Number, within the pod, of the first learner on another host; those below it are polled.
            restart_seconds: How long a follower whose connection broke may take to call again.
            clock: Monotonic clock in seconds.
        """
        self._first, self._restart_seconds, self._clock = first, restart_seconds, clock
        self._newest: dict[int, object] = {}
        self._alive_until: dict[int, float] = {}
        """Until when each follower is taken for alive; infinity while it has a call in progress."""

    @contextlib.contextmanager
    def in_progress(self, learner: int) -> Iterator[None]:
        """Records a call of a follower for the duration of a block.

        If the call is cancelled, its connection broke: the process may be starting again.
        """
        call = self._newest[learner] = object()
        self._alive_until[learner], after = math.inf, 0.0
        try:
            yield
        except asyncio.CancelledError:
            after = self._clock() + self._restart_seconds
            raise
        finally:
            # The end of a call may arrive after the next one has begun.
            if self._newest[learner] is call:
                self._alive_until[learner] = after

    def answers(self) -> Mapping[str, RoleAnswer | None]:
        """Returns what a poll of each follower on another host would have answered; None: nothing.

        A follower that has never called is not listed: its host may start much later.
        """
        now = self._clock()
        return {
            learner_role(number): ALIVE if now < self._alive_until[number] else None
            for number in sorted(self._alive_until)
            if number >= self._first
        }
