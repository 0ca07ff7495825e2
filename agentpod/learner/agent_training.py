"""Trains one agent under one lease: rollouts in, updates, policies out to the workers and, frozen, to the evaluator.

How a rollout becomes an update is agentpod.learner.collect_update_loop; here is what surrounds it: training files,
budget, scores, and the
other learners of the pod.
"""

import asyncio
import contextlib
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import structlog
from google.protobuf import json_format
from torch import Tensor

from agentpod.algorithms.requirements import Requirements, requirements
from agentpod.compute_thread import ComputeThread
from agentpod.config import PodConfig
from agentpod.experience.replay_buffer import ReplayBuffer
from agentpod.fusion.member import FusionMember, fusion_options
from agentpod.fusion.rendezvous import LeaderRendezvous
from agentpod.fusion.rounds import LEADER
from agentpod.fusion.shared_training import SharedTraining
from agentpod.learner.checkpoint_files import Counters, FrozenState, copy_policy, freeze, restore
from agentpod.learner.collect_update_loop import CollectUpdateLoop, UpdateResult
from agentpod.learner.evaluation_schedule import EvaluationSchedule, Scorer
from agentpod.learner.lease import Lease
from agentpod.learner.publisher import Publisher, StartingState
from agentpod.learner.snapshots import SnapshotRecorder
from agentpod.roles.user_evaluator import asked_of
from agentpod.session.role_client import RoleLost, SessionSpec
from agentpod.session.session import Roles
from podrace.agentpod.v1 import agentpod_pb2 as pb_pod
from podrace.errors import UNSUITABLE_SPACE, DataLoss, InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.ancestor import KEY, tournament_of
from podrace.specification.messages import bad_spec
from podrace.tournament.v1.tournament_pb2 import TournamentSpec
from simulators.messages import with_options

_log = structlog.get_logger(__name__)
RECENT_EPISODES = 100
RATE_WINDOW_SECONDS = 5.0
MAXIMUM_EVALUATION_LANES = 64


