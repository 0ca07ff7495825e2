"""Every learner of a pod but the head: trains what the head trains, with workers of its own, and meets it for fusion.

It publishes nothing and scores nothing. Whatever goes wrong here costs the group a member for a while, never the agent.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import structlog
from google.protobuf import json_format

from agentpod.algorithms.requirements import requirements
from agentpod.compute_thread import ComputeThread
from agentpod.config import PodConfig
from agentpod.fusion.member import FusionMember
from agentpod.fusion.rendezvous import RemoteRendezvous
from agentpod.learner.collect_update_loop import CollectUpdateLoop
from agentpod.seeding import derive_seed
from agentpod.session.role_client import RoleLost, SessionSpec
from agentpod.session.session import Roles
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.errors import NOT_OPEN, DeadlineExceeded, PodraceError, Unavailable
from podrace.tensor_transport import shared
from podrace.tensor_transport.plane import Plane

_log = structlog.get_logger(__name__)
WAIT_SECONDS = 10.0
RETRY_SECONDS = 0.5
STARTING_FACTOR = 10.0
"""Times longer than any other silence, one may last before the head of another host is first heard."""


class Follower:
    """One learner that follows the head.

    await Follower(config, planes, compute, index).run()   # until it is cancelled
    """

    def __init__(
        self, config: PodConfig, planes: Sequence[Plane], compute: ComputeThread, index: int, *, device: str = "cpu"
    ) -> None:
        """Dials nothing yet."""
        self._config, self._compute, self._index, self._device = config, compute, index, device
        self._channel = rpc.connect(config.leader_address)
        self._head: Any = pb_grpc.LearnerServiceStub(self._channel)
        self._roles = Roles(config, planes, learner=index, device=device)
        self._heard = time.monotonic()
        self._patience_seconds = STARTING_FACTOR * config.orphan_seconds
        sweep(config, index)

    async def run(self) -> None:
        """Trains whatever the head shares, one session after the other, until the head has no more.

        Raises:
            Unavailable: The head, on another host, has been silent for too long.
        """
        try:
            training = await self._other_than("")
            while not self._is_over(training):
                asking = asyncio.create_task(self._other_than(training.session))
                try:
                    if training.session:
                        await self._follow(training, asking)
                    training = await asking
                finally:
                    asking.cancel()
        finally:
            await self._roles.close()
            await self._channel.close()

    async def _other_than(self, session: str) -> pb.GetTrainingResponse:
        """What the head trains, as soon as it is something else."""
        request = pb.GetTrainingRequest(session=session, learner_index=self._index)
        request.wait_duration.FromSeconds(int(WAIT_SECONDS))
        while True:
            try:
                response: pb.GetTrainingResponse = await rpc.call(
                    self._head.GetTraining, request, deadline_seconds=2 * WAIT_SECONDS
                )
                self._heard, self._patience_seconds = time.monotonic(), self._config.orphan_seconds
            except (Unavailable, DeadlineExceeded) as error:
                self._bear_silence(error)
                response = pb.GetTrainingResponse(session=session)
            if response.session != session or self._is_over(response):
                return response
            await asyncio.sleep(RETRY_SECONDS)

    def _is_over(self, training: pb.GetTrainingResponse) -> bool:
        """Whether to end by itself; on the head's own host its lifeline says when, and who ends before is missed."""
        return training.ending and self._config.host_index > 0

    def _bear_silence(self, error: PodraceError) -> None:
        """The head is not up yet, or is down. On this host its lifeline says so; of another only the silence tells."""
        silence = time.monotonic() - self._heard
        if self._config.host_index and silence > self._patience_seconds:
            raise Unavailable(f"the head at {self._config.head} has not answered for {silence:.0f} s: {error.message}")

    async def _follow(self, training: pb.GetTrainingResponse, over: "asyncio.Task[Any]") -> None:
        """Trains one session to its end, or until something goes wrong."""
        stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_over(_: "asyncio.Task[Any]") -> None:
            if not stop.done():
                stop.set_result("the head trains something else")

        over.add_done_callback(on_over)
        with structlog.contextvars.bound_contextvars(agent_id=training.agent.agent_id, learner=self._index):
            working = asyncio.create_task(self._train(training, stop))
            waited: list[asyncio.Future[Any]] = [working, stop]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            # A stop is seen between two steps, but not by somebody who waits for others to arrive.
            working.cancel()
            try:
                with suppress(asyncio.CancelledError):
                    await working
            except PodraceError as error:
                if error.reason != NOT_OPEN:
                    # Ending tells the head at once, and the nursery starts another in this one's place.
                    _log.error("this learner gives up", error=error.message)
                    raise

    async def _train(self, training: pb.GetTrainingResponse, stop: "asyncio.Future[str]") -> None:
        agent, spec = training.agent, training.spec
        hyperparameters = json_format.MessageToDict(agent.hyperparameters)
        shape = requirements(agent.algorithm, hyperparameters)
        seed = derive_seed(agent.seed, "learner", self._index)
        session = SessionSpec(
            assignment=f"{training.session.rpartition('-')[2]}.{_mark(self._index)}",
            environment=spec.environment,
            evaluation_environment=spec.environment,
            network=shape.network,
            memory=shape.memory,
            seed=seed,
            rollouts=training.rollouts,
            opened=0,
        )
        loop = CollectUpdateLoop(
            self._roles,
            self._compute,
            session,
            stop,
            overlap=True,
            precision=self._config.precision,
            device=self._device,
        )
        spaces = await loop.open()
        if spaces is None:
            return
        await loop.make_algorithm(agent, hyperparameters, seed, spaces)
        member = FusionMember(
            RemoteRendezvous(self._head),
            self._compute,
            loop.algorithm,
            training.session,
            self._index,
            spec.fusion,
            self._device,
            host=self._config.host,
        )
        loop.regroup = member.fuse
        try:
            await member.fuse()
            loop.publish()
            while not stop.done():
                await self._step(loop, member)
        finally:
            await loop.drop_pending()
            await member.close()

    async def _step(self, loop: CollectUpdateLoop, member: FusionMember) -> None:
        try:
            learned = await loop.step(lambda _: True)
        except RoleLost as error:
            _log.warning("a worker was lost; opening all again", error=error.message)
            await loop.reopen()
            return
        if learned:
            member.count(learned.environment_steps)
            if member.due:
                await member.fuse()
            loop.publish()


def sweep(config: PodConfig, index: int) -> None:
    """Removes the shared memory that an earlier process of this learner left behind when it was killed."""
    shared.sweep(config.region_prefix, config.plane_folder, re.compile(rf".*\.{_mark(index)}\..*"))


def _mark(index: int) -> str:
    """Tells the regions of one learner from those of the others."""
    return f"l{index}"
