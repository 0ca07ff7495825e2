"""When an agent is scored, and the one evaluation that may be in flight: its policy frozen, its score awaited, both
published.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentpod.assignment import Lease, Stop
from agentpod.buffer import PolicySlot
from agentpod.publication import Publisher
from agentpod.randomness import derive_seed
from agentpod.roles import Roles
from agentpod.training_files import Frozen
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec


@dataclass
class Schedule:
    """When an agent is scored, counted in its own steps."""

    every_steps: int
    share: float
    """Largest share of the pod's wall clock."""
    due_steps: int
    """Steps at which the next evaluation is due."""

    @classmethod
    def starting_at(cls, steps: int, spec: EvaluationSpec, *, synchronous: bool) -> "Schedule":
        """The schedule of an agent that has taken `steps`; wall clock has no say when `synchronous`."""
        every = spec.every_environment_steps
        return cls(every, 1.0 if synchronous else spec.share, due_steps=(steps // every + 1) * every)

    def take(self, steps: int) -> bool:
        """Whether a multiple of `every_steps` was passed since this last said so."""
        if steps < self.due_steps:
            return False
        self.due_steps = (steps // self.every_steps + 1) * self.every_steps
        return True

    def affordable(self, elapsed_seconds: float, evaluation_seconds: float, next_seconds: float) -> bool:
        """Whether one more evaluation keeps them all within their share of the elapsed time."""
        spent = evaluation_seconds + next_seconds
        return self.share >= 1.0 or spent <= self.share * (elapsed_seconds + next_seconds)


class Scorer:
    """At most one evaluation in flight.

    await scorer.start(frozen, roles.ring.hold())
    ...                                  # training goes on
    await scorer.settle(lease.stop)      # published, called off, or its error
    """

    def __init__(
        self,
        roles: Roles,
        publisher: Publisher,
        lease: Lease,
        spec: EvaluationSpec,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Has scored nothing yet."""
        self._roles, self._publisher, self._lease, self._spec, self._clock = roles, publisher, lease, spec, clock
        self._task: asyncio.Task[None] | None = None
        self._publishing = False
        self.scored_version = -1
        """Newest policy version that was published with its score."""
        self.total_seconds = 0.0
        self.last_seconds = 0.0

    @property
    def busy(self) -> bool:
        """Whether one is in flight."""
        return self._task is not None and not self._task.done()

    def start(self, frozen: Frozen, held: PolicySlot) -> None:
        """Begins to score a policy that lies in a held slot; the earlier one must be settled."""
        self._task = asyncio.create_task(self._score(frozen, held))

    async def settle(self, stop: "asyncio.Future[Stop]") -> None:
        """Waits until the one in flight is published; a stop calls it off. Raises its error."""
        if self._task:
            waited: list[asyncio.Future[Any]] = [self._task, stop]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not self._task.done():
                await self.call_off()
            task, self._task = self._task, None
            if task:
                await task

    async def call_off(self) -> None:
        """Ends the one in flight; if it is being published already, that is finished first."""
        task, self._task = self._task, None
        if task:
            if not self._publishing:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _score(self, frozen: Frozen, held: PolicySlot) -> None:
        started = self._clock()
        version = frozen.counters.policy_version
        seed = derive_seed(self._publisher.agent.seed, "evaluation", version)
        try:
            evaluation = await self._roles.evaluate(
                held, episodes=self._spec.episodes, seed=seed, greedy=self._spec.greedy
            )
        finally:
            self.last_seconds = self._clock() - started
            self.total_seconds += self.last_seconds
        self._lease.progress.score = evaluation.mean_return
        self._publishing = True
        try:
            await self._publisher.publish(frozen, evaluation)
        finally:
            self._publishing = False
        self.scored_version = version
