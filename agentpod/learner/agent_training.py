"""Trains one agent: runs the collect-update loop to the end of the budget, and evaluates and publishes on the way.

This is the computing half of the leader. It reaches the lease and the checkpoint store only through
agentpod.learner.interfaces.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from agentpod.algorithms import reports_user_code
from agentpod.compute_thread import ComputeThread
from agentpod.config import PodConfig
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.fusion.shared_training import SharedTraining
from agentpod.learner.checkpoint_files import Counters, FrozenState, copy_policy, freeze
from agentpod.learner.collect_update_loop import CollectUpdateLoop, UpdateResult
from agentpod.learner.ending import Budget
from agentpod.learner.evaluation_schedule import EvaluationSchedule, EvaluationTime, Scorer
from agentpod.learner.fusion_session import FusionSession
from agentpod.learner.interfaces import CheckpointAccess, LeaseStatus
from agentpod.learner.opponents.training import TrainingOpponents
from agentpod.learner.progress_reporter import ProgressReporter
from agentpod.learner.sharing.feed import ExperienceFeed
from agentpod.learner.snapshots import InterimCheckpoints, SnapshotRecorder
from agentpod.session.role_faults import RoleLost, RoleRefused
from agentpod.session.session import Roles
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.snapshot_schedule import checkpoint_seconds

_log = structlog.get_logger(__name__)
MOST_LOSSES = 12
"""Losses of roles in a row, without an update in between, before the agent is given back. A role that crashes is not
restarted as often."""


@dataclass(frozen=True)
class TrainingContext:
    """What the training of one assignment receives from the leader."""

    config: PodConfig
    """Configuration of the pod."""
    assignment: pb.Assignment
    """The training assignment, with the agent and the specification."""
    lease: LeaseStatus
    """Whether to stop, and whether the pod still holds the agent."""
    checkpoints: CheckpointAccess
    """Where the agent's state comes from and goes to."""
    progress: ProgressReporter
    """Where the training reports its progress."""
    roles: Roles
    """Workers and evaluator of the pod."""
    compute: ComputeThread
    """Thread that the algorithm runs on."""
    shared_training: SharedTraining
    """Publishes to the followers what to train."""
    evaluation_time: EvaluationTime
    """Counts the time of the pod's evaluations."""
    device: str = "cpu"
    """Device that the algorithm trains on."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic clock in seconds."""


