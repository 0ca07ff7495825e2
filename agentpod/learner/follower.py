"""Runs a follower: a learner of a pod that trains the agent of the leader with its own workers and fuses with it.

A follower publishes and scores nothing. If it fails, the group of learners has one member less for a while; the agent
is not affected.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from google.protobuf import json_format

from agentpod import algorithms
from agentpod.algorithms.base import Algorithm
from agentpod.algorithms.requirements import Requirements, requirements
from agentpod.compute_thread import ComputeThread
from agentpod.config import FUSED, PodConfig, learner_role
from agentpod.fusion.member import FusionMember
from agentpod.fusion.rendezvous import RemoteRendezvous
from agentpod.learner.collect_update_loop import CollectUpdateLoop, open_roles
from agentpod.liveness.supervisor import Supervisor
from agentpod.liveness.supervisor_actions import SupervisorActions
from agentpod.seeding import derive_seed
from agentpod.session.role_client import SessionSpec
from agentpod.session.role_faults import RoleLost
from agentpod.session.role_polls import RolePolls
from agentpod.session.session import Roles
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import NOT_OPEN, DeadlineExceeded, PodraceError, Unavailable
from podrace.limits.file_options import with_paths
from podrace.orchestrator.v1.orchestrator_pb2 import ROLE_PHASE_WAITING, StuckRole
from podrace.specification.environment_search import algorithm_values, training_environment
from podrace.specification.pods.sizes import batch_of_a_learner, environments_of_a_worker
from podrace.tasks import ChangeSignal, cancel_all, finish_unless_stopped
from podrace.tensor_transport import shared
from podrace.tensor_transport.plane import Plane

_log = structlog.get_logger(__name__)
WAIT_SECONDS = 10.0
"""How long one GetTraining call may wait for another training."""
RETRY_SECONDS = 0.5
"""Pause between two GetTraining calls."""
STARTUP_FACTOR = 10.0
"""How many times longer than `orphan_seconds` the leader on another host may take to answer for the first time."""


class Follower:
    """One follower of a pod.

    await Follower(config, planes, compute, index).run()   # until it is cancelled
    """

    def __init__(
        self, config: PodConfig, planes: Sequence[Plane], compute: ComputeThread, index: int, *, device: str = "cpu"
    ) -> None:
        """Creates the channel to the leader, which connects on first use.

        Args:
            config: Configuration of the pod.
            planes: Planes that memory may be allocated on, the preferred one first.
            compute: Thread that updates run on.
            index: Number of this learner in the pod; the leader is 0.
            device: Device that the algorithm trains on.
        """
        self._config, self._compute, self._index, self._device = config, compute, index, device
        self._channel = rpc.connect(config.leader_address, token=lambda: config.key, private_network=True)
        self._leader: Any = pb_grpc.LearnerServiceStub(self._channel)
        self._roles, self._polls = Roles(config, planes, learner=index, device=device), RolePolls(config, index)
        self._shared, self._changes = pb.GetTrainingResponse(), ChangeSignal()
        self._last_answer = time.monotonic()
        self._maximum_silence_seconds = STARTUP_FACTOR * config.orphan_seconds
        remove_leftover_memory(config, index)

    async def run(self) -> None:
        """Trains what the leader shares, one session after the other, until the leader has no more.

        Raises:
            Unavailable: The leader is on another host and has not answered for too long.
        """
        watching = asyncio.create_task(self._watch())
        try:
            while not self._has_ended(self._shared):
                training = self._shared
                change = asyncio.create_task(self._change_from(training.session, watching))
                try:
                    if training.session:
                        await self._follow(training, change)
                    await change
                finally:
                    change.cancel()
        finally:
            await cancel_all(watching)
            await self._roles.close()
            await self._polls.close()
            await self._channel.close()

    async def _watch(self) -> None:
        """Keeps up to date what the leader shares, also while this learner leaves a training.

        A call is always in progress, so the leader's last answer, that the pod ends, is not missed.
        """
        while not self._has_ended(self._shared):
            self._shared = await self._wait_for_change(self._shared.session)
            self._changes.notify_all()

    async def _change_from(self, session: str, watching: "asyncio.Task[None]") -> None:
        """Waits until the leader shares another session; raises what `_watch` has raised."""
        while self._shared.session == session and not self._has_ended(self._shared):
            change = asyncio.create_task(self._changes.next_change().wait())
            if not await finish_unless_stopped(change, watching):
                watching.result()

    async def _wait_for_change(self, session: str) -> pb.GetTrainingResponse:
        """Returns what the leader trains, as soon as it is another session."""
        request = pb.GetTrainingRequest(session=session, learner_index=self._index)
        request.wait_duration.FromSeconds(int(WAIT_SECONDS))
        while True:
            pause = RETRY_SECONDS
            try:
                response: pb.GetTrainingResponse = await rpc.call(
                    self._leader.GetTraining, request, deadline_seconds=2 * WAIT_SECONDS
                )
                self._last_answer = time.monotonic()
                self._maximum_silence_seconds = self._config.orphan_seconds
                # A leader that ends answers at once.
                pause = RETRY_SECONDS if response.ending else 0.0
            except (Unavailable, DeadlineExceeded) as error:
                self._check_silence(error)
                response = pb.GetTrainingResponse(session=session)
            if response.session != session or self._has_ended(response):
                return response
            await asyncio.sleep(pause)

    def _has_ended(self, training: pb.GetTrainingResponse) -> bool:
        """Returns whether to exit because the leader has ended.

        A follower on the leader's own host waits for the leader's lifeline instead: a process that exits before the
        leader would be started again.
        """
        return training.ending and self._config.host_index > 0

    def _check_silence(self, error: PodraceError) -> None:
        """Raises Unavailable when the leader of another host has not answered for too long.

        On the leader's own host its lifeline shows whether it lives.
        """
        silence = time.monotonic() - self._last_answer
        if self._config.host_index and silence > self._maximum_silence_seconds:
            _log.error("the leader does not answer; exiting", error=error.message, seconds=round(silence))
            raise Unavailable(
                f"the leader at {self._config.head} has not answered for {silence:.0f} s: {error.message}"
            )

    async def _follow(self, training: pb.GetTrainingResponse, change: "asyncio.Task[Any]") -> None:
        """Trains one session until the leader trains something else, or an error ends it."""
        stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_change(_: "asyncio.Task[Any]") -> None:
            if not stop.done():
                stop.set_result("the leader trains something else")

        change.add_done_callback(on_change)
        with structlog.contextvars.bound_contextvars(agent_id=training.agent.agent_id, learner=self._index):
            supervising = asyncio.create_task(self._supervisor().run())
            working = asyncio.create_task(self._train(training, stop))
            working.add_done_callback(lambda _: supervising.cancel())
            # The training checks for a stop between two steps, but not while it waits for a fusion round.
            await finish_unless_stopped(working, stop)
            try:
                with suppress(asyncio.CancelledError):
                    await working
            except PodraceError as error:
                if error.reason != NOT_OPEN:
                    # The leader sees the lost lifeline at once, and the fork server starts another process.
                    _log.error("this learner gives up", error=error.message)
                    raise

    def _supervisor(self) -> Supervisor:
        """Watches this learner and its workers; what it finds is in the log."""

        async def report(stuck: StuckRole) -> None:
            """The supervisor has logged it."""

        role = learner_role(self._index - self._config.first_learner)
        actions = SupervisorActions(lambda _: None, report, None)
        return Supervisor(self._config, role, self._compute.activity, self._polls.poll, actions)

    async def _train(self, training: pb.GetTrainingResponse, stop: "asyncio.Future[str]") -> None:
        agent, seed = training.agent, derive_seed(training.agent.seed, "learner", self._index)
        values = algorithm_values(json_format.MessageToDict(agent.hyperparameters))
        values = batch_of_a_learner(values, training.spec.pod, self._config.learners)
        hyperparameters = with_paths(agent.algorithm, values, self._config.allow)
        needs = await self._compute.run(requirements, agent.algorithm, hyperparameters)
        session = self._session_spec(training, needs, seed)
        spaces = await open_roles(self._roles, session, stop)
        if spaces is None:
            return
        self._roles.allocate_experience(*spaces)
        with algorithms.reports_user_code(agent.algorithm, "__init__"):
            algorithm = await self._compute.run(
                algorithms.make, agent.algorithm, *spaces, hyperparameters, seed=seed, device=self._device
            )
        member = self._member(training, algorithm)
        loop = CollectUpdateLoop(
            self._roles,
            self._compute,
            algorithm,
            session,
            stop,
            overlap=self._config.layout != FUSED,
            regroup=partial(self._fuse, member),
            precision=self._config.precision,
            captured=self._config.captured,
            device=self._device,
        )
        try:
            await self._fuse(member)
            await loop.publish()
            while not stop.done():
                await self._step(loop, member)
        finally:
            await loop.drop_pending()
            await member.close()

    def _session_spec(self, training: pb.GetTrainingResponse, needs: Requirements, seed: int) -> SessionSpec:
        values = json_format.MessageToDict(training.agent.hyperparameters)
        environment, config = training_environment(training.spec.environment, values), self._config
        count = environments_of_a_worker(environment.count, training.spec.pod, config.learners, config.workers)
        environment.count = count
        return SessionSpec(
            assignment=f"{training.session.rpartition('-')[2]}.{_mark(self._index)}",
            environment=environment,
            evaluation_environment=environment,
            network=needs.network,
            memory=needs.memory,
            seed=seed,
            rollouts=training.rollouts,
        )

    def _member(self, training: pb.GetTrainingResponse, algorithm: Algorithm) -> FusionMember:
        return FusionMember(
            RemoteRendezvous(self._leader),
            self._compute,
            algorithm,
            training.session,
            self._index,
            training.spec.fusion,
            self._device,
            host=self._config.host,
        )

    async def _step(self, loop: CollectUpdateLoop, member: FusionMember) -> None:
        try:
            result = await loop.step(lambda _: True)
        except RoleLost as error:
            _log.warning("a worker was lost; opening all roles again", error=error.message)
            await loop.reopen()
            return
        if result:
            member.count(result.environment_steps)
            if member.due:
                await self._fuse(member)
            await loop.publish()

    async def _fuse(self, member: FusionMember) -> None:
        """Takes part in rounds until one is committed, and waits for the learners of the agent meanwhile."""
        with self._compute.activity.doing(ROLE_PHASE_WAITING):
            await member.fuse()


def remove_leftover_memory(config: PodConfig, index: int) -> None:
    """Removes the shared memory of a previous process of this learner that was killed."""
    shared.remove_regions(config.region_prefix, config.plane_folder, re.compile(rf".*\.{_mark(index)}\..*"))


def _mark(index: int) -> str:
    """Returns the part of a region's name that distinguishes the learners of a pod."""
    return f"l{index}"