class AgentTraining:
    """One agent in training.

    training = AgentTraining(config, lease, agent, roles, compute, publisher)
    if await training.prepare():
        await training.run()
    """

    def __init__(
        self,
        config: PodConfig,
        lease: Lease,
        agent: Agent,
        roles: Roles,
        compute: ComputeThread,
        publisher: Publisher,
        shared_training: SharedTraining,
        *,
        device: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Knows what to do; does nothing yet."""
        self._config, self._lease, self._agent = config, lease, agent
        self._spec: TournamentSpec = lease.assignment.spec
        self._roles, self._compute, self._publisher, self._shared_training = roles, compute, publisher, shared_training
        self._device, self._clock = device, clock
        self._scorer = Scorer(roles, publisher, lease, self._spec.evaluation, clock)
        self._snapshots = SnapshotRecorder(publisher, lease, self._spec.evaluation)
        self._counters = Counters()
        self._loop: CollectUpdateLoop
        self._schedule: EvaluationSchedule
        self._member: FusionMember | None = None
        self._rendezvous: LeaderRendezvous | None = None
        self._steps_alone = 0
        self._began = clock()
        self._accounted = self._began
        self.opened = self.prepared = False
        self._recent_returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._recent_updates: deque[tuple[float, int]] = deque()
        self.role_restarts = 0

    # --- before -----------------------------------------------------------------------------------------------

    async def prepare(self) -> bool:
        """Claims the agent, opens the roles, and restores the agent's training files or its parent's.

        Returns:
            False when a stop came first.

        Raises:
            InvalidArgument: The specification cannot work here.
            FailedPrecondition: The agent belongs to another pod by now.
            RoleLost: A role is not there.
        """
        self._lease.progress.activity = pb.POD_ACTIVITY_OPENING
        start = await self._publisher.start()
        self._counters = start.counters
        hyperparameters = json_format.MessageToDict(self._agent.hyperparameters)
        self._loop = loop = self._new_loop(requirements(self._agent.algorithm, hyperparameters))
        with _naming_algorithm(self._agent.algorithm):
            spaces = await loop.open()
        if spaces is None:
            return False
        self.opened = True
        await loop.make_algorithm(self._agent, hyperparameters, self._agent.seed, spaces)
        state = await self._restore(loop, start) if start.parts else {}
        if self._roles.replay:
            await self._publisher.restore_replay(start, self._roles.replay)
        _log.info("training", begins_with=start.note, environment_steps=self._counters.environment_steps)
        self._schedule = EvaluationSchedule.starting_at(self._counters.environment_steps, self._spec.evaluation)
        if self._config.learners > 1:
            await self._invite(state)
        loop.publish()
        self._tell()
        self.prepared = True
        return True

    async def _restore(self, loop: CollectUpdateLoop, start: StartingState) -> Mapping[str, Tensor]:
        try:
            return await self._compute.run(restore, loop.algorithm, start.parts)
        except DataLoss as error:
            parent_id = self._agent.starting_checkpoint.agent_id
            if tournament_of(parent_id) in ("", self._agent.tournament_id):
                raise
            # What fits nobody: it is the specification that names an agent of another tournament.
            raise bad_spec(f"{KEY} = {parent_id!r}: does not fit this environment: {error.message}") from error

    def _new_loop(self, shape: Requirements) -> CollectUpdateLoop:
        spec = self._spec
        lanes = min(spec.evaluation.episodes, MAXIMUM_EVALUATION_LANES)
        session = SessionSpec(
            assignment=f"{self._agent.number}.{self._lease.assignment.lease_epoch}",
            environment=spec.environment,
            evaluation_environment=with_options(spec.environment, spec.evaluation.options, lanes),
            network=shape.network,
            memory=shape.memory,
            seed=self._agent.seed,
            rollouts=self._counters.rollouts,
            opened=0,
            evaluator=asked_of(spec.evaluation),
        )
        return CollectUpdateLoop(
            self._roles,
            self._compute,
            session,
            self._lease.stop,
            overlap=self._config.layout == "separate",
            policy_version=self._counters.policy_version,
            precision=self._config.precision,
            device=self._device,
            clock=self._clock,
        )

    # --- the loop ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Trains to the end of the budget, or until the lease says stop; then scores and publishes what there is.

        Raises:
            DataLoss: Something is not finite; the last good checkpoint stands.
            InvalidArgument: The hyperparameters do not fit the rollouts.
            RoleLost: A role did not come back.
        """
        self._lease.progress.activity = pb.POD_ACTIVITY_TRAINING
        try:
            while not self._over():
                try:
                    learned = await self._loop.step(lambda coming_steps: not self._over(coming_steps))
                except RoleLost as error:
                    await self._reopen(error)
                    continue
                if learned:
                    self._account(learned)
                    await self._fuse_if_due(learned)
                    self._loop.publish()
                    self._tell(learned.policy_lag)
                    await self._snapshot_if_due()
                    await self._score_if_due()
        finally:
            await self._loop.drop_pending()
            await self._part()
        await self._finish()
        await self._snapshots.settle()

    def _over(self, coming_steps: int = 0) -> bool:
        # Several learners end with a round: nobody's work since the last one is lost, and what is scored is agreed on.
        return self._lease.stop.done() or (self._used_up(coming_steps) and self._agreed)

    def _used_up(self, coming_steps: int = 0) -> bool:
        budget = self._spec.assignment
        limit = budget.duration.ToTimedelta().total_seconds() if budget.HasField("duration") else math.inf
        steps = self._counters.environment_steps + coming_steps
        return steps >= budget.environment_steps or self._counters.training_seconds >= limit

    async def _reopen(self, error: RoleLost) -> None:
        if self._lease.stop.done():
            return
        _log.warning("a role was lost; opening all again", error=error.message)
        self.role_restarts += 1
        await self._scorer.call_off()
        await self._loop.reopen()

    def _account(self, learned: UpdateResult) -> None:
        # From one update to the next (the first: from the beginning), since opening and collecting take time as well.
        now = self._clock()
        self._counters = self._counters.after(
            steps=learned.environment_steps, seconds=now - self._accounted, cores=self._config.cores
        )
        self._accounted = now
        self._recent_updates.append((now, self._counters.environment_steps))
        while len(self._recent_updates) > 2 and now - self._recent_updates[0][0] > RATE_WINDOW_SECONDS:
            self._recent_updates.popleft()
        self._recent_returns.extend(learned.episode_returns)

    def _tell(self, lag: float = 0.0) -> None:
        progress = self._lease.progress
        progress.environment_steps = self._counters.environment_steps
        progress.policy_version = self._counters.policy_version
        progress.policy_lag = lag
        progress.plane = self._roles.plane
        if len(self._recent_updates) > 1:
            (earlier, steps), (later, more) = self._recent_updates[0], self._recent_updates[-1]
            progress.steps_per_second = (more - steps) / max(later - earlier, 1e-9)
        if self._recent_returns:
            progress.training_return = statistics.fmean(self._recent_returns)

    # --- fusion -----------------------------------------------------------------------------------------------

    async def _invite(self, state: Mapping[str, Tensor]) -> None:
        """Shares this training with the other learners of the pod, and waits for them to take its state."""
        session = self._lease.assignment.assignment_id
        options = fusion_options(self._spec.fusion)
        self._rendezvous = LeaderRendezvous(
            session, self._config.learners, options, self._config.lifeline_of, host=self._config.host
        )
        self._member = FusionMember(
            self._rendezvous,
            self._compute,
            self._loop.algorithm,
            session,
            LEADER,
            self._spec.fusion,
            self._device,
            host=self._config.host,
        )
        if self._counters.rollouts:
            # A child begins an outer step of its own.
            self._member.load(state)
        self._loop.regroup = self._fuse
        self._steps_alone = self._counters.environment_steps
        shared = pb_pod.GetTrainingResponse(
            session=session, agent=self._agent, spec=self._spec, rollouts=self._counters.rollouts
        )
        self._shared_training.share(shared, self._rendezvous)
        await self._fuse()

    async def _fuse_if_due(self, learned: UpdateResult) -> None:
        if self._member:
            self._member.count(learned.environment_steps)
            if self._member.due:
                await self._fuse()

    async def _fuse(self) -> None:
        """Takes part in a round; a stop calls it off."""
        member = self._member
        assert member is not None, "learners were invited"
        fusing = asyncio.create_task(member.fuse())
        waited: list[asyncio.Future[Any]] = [fusing, self._lease.stop]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not fusing.done():
            fusing.cancel()
            await asyncio.wait([fusing])
            return
        fusing.result()
        # Those of the others count from the round they were brought to on.
        self._counters = replace(self._counters, environment_steps=self._steps_alone + member.environment_steps)
        # Whoever is started in the place of a dead learner draws other random numbers than that did.
        self._shared_training.training.rollouts = self._counters.rollouts

    async def _part(self) -> None:
        """Sends the other learners home."""
        self._shared_training.withdraw()
        rendezvous, self._rendezvous = self._rendezvous, None
        if rendezvous:
            await rendezvous.close()
        if self._member:
            await self._member.close()

    @property
    def _agreed(self) -> bool:
        """Whether the policy is one that the learners have agreed on."""
        return self._member is None or self._member.local_progress.updates == 0

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
        if not self._spec.synchronous:
            elapsed = self._clock() - self._began
            affordable = self._schedule.affordable(elapsed, self._scorer.total_seconds, self._scorer.last_seconds)
            if self._scorer.busy or not affordable:
                return
        # Nothing is collected after the budget: the memory can be published with the score.
        await self._score(self._roles.replay if self._used_up() else None)

    async def _score(self, replay: ReplayBuffer | None = None) -> None:
        """Settles the evaluation before this one and starts to score the policy as it is now."""
        await self._settle()
        if not self._lease.stop.done():
            frozen = await self._freeze(replay)
            self._scorer.start(frozen, self._roles.ring.hold())

    async def _freeze(self, replay: ReplayBuffer | None) -> FrozenState:
        beside = self._member.tensors() if self._member else {}
        return await self._compute.run(freeze, self._loop.algorithm, self._counters, replay, beside)

    async def _settle(self) -> None:
        try:
            await self._scorer.settle()
        except RoleLost as error:
            await self._reopen(error)

    async def _finish(self) -> None:
        """The last policy of an assignment is always scored and submitted; a stop publishes it without."""
        self._lease.progress.activity = pb.POD_ACTIVITY_EVALUATING
        await self._snapshot_if_due()
        while not self._lease.stop.done():
            await self._settle()
            await self._snapshot_if_due()
            if self._scorer.scored_version == self._counters.policy_version:
                await self._publisher.submit_all()
                return
            await self._score(self._roles.replay)
        await self.leave()

    @property
    def finished(self) -> bool:
        """Whether the budget was used up and the last policy scored, stop or not."""
        return self.prepared and self._used_up() and self._scorer.scored_version == self._counters.policy_version

    async def leave(self) -> None:
        """Publishes the training files as they are, so that another pod can go on; not if the agent is another's."""
        await self._part()
        await self._scorer.call_off()
        if self.prepared and self._counters.rollouts and self._lease.ours:
            await self._publish_unscored()
        await self._snapshots.settle()

    async def _publish_unscored(self) -> None:
        self._lease.progress.activity = pb.POD_ACTIVITY_PUBLISHING
        if self._scorer.scored_version != self._counters.policy_version:
            # Networks first: a pod may be killed before gigabytes of memory are stored.
            await self._publisher.publish(await self._freeze(None), None)
        # A checkpoint that was scored on the way has no replay memory.
        replay = self._roles.replay
        if replay:
            await self._publisher.publish(await self._freeze(replay), None)

    async def abandon(self) -> None:
        """Lets go of the evaluation in flight after an error that forbids to publish."""
        await self._part()
        await self._scorer.call_off()
        await self._snapshots.settle()


@contextlib.contextmanager
def _naming_algorithm(algorithm: str) -> Iterator[None]:
    """Says whose policy cannot see or act there: a worker knows networks only."""
    try:
        yield
    except InvalidArgument as error:
        if error.reason != UNSUITABLE_SPACE:
            raise
        raise InvalidArgument(f"algorithm {algorithm!r}: {error.message}", reason=error.reason) from error
