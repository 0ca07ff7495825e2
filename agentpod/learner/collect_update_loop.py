"""Collects and learns, one rollout after the other: what the head does for its assignment, and every other learner of
the pod for the head.

With `overlap` (layout `separate`) the workers collect rollout k + 1 with policy version k while the learner updates to
version k + 1 with rollout k: the policy lag is exactly 1, and since the two take turns by message the curve depends on
the seed and not on who was faster. Without (layout `fused`: one compute thread) the lag is 0.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import prometheus_client
import structlog

from agentpod import algorithms
from agentpod.algorithms.base import Algorithm
from agentpod.algorithms.matmul_precision import matmul_precision
from agentpod.compute_thread import ComputeThread
from agentpod.session.role_client import CollectedRollout, SessionSpec
from agentpod.session.session import Roles
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.tensor_transport.group import MemberLost
from simulators import Space

_log = structlog.get_logger(__name__)
STEPS = prometheus_client.Counter("podrace_learner_environment_steps", "Environment steps trained on")
UPDATES = prometheus_client.Counter("podrace_learner_updates", "Updates of the policy")
UPDATE_SECONDS = prometheus_client.Histogram("podrace_learner_update_seconds", "Seconds of one update")
LAG = prometheus_client.Gauge("podrace_learner_policy_lag", "Versions between the acting and the updated policy")


@dataclass(frozen=True)
class UpdateResult:
    """One rollout and one update."""

    environment_steps: int
    policy_lag: int
    episode_returns: list[float]


class CollectUpdateLoop:
    """One learner at work.

        loop = CollectUpdateLoop(roles, compute, session, stop, overlap=True)
        spaces = await loop.open()
        await loop.make_algorithm(agent, hyperparameters, seed, spaces)
        while budget_left:
            learned = await loop.step(lambda coming_steps: steps + coming_steps < budget)
            loop.publish()
        await loop.drop_pending()

    Attributes:
        algorithm: What it trains.
        policy_version: Updates in the agent's life.
        rollouts: Collected in the agent's life.
        regroup: Called when an update could not be made because a learner that shared its gradients was lost; the
            update is made again afterwards.
    """

    algorithm: Algorithm
    regroup: Callable[[], Awaitable[None]] | None = None

    def __init__(
        self,
        roles: Roles,
        compute: ComputeThread,
        session: SessionSpec,
        stop: "asyncio.Future[str]",
        *,
        overlap: bool,
        policy_version: int = 0,
        precision: str = "float32",
        device: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Knows what to do; does nothing yet.

        Args:
            roles: Workers (and evaluator) of this learner.
            compute: Thread that updates are made on.
            session: What the roles are opened for; `opened` counts from 0 here.
            stop: Once it is done, whatever is waited for is called off.
            overlap: Whether to collect while updating.
            policy_version: To go on from.
            precision: Of products of matrices during updates: key of podrace.specification.catalog.PRECISIONS.
            device: Where the algorithm trains.
            clock: Seconds.
        """
        self._roles, self._compute, self._session, self._stop = roles, compute, session, stop
        self._overlap, self._precision, self._device, self._clock = overlap, precision, device, clock
        self.policy_version, self.rollouts = policy_version, session.rollouts
        self._pending: asyncio.Task[CollectedRollout] | None = None

    async def open(self) -> tuple[Space, Space] | None:
        """Opens the roles under a new name; None when a stop came first. Raises as Roles.open does."""
        self._session = replace(self._session, opened=self._session.opened + 1, rollouts=self.rollouts)
        opening = asyncio.create_task(self._roles.open(self._session))
        await self._wait_or_stop(opening)
        return opening.result() if opening.done() and not opening.cancelled() else None

    async def make_algorithm(
        self, agent: Agent, hyperparameters: Mapping[str, object], seed: int, spaces: tuple[Space, Space]
    ) -> None:
        """Allocates what the workers write into, and draws new networks from the seed.

        Raises:
            InvalidArgument: The algorithm cannot learn here.
            ResourceExhausted: There is no room for its memory.
        """
        self._roles.remember(*spaces)
        self.algorithm = await self._compute.run(
            algorithms.make, agent.algorithm, *spaces, hyperparameters, seed=seed, device=self._device
        )

    async def reopen(self) -> None:
        """Opens everything again after a role was lost, and goes on with new episodes."""
        await self.drop_pending()
        if await self.open():
            self.algorithm.begin_episodes()
            self.publish()

    async def step(self, another: Callable[[int], bool]) -> UpdateResult | None:
        """Receives the rollout granted before or now and updates with it; `publish` is the caller's.

        Args:
            another: Whether to collect one more meanwhile, given the environment steps of the one received.

        Returns:
            None when a stop came first.

        Raises:
            RoleLost: A worker was lost: `reopen`.
            DataLoss: Something is not finite.
            InvalidArgument: The hyperparameters do not fit the rollouts.
        """
        pending, self._pending = self._pending or self._grant(), None
        await self._wait_or_stop(pending)
        if pending.cancelled():
            return None
        collected = pending.result()
        received = self._roles.experience.receive(collected.grant)
        if self._overlap and another(collected.environment_steps):
            self._pending = self._grant(ahead=1)
        lag, started = self.policy_version - collected.policy_version, self._clock()
        if not await self._update(received):
            return None
        self._roles.experience.release(collected.grant)
        self.policy_version += 1
        self.rollouts += 1
        STEPS.inc(collected.environment_steps)
        UPDATES.inc()
        UPDATE_SECONDS.observe(self._clock() - started)
        LAG.set(lag)
        return UpdateResult(collected.environment_steps, lag, collected.episode_returns)

    def publish(self) -> None:
        """Lets the workers act by the policy as it is now."""
        self._roles.ring.publish(self.algorithm.policy.flat, self.policy_version)

    async def drop_pending(self) -> None:
        """Calls a granted rollout off and forgets it: the slot is the worker's until it answers, not sooner."""
        pending, self._pending = self._pending, None
        if pending:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)

    def _grant(self, ahead: int = 0) -> "asyncio.Task[CollectedRollout]":
        # Granted here and now: an update that samples the memory must not begin before these rows are out of it.
        grant = self._roles.experience.grant()
        return asyncio.create_task(self._roles.collect(grant, self.rollouts + ahead))

    async def _update(self, experience: Any) -> bool:
        """Whether the update was made: not if a stop came while the learners had to meet again."""
        if self._device != "cpu" and isinstance(experience, Mapping):
            experience = {name: tensor.to(self._device, non_blocking=True) for name, tensor in experience.items()}
        while True:
            try:
                metrics = await self._compute.run(self._multiply_and_update, experience)
            except MemberLost as error:
                if self.regroup is None:
                    raise
                _log.warning("the learners meet again", error=error.message)
                await self.regroup()
                if self._stop.done():
                    return False
            else:
                _log.debug("updated", policy_version=self.policy_version + 1, **metrics)
                return True

    def _multiply_and_update(self, experience: Any) -> dict[str, float]:
        with matmul_precision(self._precision, self.algorithm.network.hidden_sizes, self._device):
            return self.algorithm.update(experience)

    async def _wait_or_stop(self, task: "asyncio.Task[Any]") -> None:
        """Waits for the end of a task; a stop cancels it."""
        waited: list[asyncio.Future[Any]] = [task, self._stop]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
