"""Calls the workers and the evaluator of a pod on behalf of a learner, and detects when one of them was lost.

A session is named by the lease epoch and a count. A role that was restarted does not have the session and answers with
the reason NOT_OPEN.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc.aio

from agentpod.config import PodConfig
from agentpod.experience.memory_spec import MemorySpec
from agentpod.experience.slots import Grant, PolicySlot
from agentpod.models.messages import policy_message
from agentpod.models.policy import NetworkSpec
from agentpod.roles.user_evaluator import UserEvaluatorSettings
from agentpod.session.foreign_rollouts import check_report, check_rollout
from agentpod.session.opening import OPEN_DEADLINE_SECONDS, opened
from agentpod.session.role_faults import RoleLost, RoleRefused, role_error
from agentpod.session.role_polls import POLL_DEADLINE_SECONDS
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.errors import DeadlineExceeded, InvalidArgument, PodraceError, Unavailable
from podrace.tensor.v1.tensor_pb2 import TensorRef
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec
from simulators.messages import space_of

COLLECT_DEADLINE_SECONDS = 600.0
"""Limit of a rollout for a worker that a specification names. It need not report its progress."""
EARLY_SECONDS = 1.0
"""DEADLINE_EXCEEDED that arrives this much before the deadline of the call was sent by the role."""


async def _call(method: Any, request: Any, *, deadline_seconds: float | None, setting: str = "") -> Any:
    """Calls a role; raises the error that `role_error` makes of its answer."""
    try:
        return await rpc.call(method, request, deadline_seconds=deadline_seconds)
    except PodraceError as error:
        raise role_error(error, setting) from None


async def _call_to_simulate(method: Any, request: Any, *, deadline_seconds: float | None, setting: str = "") -> Any:
    """Calls a role whose simulator has deadlines of its own, as `_call`.

    podrace's own roles have no deadline: agentpod.liveness.supervisor watches their progress, and ends the call of a
    role that makes none.

    Raises:
        DeadlineExceeded: The deadline of this call has passed.
        RoleRefused: The role sent DEADLINE_EXCEEDED: its simulator did not answer in time.
    """
    begin = time.monotonic()
    try:
        return await _call(method, request, deadline_seconds=deadline_seconds, setting=setting)
    except DeadlineExceeded as error:
        if deadline_seconds is not None and time.monotonic() - begin >= deadline_seconds - EARLY_SECONDS:
            raise
        raise RoleRefused(f"{error.message} ({error.code})") from None


@dataclass(frozen=True)
class CollectedRollout:
    """A rollout that all workers wrote side by side into one slot."""

    grant: Grant
    policy_version: int
    environment_steps: int
    episode_returns: list[float]


@dataclass(frozen=True)
class SessionSpec:
    """What the roles are opened for."""

    assignment: str
    """Name of the assignment within the pod; shared memory belongs to the assignment."""
    environment: EnvironmentSpec
    evaluation_environment: EnvironmentSpec
    network: NetworkSpec
    memory: MemorySpec
    seed: int
    rollouts: int
    """Rollouts of the agent before this session."""
    members: tuple[NetworkSpec, ...] = ()
    """Networks of the other members when an ensemble is evaluated."""
    evaluator: UserEvaluatorSettings | None = None
    """Evaluator of the tournament that scores instead of the built-in one; None for the built-in one."""
    objective: str = ""
    """Measure that an evaluation episode is worth, for the built-in evaluator; empty: its undiscounted return."""
    opened: int = 1
    """How many times the roles were opened for this assignment, this one included."""

    @property
    def name(self) -> str:
        """Name by which the roles know the session."""
        return f"{self.assignment}.{self.opened}"


class RoleClient:
    """Calls the workers and the evaluator of one learner.

    client = RoleClient(config)
    await client.ready()
    opened = await client.open(session, probe)
    collected = await client.collect(session, grant, held, rollout_number)
    evaluation = await client.evaluate(session, slots, episodes, seed, greedy=True)
    await client.close()

    Attributes:
        workers: Number of workers.
        has_evaluator: Whether there is an evaluator; only the leader has one.
        lanes: Lanes of each worker of the open session: one for each agent of each environment.
    """

    def __init__(self, config: PodConfig, learner: int = 0) -> None:
        """Creates the channels, which connect on first use.

        Args:
            config: Configuration of the pod.
            learner: Number of the learner whose workers are called; the leader is 0.
        """
        self.workers, self.has_evaluator, self.lanes = config.workers, learner == 0, 0
        self._wait_seconds, self._longest_seconds = config.role_wait_seconds, config.progress.ceiling_seconds
        self._first_worker = learner * config.workers
        self._actions = pb.Space()
        # A worker of a third party need not have a health service.
        self._third_party = config.worker_address
        named = f"grpc://{config.worker_address}" if config.worker_address else config.worker_class
        self._worker_setting = f"pod.worker = {named!r}" if named else ""
        self._addresses = [config.address(role) for role in config.workers_of(learner)]
        if self.has_evaluator:
            self._addresses.append(config.address("evaluator"))
        # The channels do not retry: a role that was restarted has to be opened first.
        self._owner = config.user_code_uid or None
        self._channels = [
            rpc.connect(address, owner=self._owner, third_party=address == self._third_party)
            for address in self._addresses
        ]
        workers = self._channels[: config.workers]
        self._workers: list[Any] = [pb_grpc.WorkerServiceStub(channel) for channel in workers]
        self._evaluator: Any = pb_grpc.EvaluatorServiceStub(self._channels[-1]) if self.has_evaluator else None

    async def ready(self) -> None:
        """Waits until every role serves.

        This distinguishes a lost role from one that takes long to make its simulator.

        Raises:
            RoleLost: A role does not serve within `role_wait_seconds`.
            InvalidArgument: A worker of a third party does not; podrace cannot start it again.
        """
        wait_seconds = self._wait_seconds
        if self._third_party:
            try:
                await rpc.wait_until_ready(self._channels[0], wait_seconds)
            except Unavailable:
                raise InvalidArgument(
                    f"{self._worker_setting}: nothing answers there (waited {wait_seconds:g} s); start the worker on"
                    " the machine of the pod"
                ) from None
        try:
            await _all_or_first_error(
                [
                    rpc.wait_until_serving(address, deadline_seconds=wait_seconds, owner=self._owner)
                    for address in self._addresses
                    if address != self._third_party
                ]
            )
            # Our own channels may still be backing off, if they tried to connect while a role was down.
            await _all_or_first_error([rpc.wait_until_ready(each, wait_seconds) for each in self._channels])
        except Unavailable as error:
            raise RoleLost(f"a role did not come back: {error.message}") from None

    async def open(self, session: SessionSpec, probe: TensorRef) -> list[Any]:
        """Opens every role; returns the answers of the workers, followed by that of the evaluator if there is one.

        Raises:
            RoleLost: A role was lost, or did not open within the deadline in the contract: 120 s besides compilation.
        """
        try:
            opened = await _all_or_first_error(self._open_calls(session, probe))
        except DeadlineExceeded as error:
            raise RoleLost(error.message) from None
        self.lanes = session.environment.count * max(1, len(opened[0].observation_space.agents))
        self._actions = opened[0].action_space
        return opened

    def _open_calls(self, session: SessionSpec, probe: TensorRef) -> list[Any]:
        policy = policy_message(session.network)
        calls = [
            self._opened(
                stub.OpenWorker,
                pb.OpenWorkerRequest(
                    session=session.name,
                    environment=session.environment,
                    horizon=session.memory.horizon,
                    policy=policy,
                    seed=session.seed,
                    worker_index=self._first_worker + index,
                    rollouts=session.rollouts,
                    probe=probe,
                ),
                partial(stub.GetWorker, pb.GetWorkerRequest()),
                self._worker_setting,
            )
            for index, stub in enumerate(self._workers)
        ]
        if self._evaluator is None:
            return calls
        request = pb.OpenEvaluatorRequest(
            session=session.name,
            environment=session.evaluation_environment,
            policy=policy,
            probe=probe,
            members=[policy_message(network) for network in session.members],
        )
        ask = partial(self._evaluator.GetEvaluator, pb.GetEvaluatorRequest())
        return [*calls, self._opened(self._evaluator.OpenEvaluator, request, ask)]

    def _opened(self, method: Any, request: Any, ask: Callable[..., Any], setting: str = "") -> Awaitable[Any]:
        """Opens a role; `ask` calls the method that returns its progress, `setting` names one of a third party."""

        async def phase() -> Any:
            try:
                return (await ask(timeout=POLL_DEADLINE_SECONDS)).progress.phase
            except grpc.aio.AioRpcError:
                # Lost, busy, or a role of a third party that reports nothing: then the time counts.
                return None

        longest = max(OPEN_DEADLINE_SECONDS, self._longest_seconds)
        return opened(_call(method, request, deadline_seconds=longest, setting=setting), phase)

    async def collect(
        self,
        session: SessionSpec,
        grant: Grant,
        held: PolicySlot,
        rollout: int,
        opponents: Sequence[pb.Opponent] = (),
    ) -> CollectedRollout:
        """Has all workers fill a granted slot, and waits until it is full.

        Raises:
            RoleLost: A worker was lost, and the content of the slot with it.
            RoleRefused: A worker does not collect the rollout, or does not answer in time.
            DataLoss: An environment returned a number that is not finite.
            InvalidArgument: A worker of a third party wrote something else than a rollout.
        """
        calls = [
            _call_to_simulate(
                stub.CollectRollout,
                pb.CollectRolloutRequest(
                    session=session.name,
                    slot=pb.RolloutSlot(
                        tensors=grant.region.refs(), first_environment=index * self.lanes, first_row=grant.first_row
                    ),
                    policy=held.ref(),
                    rollout=rollout,
                    opponents=opponents,
                ),
                deadline_seconds=COLLECT_DEADLINE_SECONDS if self._worker_setting else None,
                setting=self._worker_setting,
            )
            for index, stub in enumerate(self._workers)
        ]
        try:
            filled = await _all_or_first_error(calls)
        except DeadlineExceeded as error:
            problem = f"{error.message}: lower the hyperparameter horizon, or environment.count"
            raise RoleRefused(problem) from None
        if self._worker_setting:
            self._check(filled, session, grant, held)
        return CollectedRollout(
            grant,
            held.version,
            sum(part.environment_steps for part in filled),
            [value for part in filled for value in part.episode_returns],
        )

    def _check(
        self, filled: Sequence[pb.CollectRolloutResponse], session: SessionSpec, grant: Grant, held: PolicySlot
    ) -> None:
        """Checks the rollout of workers that are not podrace's."""
        horizon = session.memory.horizon
        try:
            for answer in filled:
                check_report(answer, horizon * session.environment.count, held.version)
            check_rollout(grant.region, grant.first_row, horizon, space_of(self._actions))
        except PodraceError as error:
            raise role_error(error, self._worker_setting) from None

    async def evaluate(
        self,
        session: SessionSpec,
        slots: Sequence[PolicySlot],
        episodes: int,
        seed: int,
        *,
        greedy: bool,
        first_episode: int = 0,
        opponents: Sequence[pb.Opponent] = (),
    ) -> Evaluation:
        """Has the built-in evaluator score the policies in held slots, together as an ensemble if there are several.

        The answer covers `episodes` episodes of the seed, from `first_episode` on.

        Raises:
            RoleLost: The evaluator was lost.
            RoleRefused: Its simulator does not answer.
            DataLoss: A return is not finite, or an episode does not end.
        """
        policy, *members = (slot.ref() for slot in slots)
        request = pb.EvaluatePolicyRequest(
            session=session.name,
            policy=policy,
            episodes=episodes,
            seed=seed,
            greedy=greedy,
            members=members,
            first_episode=first_episode,
            objective=session.objective,
            opponents=opponents,
        )
        response = await _call_to_simulate(self._evaluator.EvaluatePolicy, request, deadline_seconds=None)
        evaluation: Evaluation = response.evaluation
        return evaluation

    async def close(self) -> None:
        """Closes the channels. The roles themselves exit when the leader's lifeline is lost."""
        for channel in self._channels:
            await channel.close()


async def _all_or_first_error(calls: list[Any]) -> list[Any]:
    """Waits for all calls; once none is running any more, raises the first error in the order of the calls."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
