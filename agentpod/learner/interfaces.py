"""Declares what the computing half of a leader may use of the half that holds the lease.

A leader has two halves:

- Control: `leader`, `lease`, `publisher` and `policy_loader` hold the lease, the credentials of the checkpoint store
  and the stubs of the orchestrator and the leaderboard.
- Computing: `training_setup`, `agent_training`, `evaluation_job` and what they use open the roles, train and evaluate.

The computing half reaches the other only through the protocols below, so that the two can run in different processes
with different credentials. An import contract in pyproject.toml and a unit test enforce this.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.learner.checkpoint_files import FrozenState, PolicyCopy, StartingState
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation
from podrace.leaderboard.v1.leaderboard_pb2 import PlanEvaluationResponse

if TYPE_CHECKING:
    from agentpod.learner.evaluation_job import PublishedPolicy

Steps = Mapping[str, Tensor]
"""The fields of consecutive steps, [L, N, ...] each; see agentpod.experience.replay_restoring.dense_steps."""


@dataclass(frozen=True)
class ForeignSteps:
    """What one other agent experienced."""

    agent_id: str
    """The agent."""
    runs: Sequence[Steps] = ()
    """Its steps, oldest first; between two runs some are missing."""
    left_out: str = ""
    """Why further steps of it, or all, cannot be used; empty if all can."""
    age_seconds: float = 0.0
    """Time since the checkpoint that contains the steps was published, when it was read."""


class LeaseStatus(Protocol):
    """What a training needs to know about its lease.

    while not lease.stop.done():
        ...
    if lease.held:
        await checkpoints.publish(frozen, None)
    """

    @property
    def stop(self) -> "asyncio.Future[str]":
        """Completed with the reason when the work must end before its budget is used up."""
        ...

    @property
    def held(self) -> bool:
        """False once the agent belongs to another pod: this pod must neither publish nor complete it any more."""
        ...

    @property
    def stopped_early(self) -> bool:
        """Whether the work must end because the strategy has no more use for the agent."""
        ...

    @property
    def running_seconds(self) -> float | None:
        """Seconds the tournament has been running, pauses excluded; None if the orchestrator never reported it."""
        ...

    @property
    def evaluation_epoch(self) -> int:
        """Evaluation epoch that the orchestrator reported last: which episodes the agent is scored on."""
        ...


class CheckpointAccess(Protocol):
    """Reads and writes the checkpoints of one agent under one lease.

    start = await checkpoints.start()
    await checkpoints.restore_replay(start, replay)
    checkpoints.record_mates()                   # only if the agent starts from the average with its mates
    plan = await checkpoints.plan_evaluation(lease.evaluation_epoch)
    await checkpoints.store_replay(frozen)       # only if nothing of it may be overwritten before it is published
    await checkpoints.publish(frozen, evaluation)
    await checkpoints.publish_interim(frozen)
    await checkpoints.publish_snapshot(copy, number, running_seconds)
    steps = await checkpoints.read_experience(replay)
    policies = await checkpoints.read_opponents(plan.opponents)
    """

    async def start(self) -> StartingState:
        """Claims the agent and returns the state that its training starts from.

        Raises:
            FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH).
            DataLoss, NotFound: The checkpoint of its parent is damaged or missing.
        """
        ...

    async def restore_replay(self, start: StartingState, replay: ReplayBuffer) -> None:
        """Fills an empty replay memory from the starting state, as far as its pieces can be read and fit.

        While the store does not answer, the call waits.

        Raises:
            Unavailable: The work must end, and the store still does not answer.
        """
        ...

    def record_mates(self) -> None:
        """Records in all manifests from now on that the agent started from the average with its mates."""
        ...

    async def store_replay(self, frozen: FrozenState) -> None:
        """Stores the replay memory of a state ahead of its publication."""
        ...

    async def publish(self, frozen: FrozenState, evaluation: Evaluation | None) -> None:
        """Stores a checkpoint, with its score if there is one.

        Raises:
            FailedPrecondition: A higher epoch holds the agent (STALE_EPOCH).
            DataLoss: The score belongs to another policy.
            Unavailable: The work must end, and the store still does not accept the checkpoint.
        """
        ...

    async def publish_interim(self, frozen: FrozenState) -> bool:
        """Stores a checkpoint without a score, for the case that the pod is lost before the next evaluation.

        Returns:
            Whether it was stored. Nothing is stored while a score waits for the leaderboard: an agent has two
            checkpoints, of which the next pod submits those that are scored.

        Raises:
            As `publish`.
        """
        ...

    async def plan_evaluation(self, epoch: int) -> PlanEvaluationResponse | None:
        """Returns what the next score has to beat, and what else to score; None if the leaderboard does not answer.

        Args:
            epoch: Evaluation epoch of that score.
        """
        ...

    async def read_experience(self, replay: ReplayBuffer) -> Sequence[ForeignSteps]:
        """Returns what other agents of the tournament experienced since the last call, the oldest checkpoint first.

        Args:
            replay: Memory with the fields that the steps must have, and as many steps as can be kept.

        Raises:
            PodraceError: The leaderboard does not answer.
        """
        ...

    async def read_opponents(self, candidates: Sequence[Checkpoint]) -> "Sequence[PublishedPolicy]":
        """Returns the policies of candidates, without those that cannot be read."""
        ...

    async def publish_snapshot(self, copy: PolicyCopy, number: int, running_seconds: float) -> None:
        """Stores a snapshot and submits it to the leaderboard.

        Args:
            copy: The policy.
            number: Number of the snapshot.
            running_seconds: How long the tournament had been running when the policy was copied.

        Raises:
            PodraceError: The store or the leaderboard does not accept it, or does not answer.
        """
        ...
