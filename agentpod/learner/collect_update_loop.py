"""Collects rollouts and updates the policy with them, in the leader and in every follower of a pod.

With `overlap` (layout `separate`) the workers collect rollout k + 1 with policy version k while the learner updates to
version k + 1 with rollout k. The policy lag is exactly 1. The two sides take turns by message, so the learning curve
depends on the seed and not on which side is faster. Without overlap (layout `fused`, one compute thread) the lag is 0.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import prometheus_client
import structlog
import torch

from agentpod.algorithms import reports_user_code
from agentpod.algorithms.base import Algorithm, capture_updates
from agentpod.algorithms.matmul_precision import matmul_precision
from agentpod.compute_thread import ComputeThread
from agentpod.experience.staging import upload
from agentpod.memory_errors import needs_memory_for
from agentpod.session.role_client import CollectedRollout, SessionSpec
from agentpod.session.session import Roles
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_UPDATING
from podrace.tasks import finish_unless_stopped
from podrace.tensor_transport.group import MemberLost
from simulators import Space

_log = structlog.get_logger(__name__)
SHARED = "experience is shared, and batches of two memories are not sampled in graphs"
STEPS = prometheus_client.Counter("podrace_learner_environment_steps", "Environment steps trained on")
UPDATES = prometheus_client.Counter("podrace_learner_updates", "Updates of the policy")
UPDATE_SECONDS = prometheus_client.Histogram("podrace_learner_update_seconds", "Seconds of one update")
LAG = prometheus_client.Gauge("podrace_learner_policy_lag", "Versions between the acting and the updated policy")


@dataclass(frozen=True)
class UpdateResult:
    """What one rollout and the update with it have added."""

    environment_steps: int
    """Steps of the rollout, over all environments."""
    policy_lag: int
    """Policy versions between the one that acted and the one that was updated."""
    episode_returns: list[float]
    """Undiscounted returns of the episodes that ended in the rollout."""


async def open_roles(roles: Roles, session: SessionSpec, stop: "asyncio.Future[str]") -> tuple[Space, Space] | None:
    """Opens the roles for a session.

    Returns:
        Observation space and action space of one environment; None if a stop was requested first.

    Raises:
        InvalidArgument, Unimplemented, RoleLost: As `Roles.open`.
    """
    opening = asyncio.create_task(roles.open(session))
    return opening.result() if await finish_unless_stopped(opening, stop) else None


class CollectUpdateLoop:
    """The training loop of one learner.

        loop = CollectUpdateLoop(roles, compute, algorithm, session, stop, overlap=True)
        await loop.publish()
        while budget_left:
            result = await loop.step(lambda coming_steps: steps + coming_steps < budget)
            await loop.publish()
        await loop.drop_pending()

    Attributes:
        algorithm: The algorithm that is trained.
        policy_version: Number of updates of the agent, those of earlier leases included.
        rollouts: Number of rollouts of the agent, those of earlier leases included.
    """

    def __init__(
        self,
        roles: Roles,
        compute: ComputeThread,
        algorithm: Algorithm,
        session: SessionSpec,
        stop: "asyncio.Future[str]",
        *,
        overlap: bool,
        policy_version: int = 0,
        regroup: Callable[[], Awaitable[None]] | None = None,
        precision: str = "float32",
        captured: bool = True,
        mix: Callable[[Any], Any] | None = None,
        device: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts with no rollout granted.

        Args:
            roles: Workers (and evaluator) of this learner, open for `session`.
            compute: Thread that updates run on.
            algorithm: The algorithm to train.
            session: What the roles are open for.
            stop: Once it is done, every wait is cancelled.
            overlap: Whether to collect during updates.
            policy_version: Version that the training continues from.
            regroup: Called when an update failed because a learner that shares its gradients was lost. The update is
                repeated afterwards.
            precision: Of products and convolutions in updates, a key of podrace.specification.catalog.PRECISIONS.
            captured: Whether gradient steps are replayed from CUDA graphs, if the device and the algorithm allow it.
            mix: Returns what the algorithm learns from, given the agent's own experience. Called before each update, in
                the compute thread. None: the agent's own experience. Excludes `captured`.
            device: Device that the algorithm trains on.
            clock: Monotonic clock in seconds.
        """
        self._roles, self._compute, self._session, self._stop = roles, compute, session, stop
        self._overlap, self._precision, self._device, self._clock = overlap, precision, device, clock
        self._regroup, self._mix = regroup, mix
        self.algorithm, self.policy_version, self.rollouts = algorithm, policy_version, session.rollouts
        self._pending: asyncio.Task[CollectedRollout] | None = None
        reason = SHARED if mix else capture_updates(algorithm, wanted=captured, device=device)
        if device != "cpu":
            _log.info("gradient steps", captured=not reason, **({"reason": reason} if reason else {}))
        # The first updates that train may compile.
        self._trained = False
        compute.activity.open()

    async def reopen(self) -> None:
        """Opens all roles again after one was lost, and continues with new episodes."""
        await self.drop_pending()
        self._session = replace(self._session, opened=self._session.opened + 1, rollouts=self.rollouts)
        if await open_roles(self._roles, self._session, self._stop):
            with reports_user_code(self.algorithm, "begin_episodes"):
                self.algorithm.begin_episodes()
            await self.publish()

    async def step(self, another: Callable[[int], bool]) -> UpdateResult | None:
        """Receives a rollout and updates the policy with it; the caller publishes the new version.

        The rollout is the one granted by the previous step, if there is one, or else a new one.

        Args:
            another: Whether to collect one more rollout during the update, given the environment steps of the rollout
                received.

        Returns:
            None if a stop was requested first.

        Raises:
            RoleLost: A worker was lost; call `reopen`.
            DataLoss: A number is not finite.
            InvalidArgument: The hyperparameters do not fit the rollouts, or user code raised.
        """
        pending, self._pending = self._pending or self._grant(), None
        if not await finish_unless_stopped(pending, self._stop):
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

    async def publish(self) -> None:
        """Makes the workers act with the current policy."""
        flat, ring = self.algorithm.policy.flat, self._roles.ring
        if flat.is_cuda and not ring.on_gpu:
            # The copy waits for the GPU, and the event loop answers calls meanwhile.
            await self._compute.activity.run(ROLE_PHASE_UPDATING, ring.publish, flat, self.policy_version)
        else:
            ring.publish(flat, self.policy_version)

    async def drop_pending(self) -> None:
        """Cancels the rollout that is under way, if any, and waits for the end of its calls.

        It does not wait for the workers, which stop at their next step and may write into the slot until then.
        """
        pending, self._pending = self._pending, None
        if pending:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)

    def _grant(self, ahead: int = 0) -> "asyncio.Task[CollectedRollout]":
        # The slot is granted before the update starts: the update must not sample rows that a worker overwrites.
        grant = self._roles.experience.grant()
        return asyncio.create_task(self._roles.collect(grant, self.rollouts + ahead))

    async def _update(self, experience: Any) -> bool:
        """Updates the policy; returns False if a stop was requested while the learners formed a new group."""
        while True:
            try:
                with reports_user_code(self.algorithm, "update"):
                    metrics = dict(await self._compute.run(self._update_with_precision, experience))
            except MemberLost as error:
                if self._regroup is None:
                    raise
                _log.warning("a learner was lost; the learners form a new group", error=error.message)
                await self._regroup()
                if self._stop.done():
                    return False
            else:
                self._trained = self._trained or bool(metrics)
                if not self._trained:
                    # The time of an update that trains does not follow from that of an update which does not.
                    self._compute.activity.open()
                _log.debug("updated", policy_version=self.policy_version + 1, **metrics)
                return True

    @needs_memory_for("the hyperparameter minibatch_size (batch_size), hidden_sizes or horizon, or environment.count")
    def _update_with_precision(self, experience: Any) -> dict[str, float]:
        if isinstance(experience, Mapping) and _is_elsewhere(experience["reward"].device, self._device):
            experience = upload(experience, self._device)
        precision = matmul_precision(self._precision, self.algorithm.network.hidden_sizes, self._device)
        with self._compute.activity.doing(ROLE_PHASE_UPDATING), precision:
            return self.algorithm.update(self._mix(experience) if self._mix else experience)


def _is_elsewhere(found: torch.device, wanted: str) -> bool:
    """Whether tensors on one device are to be copied to the wanted one, which may leave the number of the GPU open."""
    device = torch.device(wanted)
    return found.type != device.type or device.index not in (None, found.index)