class AgentTraining:
    """One agent in training, built by agentpod.learner.training_setup.

        if await training.run():
            ...                     # the budget is used up and the last policy is scored
        await training.leave()      # after an error: publish what there is
        await training.abandon()    # after an error that forbids publishing

    Attributes:
        role_restarts: How many times the roles were opened again after one was lost.
    """

    def __init__(
        self,
        context: TrainingContext,
        loop: CollectUpdateLoop,
        fusion: FusionSession | None,
        snapshots: SnapshotRecorder,
        counters: Counters,
        feed: ExperienceFeed | None = None,
        opponents: TrainingOpponents | None = None,
        *,
        started: float,
        scored: bool = False,
    ) -> None:
        """Starts from a restored algorithm whose roles are open.

        Args:
            context: From the leader.
            loop: Collects and updates.
            fusion: Fuses the agent with the followers of the pod; None in a pod with one learner.
            snapshots: Takes the snapshots that are due.
            counters: Progress of the agent when this lease began.
            feed: Brings the experience of other agents; None if it is not shared.
            opponents: Chooses the policies that the agent trains against; None: there are none.
            started: Time at which the work on the assignment started, by the clock of the context.
            scored: Whether the policy of the restored algorithm was published with its score.
        """
        spec = context.assignment.spec
        self._context, self._spec, self._loop, self._fusion = context, spec, loop, fusion
        self._feed, self._opponents = feed, opponents
        self._lease, self._roles, self._compute = context.lease, context.roles, context.compute
        self._progress, self._snapshots, self._own_counters = context.progress, snapshots, counters
        self._interim = InterimCheckpoints(
            context.checkpoints, checkpoint_seconds(spec), context.clock, context.progress.report_stored
        )
        self._budget = Budget.of(context.assignment)
        self._begin_steps = counters.environment_steps
        self._schedule = EvaluationSchedule.starting_at(counters.environment_steps, spec.evaluation)
        self._scorer = Scorer(
            context.roles,
            context.checkpoints,
            context.progress,
            context.lease,
            spec,
            context.evaluation_time,
            started=started,
            clock=context.clock,
        )
        if scored:
            self._scorer.scored_version = counters.policy_version
        self._accounted = started
        self.role_restarts = self._losses_in_row = 0

    @property
    def finished(self) -> bool:
        """Whether the budget is used up and the last policy is scored, even if a stop was requested."""
        return self._used_up() and self._is_scored

    async def run(self) -> bool:
        """Trains until the budget is used up or a stop is requested; then scores and publishes the last policy.

        Returns:
            True if the budget was used up and the last policy was published with its score; False if a stop was
            requested first. The policy was then published without a score, unless the strategy has stopped the agent.

        Raises:
            DataLoss: A number is not finite; the last good checkpoint remains.
            InvalidArgument: The hyperparameters do not fit the rollouts.
            RoleLost: A role was lost and could not be opened again.
            RoleRefused: A role refuses, or is lost again and again.
        """
        try:
            await self._begin()
            while not self._has_ended():
                try:
                    result = await self._loop.step(lambda coming_steps: not self._has_ended(coming_steps))
                except RoleLost as error:
                    await self._reopen(error)
                    continue
                if result:
                    await self._after_update(result)
        finally:
            await self._loop.drop_pending()
            await self._end_sharing()
        finished = await self._finish()
        await self._settle_copies()
        return finished

    async def leave(self) -> None:
        """Publishes the state as it is, so that another pod can continue from it, unless this pod lost the lease."""
        await self._end_sharing()
        await self._scorer.cancel()
        if self._counters.rollouts and self._lease.held:
            await self._publish_unscored()
        await self._settle_copies()

    async def abandon(self) -> None:
        """Cancels the evaluation that is under way and publishes nothing."""
        await self._end_sharing()
        await self._scorer.cancel()
        await self._settle_copies()

    async def _settle_copies(self) -> None:
        await self._interim.settle()
        await self._snapshots.settle()

    # --- the loop ---------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        if self._fusion:
            await self._fusion.open()
        if self._feed:
            self._feed.start()
        await self._publish_policy()
        self._report()
        self._progress.enter(pb.POD_ACTIVITY_TRAINING)
        self._progress.begin_training(self._context.clock())

    async def _after_update(self, result: UpdateResult) -> None:
        self._losses_in_row = 0
        self._account(result)
        if self._fusion:
            await self._fusion.fuse_if_due()
        await self._publish_policy()
        self._report(result.policy_lag)
        await self._snapshot_if_due()
        await self._score_if_due()
        await self._store_if_due()

    async def _publish_policy(self) -> None:
        """Makes the workers act with the current policy, and play against the opponents that are due."""
        await self._loop.publish()
        if self._opponents:
            algorithm, counters = self._loop.algorithm, (self._loop.policy_version, self._loop.rollouts)
            self._opponents.draw_if_due(algorithm.network, algorithm.policy.flat, *counters)

    def _has_ended(self, coming_steps: int = 0) -> bool:
        # With several learners the training ends with a round: no work since the last round is lost, and the policy
        # that is scored is one that the learners agreed on.
        return self._lease.stop.done() or (self._used_up(coming_steps) and self._agreed)

    def _used_up(self, coming_steps: int = 0) -> bool:
        counters = self._counters
        steps = counters.environment_steps + coming_steps
        if self._budget.used_up(steps, counters.training_seconds):
            return True
        trained = steps > self._begin_steps
        return trained and self._budget.must_score(
            self._lease.running_seconds, self._context.evaluation_time.last_seconds
        )

    async def _reopen(self, error: RoleLost) -> None:
        if self._lease.stop.done():
            return
        self._losses_in_row += 1
        if self._losses_in_row > MOST_LOSSES:
            raise RoleRefused(f"{error.message} (lost {self._losses_in_row} times without an update in between)")
        _log.warning("a role was lost; opening all roles again", error=error.message)
        self.role_restarts += 1
        await self._scorer.interrupt()
        await self._loop.reopen()

    def _account(self, result: UpdateResult) -> None:
        # Training time is counted from one update to the next, the first one from the start of the work: opening the
        # roles and collecting take time as well.
        now = self._context.clock()
        self._own_counters = self._own_counters.after(
            steps=result.environment_steps, seconds=now - self._accounted, cores=self._context.config.cores
        )
        self._accounted = now
        if self._fusion:
            self._fusion.count(result.environment_steps)
        self._progress.record_update(now, self._counters.environment_steps, result.episode_returns)

    def _report(self, policy_lag: float = 0.0) -> None:
        self._progress.report(self._counters, policy_lag, self._roles.plane)

    @property
    def _counters(self) -> Counters:
        """Progress of the agent; with several learners, the steps of all of them count."""
        if self._fusion:
            return replace(self._own_counters, environment_steps=self._fusion.environment_steps)
        return self._own_counters

    @property
    def _agreed(self) -> bool:
        return self._fusion is None or self._fusion.agreed

    async def _end_sharing(self) -> None:
        if self._fusion:
            await self._fusion.close()
        if self._feed:
            await self._feed.close()
        if self._opponents:
            await self._opponents.close()

    # --- snapshots and scores ---------------------------------------------------------------------------------

    async def _snapshot_if_due(self) -> None:
        number = self._snapshots.due()
        if number and self._agreed:
            copy = await self._compute.run(copy_policy, self._loop.algorithm, self._counters)
            self._snapshots.take(number, copy)

    async def _score_if_due(self) -> None:
        if not self._agreed:
            return
        if not self._schedule.take(self._counters.environment_steps):
            return
        if self._spec.synchronous or not (self._scorer.busy or not self._scorer.affords_another()):
            await self._score()

    async def _score(self) -> None:
        """Waits for the previous evaluation and starts to evaluate the current policy."""
        await self._settle()
        if not self._lease.stop.done():
            frozen = await self._freeze(self._roles.replay)
            if self._spec.synchronous:
                # Which steps are overwritten before they are stored would depend on the speed of the machine.
                await self._context.checkpoints.store_replay(frozen)
            self._scorer.start(frozen, self._roles.ring.hold())

    async def _store_if_due(self) -> None:
        # A policy that is being evaluated is published afterwards, as the newest one; so is the last one.
        if self._interim.due() and self._agreed and not self._scorer.busy and not self._has_ended():
            self._interim.store(await self._freeze(self._roles.replay))

    async def _freeze(self, replay: ReplayBuffer | None) -> FrozenState:
        self._interim.note()
        fusion_tensors = self._fusion.tensors() if self._fusion else {}
        with reports_user_code(self._loop.algorithm, "state_dict"):
            return await self._compute.run(freeze, self._loop.algorithm, self._counters, replay, fusion_tensors)

    async def _settle(self) -> None:
        try:
            await self._scorer.settle()
        except RoleLost as error:
            await self._reopen(error)

    @property
    def _is_scored(self) -> bool:
        return self._scorer.scored_version == self._counters.policy_version

    async def _finish(self) -> bool:
        """Scores and publishes the last policy; after a stop, publishes it without a score."""
        self._progress.enter(pb.POD_ACTIVITY_EVALUATING)
        self._scorer.end_training()
        await self._snapshot_if_due()
        while not self._lease.stop.done():
            await self._settle()
            await self._snapshot_if_due()
            if self._is_scored:
                return True
            await self._score()
        await (self.abandon() if self._lease.stopped_early else self.leave())
        return False

    async def _publish_unscored(self) -> None:
        self._progress.enter(pb.POD_ACTIVITY_PUBLISHING)
        if self._is_scored:
            return
        if self._roles.replay:
            # Networks first: the pod may be killed before gigabytes of replay memory are stored. Not while a score
            # waits for the leaderboard: two checkpoints would displace the scored one.
            await self._context.checkpoints.publish_interim(await self._freeze(None))
        await self._context.checkpoints.publish(await self._freeze(self._roles.replay), None)
