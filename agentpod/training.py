"""Trains one agent under one lease: rollouts in, updates, policies out to the workers and, frozen, to the evaluator.

With `overlap` (layout `separate`) the worker collects rollout k + 1 with policy version k while the learner updates to
version k + 1 with rollout k: the policy lag is exactly 1, and since the two take turns by message the curve depends on
the seed and not on who was faster. Without (layout `fused`: one compute thread) the lag is 0.
"""

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import prometheus_client
import structlog
from google.protobuf import json_format

from agentpod import algorithms
from agentpod.algorithms.base import Algorithm
from agentpod.assignment import Lease
from agentpod.compute import Compute
from agentpod.config import PodConfig
from agentpod.messages import with_options
from agentpod.outline import outline
from agentpod.publication import Publisher
from agentpod.roles import Collected, Roles, Session, is_lost
from agentpod.rollout import Rollout
from agentpod.scoring import Schedule, Scorer
from agentpod.training_files import Counters, freeze, restore
from podrace.errors import PodraceError, Unavailable
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.tournament.v1.tournament_pb2 import TournamentSpec
from simulators import Space

_log = structlog.get_logger(__name__)
RECENT_EPISODES = 100
RATE_WINDOW_SECONDS = 5.0
MAXIMUM_EVALUATION_LANES = 64
STEPS = prometheus_client.Counter("podrace_learner_environment_steps", "Environment steps trained on")
UPDATES = prometheus_client.Counter("podrace_learner_updates", "Updates of the policy")
UPDATE_SECONDS = prometheus_client.Histogram("podrace_learner_update_seconds", "Seconds of one update")
LAG = prometheus_client.Gauge("podrace_learner_policy_lag", "Versions between the acting and the updated policy")


class RoleLost(Unavailable):
    """A role of this pod is gone and did not come back: the pod publishes what it has and ends."""


