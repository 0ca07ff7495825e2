"""When an agent is scored, and the one evaluation that may be in flight.

Its policy is frozen, its score awaited, both published.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from agentpod.experience.slots import PolicySlot
from agentpod.learner.checkpoint_files import FrozenState
from agentpod.learner.lease import Lease
from agentpod.learner.publisher import Publisher
from agentpod.seeding import derive_seed
from agentpod.session.session import Roles
from podrace.tournament.v1.tournament_pb2 import EvaluationSpec


@dataclass
class EvaluationSchedule:
    """When an agent is scored, counted in its own steps."""

    every_steps: int
    share: float
    """Largest share of the pod's wall clock."""
    due_steps: int
    """Steps at which the next evaluation is due."""

    @classmethod
    def starting_at(cls, steps: int, spec: EvaluationSpec) -> "EvaluationSchedule":
        """The schedule of an agent that has taken `steps`."""
        every = spec.every_environment_steps
        return cls(every, spec.share, due_steps=(steps // every + 1) * every)

    def take(self, steps: int) -> bool:
        """Whether a multiple of `every_steps` was passed since this last said so."""
        if steps < self.due_steps:
            return False
        self.due_steps = (steps // self.every_steps + 1) * self.every_steps
        return True

    def affordable(self, elapsed_seconds: float, evaluation_seconds: float, next_seconds: float) -> bool:
        """Whether one more evaluation keeps them all within their share of the elapsed time."""
        return evaluation_seconds + next_seconds <= self.share * (elapsed_seconds + next_seconds)


class Scorer:
    """At most one evaluation in flight; a stop of the lease calls it off.

    scorer.start(frozen, roles.ring.hold())
    ...                                  # training goes on
    await scorer.settle()                # published, called off, or its error
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
        # The task that trains may be waiting for the compute thread that this evaluation holds.
        lease.stop.add_done_callback(lambda _: self._cancel())

    @property
    def busy(self) -> bool:
        """Whether one is in flight."""
        return self._task is not None and not self._task.done()

    def start(self, frozen: FrozenState, held: PolicySlot) -> None:
        """Begins to score a policy that lies in a held slot; the earlier one must be settled."""
        self._task = asyncio.create_task(self._score(frozen, held))

    async def settle(self) -> None:
        """Waits for the end of the one in flight and raises its error; called off is no error."""
        task, self._task = self._task, None
        if task:
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def call_off(self) -> None:
        """Ends the one in flight, whatever becomes of it; if it is being published already, that is finished first."""
        self._cancel()
        task, self._task = self._task, None
        if task:
            await asyncio.gather(task, return_exceptions=True)

    def _cancel(self) -> None:
        if self._task and not self._publishing:
            self._task.cancel()

    async def _score(self, frozen: FrozenState, held: PolicySlot) -> None:
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
        if evaluation.evaluator_fault:
            # What was waited for in vain took nothing from training.
            self.total_seconds -= self.last_seconds - evaluation.wall_seconds
            self.last_seconds = evaluation.wall_seconds
        self._lease.progress.score = evaluation.mean_return
        self._lease.progress.evaluator_fault = evaluation.evaluator_fault
        self._publishing = True
        try:
            await self._publisher.publish(frozen, evaluation)
        finally:
            self._publishing = False
        self.scored_version = version
