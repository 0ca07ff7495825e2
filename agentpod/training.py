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
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import prometheus_client
import structlog
from google.protobuf import json_format

from agentpod import algorithms
from agentpod.algorithms.base import Algorithm
from agentpod.assignment import Lease
from agentpod.compute import Compute
from agentpod.config import PodConfig
from agentpod.messages import with_options
from agentpod.outline import Outline, outline
from agentpod.publication import Publisher
from agentpod.replay import Replay
from agentpod.roles import Collected, RoleLost, Roles, Session
from agentpod.scoring import Schedule, Scorer
from agentpod.training_files import Counters, freeze, restore
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


class Training:
    """One agent in training.

    training = Training(config, lease, agent, roles, compute, publisher)
    if await training.prepare():
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
        self._session = self._new_session(outline(self._agent.algorithm, hyperparameters))
        spaces = await self._open_roles()
        if spaces is None:
            return False
        self.opened = True
        self._roles.remember(*spaces)
        self._algorithm = await self._compute.run(
            algorithms.make,
            self._agent.algorithm,
            *spaces,
            hyperparameters,
            seed=self._agent.seed,
            device=self._device,
        )
        if start.parts:
            await self._compute.run(restore, self._algorithm, start.parts)
        if self._roles.replay:
            await self._publisher.restore_replay(start, self._roles.replay)
        _log.info("training", begins_with=start.note, environment_steps=self._counters.environment_steps)
        self._schedule = Schedule.starting_at(self._counters.environment_steps, self._spec.evaluation)
        self._publish_policy()
        self._tell()
        self.prepared = True
        return True

    def _new_session(self, shape: Outline) -> Session:
        spec = self._spec
        lanes = min(spec.evaluation.episodes, MAXIMUM_EVALUATION_LANES)
        return Session(
            assignment=f"{self._agent.number}.{self._lease.assignment.lease_epoch}",
            environment=spec.environment,
            evaluation_environment=with_options(spec.environment, spec.evaluation.options, lanes),
            network=shape.network,
            memory=shape.memory,
            seed=self._agent.seed,
            rollouts=0,
            opened=0,
        )

    async def _open_roles(self) -> tuple[Space, Space] | None:
        """Opens the roles under a new name; None when a stop came first."""
        self._session = replace(self._session, opened=self._session.opened + 1, rollouts=self._counters.rollouts)
        opening = asyncio.create_task(self._roles.open(self._session))
        await self._wait_or_stop(opening)
        return opening.result() if opening.done() and not opening.cancelled() else None

    async def _wait_or_stop(self, task: "asyncio.Task[Any]") -> None:
        """Waits for the end of a task; a stop of the lease cancels it."""
        waited: list[asyncio.Future[Any]] = [task, self._lease.stop]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])

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
        return self._lease.stop.done() or self._used_up(coming_steps)

    def _used_up(self, coming_steps: int = 0) -> bool:
        budget = self._spec.assignment
        limit = budget.duration.ToTimedelta().total_seconds() if budget.HasField("duration") else math.inf
        steps = self._counters.environment_steps + coming_steps
        return steps >= budget.environment_steps or self._counters.training_seconds >= limit

    def _grant(self, ahead: int = 0) -> "asyncio.Task[Collected]":
        return asyncio.create_task(self._roles.collect(self._counters.rollouts + ahead))

    async def _receive(self) -> Collected | None:
        """The rollout granted before or now; None when a stop came first, or a worker was lost and is open again."""
        pending, self._pending = self._pending or self._grant(), None
        await self._wait_or_stop(pending)
        if pending.cancelled():
            return None
        try:
            return pending.result()
        except RoleLost as error:
            await self._reopen(error)
            return None

    async def _reopen(self, error: RoleLost) -> None:
        if self._lease.stop.done():
            return
        _log.warning("a role was lost; opening all again", error=error.message)
        self.role_restarts += 1
        await self._drop_pending()
        await self._scorer.call_off()
        if await self._open_roles():
            self._algorithm.begin_episodes()
            self._publish_policy()

    async def _drop_pending(self) -> None:
        """Calls a granted rollout off and forgets it: the slot is the worker's until it answers, not sooner."""
        pending, self._pending = self._pending, None
        if pending:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)

    async def _learn(self, collected: Collected) -> None:
        lag = self._counters.policy_version - collected.policy_version
        started = self._clock()
        await self._compute.run(self._update, self._roles.experience.receive(collected.grant))
        now = self._clock()
        self._roles.experience.release(collected.grant)
        # From one update to the next (the first: from the beginning), since opening and collecting take time as well.
        self._counters = self._counters.after(
            steps=collected.environment_steps, seconds=now - self._accounted, cores=self._config.cores
        )
        self._accounted = now
        self._publish_policy()
        self._recent_updates.append((now, self._counters.environment_steps))
        while len(self._recent_updates) > 2 and now - self._recent_updates[0][0] > RATE_WINDOW_SECONDS:
            self._recent_updates.popleft()
        self._recent_returns.extend(collected.episode_returns)
        STEPS.inc(collected.environment_steps)
        UPDATES.inc()
        UPDATE_SECONDS.observe(now - started)
        LAG.set(lag)
        self._tell(lag)

    def _update(self, experience: Any) -> None:
        if self._device != "cpu" and isinstance(experience, Mapping):
            experience = {name: tensor.to(self._device, non_blocking=True) for name, tensor in experience.items()}
        metrics = self._algorithm.update(experience)
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
        # Nothing is collected after the budget: the memory can be published with the score.
        await self._score(self._roles.replay if self._used_up() else None)

    async def _score(self, replay: Replay | None = None) -> None:
        """Settles the evaluation before this one and starts to score the policy as it is now."""
        await self._settle()
        if not self._lease.stop.done():
            frozen = await self._compute.run(freeze, self._algorithm, self._counters, replay)
            self._scorer.start(frozen, self._roles.ring.hold())

    async def _settle(self) -> None:
        try:
            await self._scorer.settle()
        except RoleLost as error:
            await self._reopen(error)

    async def _finish(self) -> None:
        """The last policy of an assignment is always scored and submitted; a stop publishes it without."""
        self._lease.progress.activity = pb.POD_ACTIVITY_EVALUATING
        while not self._lease.stop.done():
            await self._settle()
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
        await self._scorer.call_off()
        unpublished = self._counters.rollouts and self._scorer.scored_version != self._counters.policy_version
        if self.prepared and unpublished and self._lease.ours:
            self._lease.progress.activity = pb.POD_ACTIVITY_PUBLISHING
            frozen = await self._compute.run(freeze, self._algorithm, self._counters, self._roles.replay)
            await self._publisher.publish(frozen, None)

    async def abandon(self) -> None:
        """Lets go of the evaluation in flight after an error that forbids to publish."""
        await self._scorer.call_off()