class Training:
    """One agent in training.

    training = Training(config, lease, agent, roles, compute, publisher)
    await training.prepare()
    await training.run()
    """

    def __init__(
        self,
        config: PodConfig,
        lease: Lease,
        agent: Agent,
        roles: Roles,
        compute: Compute,
        publisher: Publisher,
        *,
        device: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Knows what to do; does nothing yet."""
        self._config, self._lease, self._agent = config, lease, agent
        self._spec: TournamentSpec = lease.assignment.spec
        self._roles, self._compute, self._publisher = roles, compute, publisher
        self._device, self._clock = device, clock
        self._overlap = config.layout == "separate"
        self._scorer = Scorer(roles, publisher, lease, self._spec.evaluation, clock)
        self._counters = Counters()
        self._algorithm: Algorithm
        self._schedule: Schedule
        self._session: Session
        self._pending: asyncio.Task[Collected] | None = None
        self._began = clock()
        self._opened = 0
        self._prepared = False
        self._recent_returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._recent_updates: deque[tuple[float, int]] = deque()
        self.role_restarts = 0

    # --- before -----------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Claims the agent, opens the roles, and restores the agent's training files or its parent's.

        Raises:
            InvalidArgument: The specification cannot work here.
            FailedPrecondition: The agent belongs to another pod by now.
            RoleLost: A role is not there.
        """
        self._lease.progress.activity = pb.POD_ACTIVITY_OPENING
        start = await self._publisher.start()
        self._counters = start.counters
        spec, agent = self._spec, self._agent
        self._schedule = Schedule.starting_at(
            start.counters.environment_steps, spec.evaluation, synchronous=spec.synchronous
        )
        hyperparameters = json_format.MessageToDict(agent.hyperparameters)
        shape = outline(agent.algorithm, hyperparameters)
        self._session = Session(
            name="",
            environment=spec.environment,
            evaluation_environment=with_options(
                spec.environment, spec.evaluation.options, min(spec.evaluation.episodes, MAXIMUM_EVALUATION_LANES)
            ),
            network=shape.network,
            horizon=shape.horizon,
            seed=agent.seed,
            rollouts=start.counters.rollouts,
        )
        spaces = await self._open_roles()
        self._algorithm = await self._compute.run(
            algorithms.make, agent.algorithm, *spaces, hyperparameters, seed=agent.seed, device=self._device
        )
        if start.parts:
            await self._compute.run(restore, self._algorithm, start.parts)
        _log.info("training", begins_with=start.note, environment_steps=self._counters.environment_steps)
        self._publish_policy()
        self._tell()
        self._prepared = True

    async def _open_roles(self) -> tuple[Space, Space]:
        self._opened += 1
        name = f"{self._agent.number}.{self._lease.assignment.lease_epoch}.{self._opened}"
        self._session = replace(self._session, name=name, rollouts=self._counters.rollouts)
        try:
            return await self._roles.open(self._session)
        except Unavailable as error:
            raise RoleLost(f"a role is gone and did not come back: {error.message}") from None

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
                collected = await self._receive()
                if collected is None:
                    continue
                if self._overlap and not self._over(collected.environment_steps):
                    self._pending = self._grant(ahead=1)
                await self._learn(collected)
                await self._score_if_due()
        finally:
            await self._drop_pending()
        await self._finish()

    def _over(self, coming_steps: int = 0) -> bool:
        budget = self._spec.assignment
        limit = budget.duration.ToTimedelta().total_seconds() if budget.HasField("duration") else math.inf
        return (
            self._lease.stop.done()
            or self._counters.environment_steps + coming_steps >= budget.environment_steps
            or self._clock() - self._began >= limit
        )

    def _grant(self, ahead: int = 0) -> "asyncio.Task[Collected]":
        return asyncio.create_task(self._roles.collect(self._counters.rollouts + ahead))

    async def _receive(self) -> Collected | None:
        """The rollout granted before or now; None when a worker was lost and the roles are open again."""
        pending, self._pending = self._pending or self._grant(), None
        try:
            return await pending
        except PodraceError as error:
            if not is_lost(error):
                raise
            await self._reopen(error)
            return None

    async def _reopen(self, error: PodraceError) -> None:
        _log.warning("a role was lost; opening all again", error=error.message)
        await self._drop_pending()
        self.role_restarts += 1
        await self._scorer.call_off()
        await self._open_roles()
        self._publish_policy()

    async def _drop_pending(self) -> None:
        """Waits for a granted rollout and forgets it: the slot is the worker's until it replies, not sooner."""
        pending, self._pending = self._pending, None
        if pending:
            await asyncio.gather(pending, return_exceptions=True)

    async def _learn(self, collected: Collected) -> None:
        lag = self._counters.policy_version - collected.policy_version
        started = self._clock()
        await self._compute.run(self._update, collected.slot)
        now = self._clock()
        self._roles.slots.give_back(collected.slot)
        # From one update to the next: collecting takes its time as well.
        seconds = now - (self._recent_updates[-1][0] if self._recent_updates else started)
        self._counters = self._counters.after(
            steps=collected.environment_steps, seconds=seconds, cores=self._config.cores
        )
        self._publish_policy()
        self._recent_updates.append((now, self._counters.environment_steps))
        while now - self._recent_updates[0][0] > RATE_WINDOW_SECONDS:
            self._recent_updates.popleft()
        self._recent_returns.extend(collected.episode_returns)
        STEPS.inc(collected.environment_steps)
        UPDATES.inc()
        UPDATE_SECONDS.observe(now - started)
        LAG.set(lag)
        self._tell(lag)

    def _update(self, rollout: Rollout) -> None:
        if self._device != "cpu":
            rollout = {name: tensor.to(self._device, non_blocking=True) for name, tensor in rollout.items()}
        metrics = self._algorithm.update(rollout)
        _log.debug("updated", policy_version=self._counters.policy_version + 1, **metrics)

    def _publish_policy(self) -> None:
        self._roles.ring.publish(self._algorithm.policy.flat, self._counters.policy_version)

    def _tell(self, lag: float = 0.0) -> None:
        progress = self._lease.progress
        progress.environment_steps = self._counters.environment_steps
        progress.policy_version = self._counters.policy_version
        progress.policy_lag = lag
        if len(self._recent_updates) > 1:
            (earlier, steps), (later, more) = self._recent_updates[0], self._recent_updates[-1]
            progress.steps_per_second = (more - steps) / max(later - earlier, 1e-9)
        if self._recent_returns:
            progress.training_return = statistics.fmean(self._recent_returns)

    # --- scoring ----------------------------------------------------------------------------------------------

    async def _score_if_due(self) -> None:
        if not self._schedule.take(self._counters.environment_steps):
            return
        if not self._spec.synchronous:
            elapsed = self._clock() - self._began
            affordable = self._schedule.affordable(elapsed, self._scorer.total_seconds, self._scorer.last_seconds)
            if self._scorer.busy or not affordable:
                return
        await self._score()

    async def _score(self) -> None:
        """Settles the evaluation before this one and starts to score the policy as it is now."""
        await self._settle()
        if not self._lease.stop.done():
            frozen = await self._compute.run(freeze, self._algorithm, self._counters)
            self._scorer.start(frozen, self._roles.ring.hold())

    async def _settle(self) -> None:
        try:
            await self._scorer.settle(self._lease.stop)
        except PodraceError as error:
            if not is_lost(error):
                raise
            await self._reopen(error)

    async def _finish(self) -> None:
        """The last policy of an assignment is always scored; a stop publishes it without."""
        self._lease.progress.activity = pb.POD_ACTIVITY_EVALUATING
        while not self._lease.stop.done():
            await self._settle()
            if self._scorer.scored_version == self._counters.policy_version:
                return
            await self._score()
        await self.leave()

    async def leave(self) -> None:
        """Publishes the training files as they are, so that another pod can go on; not if the agent is another's."""
        await self._scorer.call_off()
        if (
            self._prepared
            and self._counters.rollouts
            and (not self._lease.stop.done() or self._lease.stop.result().publish)
        ):
            self._lease.progress.activity = pb.POD_ACTIVITY_PUBLISHING
            frozen = await self._compute.run(freeze, self._algorithm, self._counters)
            await self._publisher.publish(frozen, None)

    async def abandon(self) -> None:
        """Lets go of the evaluation in flight after an error that forbids to publish."""
        await self._scorer.call_off()
