"""The other roles of a pod as its head calls them: opened together for one session, reopened when one was lost.

A session is named by the lease epoch and a count; a role that was restarted does not know it and says so (NOT_OPEN).
All memory belongs to the session: after a loss nobody can tell who still writes into the old one, so it is dropped
whole.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from agentpod.buffer import PolicyRing, PolicySlot, RolloutSlots
from agentpod.config import PodConfig
from agentpod.messages import policy_message, space_of
from agentpod.networks import element_count
from agentpod.policy import NetworkSpec, policy_shapes
from agentpod.rollout import rollout_fields
from agentpod.worker import NOT_OPEN
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import DataLoss, DeadlineExceeded, FailedPrecondition, InvalidArgument, Unavailable
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tensors.plane import Plane, Region
from podrace.tensors.probe import PROBE_SPEC, check_probe, write_probe
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators import Space

OPEN_DEADLINE_SECONDS = 120.0
COLLECT_DEADLINE_SECONDS = 600.0
EVALUATE_DEADLINE_SECONDS = 1800.0


class RoleLost(Unavailable):
    """A role is gone, or came back without memory of its session."""


async def _call(method: Any, request: Any, *, deadline_seconds: float) -> Any:
    """Calls a role; raises RoleLost apart from what the role answers."""
    try:
        return await rpc.call(method, request, deadline_seconds=deadline_seconds)
    except Unavailable as error:
        raise RoleLost(error.message) from None
    except FailedPrecondition as error:
        if error.reason == NOT_OPEN:
            raise RoleLost(error.message) from None
        raise


@dataclass(frozen=True)
class Collected:
    """A rollout of all workers, side by side in one slot."""

    slot: Region
    policy_version: int
    environment_steps: int
    episode_returns: list[float]


@dataclass(frozen=True)
class Session:
    """What the roles are opened for."""

    name: str
    environment: EnvironmentSpec
    evaluation_environment: EnvironmentSpec
    network: NetworkSpec
    horizon: int
    seed: int
    rollouts: int


class Roles:
    """Stubs for the workers and the evaluator of one pod, and the memory they share with the head.

    roles = Roles(config, plane)
    observation_space, action_space = await roles.open(session)
    roles.ring.publish(policy.flat, version)
    collected = await roles.collect(rollout_number)
    roles.slots.give_back(collected.slot)
    """

    SLOTS = 2
    """One being filled while the other is trained on."""

    def __init__(self, config: PodConfig, plane: Plane) -> None:
        """Connects to nothing yet: channels dial when they are first used."""
        self._config = config
        self._plane = plane
        self._addresses = [
            *(config.address(f"worker-{index}") for index in range(config.workers)),
            config.address("evaluator"),
        ]
        # Without retries of the channel: a role that was restarted has to be opened first.
        self._channels = [rpc.connect(address) for address in self._addresses]
        *workers, evaluator = self._channels
        self._workers: list[Any] = [pb_grpc.WorkerServiceStub(channel) for channel in workers]
        self._evaluator: Any = pb_grpc.EvaluatorServiceStub(evaluator)
        self._session: Session | None = None
        self._slots: RolloutSlots | None = None
        self._ring: PolicyRing | None = None

    @property
    def slots(self) -> RolloutSlots:
        """Rollout slots of the open session."""
        if self._slots is None:
            raise FailedPrecondition("no session is open")
        return self._slots

    @property
    def ring(self) -> PolicyRing:
        """Policy slots of the open session."""
        if self._ring is None:
            raise FailedPrecondition("no session is open")
        return self._ring

    async def open(self, session: Session) -> tuple[Space, Space]:
        """Opens every role for a session and allocates its memory; what was open before is dropped.

        Returns:
            The spaces of one environment's observation and action.

        Raises:
            InvalidArgument: The environment cannot be made, or its spaces cannot be learned on.
            FailedPrecondition: A role does not see the memory of this one.
            RoleLost: A role is gone, or does not open within the deadline of the contract.
        """
        self._drop_memory()
        await self._wait_for_roles()
        probe = self._plane.create(f"{session.name}_probe", [PROBE_SPEC])
        try:
            sent = write_probe(probe, session.seed % 2**32)
            opened = await _all_or_first_error(self._open_calls(session, probe.refs()[0]))
        except DeadlineExceeded:
            raise RoleLost(f"a role did not open within {OPEN_DEADLINE_SECONDS:g} s") from None
        finally:
            probe.close()
        for response in opened:
            check_probe(self._plane.scheme, sent, response.probe_sum)
        self._check_same_spaces(opened, session)
        spaces = space_of(opened[0].observation_space), space_of(opened[0].action_space)
        self._allocate(session, *spaces)
        self._session = session
        return spaces

    async def _wait_for_roles(self) -> None:
        """Tells a role that is gone from one whose simulator takes long to make."""
        wait_seconds = self._config.role_wait_seconds
        try:
            await _all_or_first_error(
                [rpc.wait_until_serving(address, deadline_seconds=wait_seconds) for address in self._addresses]
            )
        except Unavailable as error:
            raise RoleLost(f"a role did not come back: {error.message}") from None

    def _open_calls(self, session: Session, probe: TensorRef) -> list[Any]:
        """One call a role; the evaluator's is the last."""
        policy = policy_message(session.network)
        calls = [
            _call(
                stub.OpenWorker,
                pb.OpenWorkerRequest(
                    session=session.name,
                    environment=session.environment,
                    horizon=session.horizon,
                    policy=policy,
                    seed=session.seed,
                    worker_index=index,
                    rollouts=session.rollouts,
                    probe=probe,
                ),
                deadline_seconds=OPEN_DEADLINE_SECONDS,
            )
            for index, stub in enumerate(self._workers)
        ]
        request = pb.OpenEvaluatorRequest(
            session=session.name, environment=session.evaluation_environment, policy=policy, probe=probe
        )
        return [*calls, _call(self._evaluator.OpenEvaluator, request, deadline_seconds=OPEN_DEADLINE_SECONDS)]

    async def collect(self, rollout: int) -> Collected:
        """Grants one slot to all workers and waits until it is full.

        Raises:
            RoleLost: A worker was lost, and the slot with it.
            DataLoss: An environment gave a number that is not finite.
        """
        session = self._require_session()
        slot, held = self.slots.take(), self.ring.hold()
        count = session.environment.count
        try:
            calls = [
                _call(
                    stub.CollectRollout,
                    pb.CollectRolloutRequest(
                        session=session.name,
                        slot=pb.RolloutSlot(tensors=slot.refs(), first_environment=index * count),
                        policy=held.ref(),
                        rollout=rollout,
                    ),
                    deadline_seconds=COLLECT_DEADLINE_SECONDS,
                )
                for index, stub in enumerate(self._workers)
            ]
            filled = await _all_or_first_error(calls)
        finally:
            self._release(held)
        return Collected(
            slot,
            held.version,
            sum(part.environment_steps for part in filled),
            [value for part in filled for value in part.episode_returns],
        )

    async def evaluate(self, held: PolicySlot, *, episodes: int, seed: int, greedy: bool) -> Evaluation:
        """Scores the policy in a held slot and releases it.

        Raises:
            RoleLost: The evaluator was lost.
            DataLoss: A return is not finite, or the evaluation does not end.
        """
        request = pb.EvaluatePolicyRequest(
            session=self._require_session().name, policy=held.ref(), episodes=episodes, seed=seed, greedy=greedy
        )
        try:
            response = await _call(self._evaluator.EvaluatePolicy, request, deadline_seconds=EVALUATE_DEADLINE_SECONDS)
        except DeadlineExceeded:
            raise DataLoss(
                f"an evaluation took longer than {EVALUATE_DEADLINE_SECONDS:g} s: lower evaluation.episodes, or give"
                " the environment a shorter time limit"
            ) from None
        finally:
            self._release(held)
        evaluation: Evaluation = response.evaluation
        return evaluation

    async def close(self) -> None:
        """Gives up the memory and the channels; the roles themselves end with the head's lifeline."""
        self._drop_memory()
        for channel in self._channels:
            await channel.close()

    def _allocate(self, session: Session, observation_space: Space, action_space: Space) -> None:
        lanes = session.environment.count * len(self._workers)
        fields = rollout_fields(observation_space, action_space, session.horizon, lanes)
        parameters = element_count(policy_shapes(observation_space, action_space, session.network))
        self._slots = RolloutSlots(self._plane, session.name, fields, self.SLOTS)
        self._ring = PolicyRing(self._plane, session.name, parameters)

    def _check_same_spaces(self, opened: list[Any], session: Session) -> None:
        first = (opened[0].observation_space, opened[0].action_space)
        if any((other.observation_space, other.action_space) != first for other in opened):
            raise InvalidArgument(
                f"environment {session.environment.id!r}: the options of the evaluation change its spaces,"
                " so that what is trained could not be scored"
            )

    def _require_session(self) -> Session:
        if self._session is None:
            raise FailedPrecondition("no session is open")
        return self._session

    def _release(self, held: PolicySlot) -> None:
        if self._ring:
            self._ring.release(held)

    def _drop_memory(self) -> None:
        self._session = None
        for memory in (self._slots, self._ring):
            if memory:
                memory.close()
        self._slots = self._ring = None


async def _all_or_first_error(calls: list[Any]) -> list[Any]:
    """Waits for all; raises the first error in order only when none is running any more."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
