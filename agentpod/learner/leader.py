"""The learner: head of the pod. Asks for assignments, works on one at a time, and ends the pod when it is told to or
must.

Everything that can end the work early comes together here: a directive of the orchestrator, SIGTERM, a lost lifeline,
an orchestrator that has fallen silent, a role that does not come back, an error of the agent.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc.aio
import structlog
from google.protobuf.duration_pb2 import Duration

from agentpod.compute_thread import ComputeThread
from agentpod.config import PodConfig
from agentpod.fusion.shared_training import SharedTraining
from agentpod.learner.agent_training import AgentTraining
from agentpod.learner.evaluation_job import evaluate_checkpoint
from agentpod.learner.lease import Lease
from agentpod.learner.publisher import Publisher
from agentpod.session.role_client import RoleLost
from agentpod.session.session import Roles
from podrace import rpc
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import (
    BAD_SPEC,
    UNSUITABLE_SPACE,
    DataLoss,
    Internal,
    InvalidArgument,
    NotFound,
    PodraceError,
    ResourceExhausted,
    Unimplemented,
)
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as orchestrator_pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc
from podrace.tensor_transport.plane import Plane

_log = structlog.get_logger(__name__)
ACQUIRE_WAIT_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 30.0
"""Longest time that a call of GetTraining waits for another session."""
RETRY_SECONDS = 0.5
REFUSED_SECONDS = 5.0
UNKNOWN_ANSWER_SECONDS = 1.0
"""Pause after an answer that this build does not know."""
GIVEN_UP_SECONDS = 1.0
EXIT_DONE = 0
EXIT_ROLE_LOST = 3


class Leader:
    """Works on assignments until the pod ends.

    exit_code = await Leader(config, planes, compute, store).run(stop)
    """

    def __init__(
        self,
        config: PodConfig,
        planes: Sequence[Plane],
        compute: ComputeThread,
        store: CheckpointStore,
        *,
        device: str = "cpu",
    ) -> None:
        """Dials nothing yet."""
        self.config = config
        self._compute, self._store, self._device = compute, store, device
        self._orchestrator_channel = rpc.connect(config.orchestrator, orchestrator_pb.DESCRIPTOR)
        self._leaderboard_channel = rpc.connect(config.leaderboard, leaderboard_pb2.DESCRIPTOR)
        self._orchestrator: Any = orchestrator_pb2_grpc.OrchestratorServiceStub(self._orchestrator_channel)
        self._updater: Any = leaderboard_pb2_grpc.UpdaterServiceStub(self._leaderboard_channel)
        self.roles = Roles(config, planes, device=device)
        self.shared_training = SharedTraining()
        self._incarnation = uuid.uuid4().hex
        self.lease: Lease | None = None
        self.training: AgentTraining | None = None

    async def run(self, stop: "asyncio.Future[str]") -> int:
        """Acquires and works until drained, stopped or orphaned; returns the exit code of the pod."""
        try:
            while True:
                assignment = await self._acquire(stop)
                if assignment is None:
                    return EXIT_DONE
                exit_code = await self._work(assignment, stop)
                if exit_code == EXIT_DONE and self.config.standing and not stop.done():
                    # What ended was this assignment, or the tournament; there may be others.
                    continue
                if exit_code is not None:
                    return exit_code
        finally:
            self.shared_training.end()
            await self.roles.close()
            await self._orchestrator_channel.close()
            await self._leaderboard_channel.close()

    # --- acquiring --------------------------------------------------------------------------------------------

    async def _acquire(self, stop: "asyncio.Future[str]") -> orchestrator_pb.Assignment | None:
        """The next assignment; None when the pod is to go."""
        heard = time.monotonic()
        while not stop.done():
            asking = asyncio.create_task(self._ask())
            waited: list[asyncio.Future[Any]] = [asking, stop]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                asking.cancel()
                break
            try:
                answer = asking.result()
            except PodraceError as error:
                silence = time.monotonic() - heard
                if silence > self.config.orphan_seconds and not self.config.standing:
                    _log.error("no orchestrator; going", error=error.message, seconds=round(silence))
                    return None
                _log.warning("no assignment", error=error.message)
                await self._pause(RETRY_SECONDS, stop)
                continue
            heard = time.monotonic()
            kind = answer.WhichOneof("answer")
            if kind == "assignment":
                assignment: orchestrator_pb.Assignment = answer.assignment
                return assignment
            if kind == "drain" and self.config.standing:
                # Perhaps an orchestrator that starts its pods itself; perhaps one that is configured just now.
                _log.warning("refused; asking again", reason=answer.drain)
                await self._pause(REFUSED_SECONDS, stop)
                continue
            if kind == "drain":
                _log.info("drained", reason=answer.drain)
                return None
            known = kind == "retry_after"
            await self._pause(
                answer.retry_after.ToTimedelta().total_seconds() if known else UNKNOWN_ANSWER_SECONDS, stop
            )
        return None

    async def _ask(self) -> orchestrator_pb.AcquireAssignmentResponse:
        # A server that is not there is waited for as well: no longer than an orphan may live.
        wait_seconds = min(ACQUIRE_WAIT_SECONDS, self.config.orphan_seconds)
        wait_duration = Duration()
        wait_duration.FromNanoseconds(round(wait_seconds * 1e9))
        request = orchestrator_pb.AcquireAssignmentRequest(
            pod_id=self.config.pod_id, incarnation=self._incarnation, wait_duration=wait_duration
        )
        response: orchestrator_pb.AcquireAssignmentResponse = await rpc.call(
            self._orchestrator.AcquireAssignment, request, deadline_seconds=2 * wait_seconds
        )
        return response

    async def _pause(self, seconds: float, stop: "asyncio.Future[str]") -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(stop), seconds)

    # --- working ----------------------------------------------------------------------------------------------

    async def _work(self, assignment: orchestrator_pb.Assignment, stop: "asyncio.Future[str]") -> int | None:
        """Works on one assignment and completes it; the exit code if the pod is to end, else None."""
        lease = Lease(self._orchestrator, assignment, orphan_seconds=self.config.orphan_seconds)

        def on_stop(done: "asyncio.Future[str]") -> None:
            if not done.cancelled():
                lease.request_stop(done.result())

        stop.add_done_callback(on_stop)
        ids = {"agent_id": assignment.train.agent_id, "tournament_id": assignment.tournament_id}
        with structlog.contextvars.bound_contextvars(**ids):
            async with lease:
                self.lease = lease
                try:
                    work = assignment.WhichOneof("work")
                    if work == "evaluate":
                        return await self._evaluate(lease)
                    return await (self._train(lease) if work == "train" else self._give_back(lease))
                finally:
                    stop.remove_done_callback(on_stop)
                    self.lease = self.training = None

    async def _give_back(self, lease: Lease) -> int | None:
        """Completes an assignment whose kind of work this build does not know."""
        ending = Ending(orchestrator_pb.OUTCOME_DRAINED, "this pod does not know this kind of work")
        _log.error("assignment given back", assignment_id=lease.assignment.assignment_id, reason=ending.message)
        await self._complete(lease, ending)
        return ending.exit_code

    async def _train(self, lease: Lease) -> int | None:
        agent, epoch = lease.assignment.train, lease.assignment.lease_epoch
        publisher = Publisher(self._store, self._updater, agent, epoch, lease.assignment.spec)
        training = self.training = AgentTraining(
            self.config, lease, agent, self.roles, self._compute, publisher, self.shared_training, device=self._device
        )
        try:
            if await training.prepare():
                await training.run()
            ending = _ending_of(training, lease)
        except PodraceError as error:
            ending = ending_of_error(error, opened=training.opened)
            try:
                await (training.leave() if ending.publish else training.abandon())
            except PodraceError as again:
                _log.error("training files were not published", error=again.message)
        _log.info("assignment ends", outcome=orchestrator_pb.Outcome.Name(ending.outcome), reason=ending.message)
        await self._complete(lease, ending)
        return ending.exit_code

    async def _evaluate(self, lease: Lease) -> int | None:
        lease.progress.activity = orchestrator_pb.POD_ACTIVITY_EVALUATING
        evaluating = asyncio.create_task(evaluate_checkpoint(self.roles, self._store, lease))
        waited: list[asyncio.Future[Any]] = [evaluating, lease.stop]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not evaluating.done():
            evaluating.cancel()
            await asyncio.wait([evaluating])
        evaluation: Evaluation | None = None
        ending = Ending(orchestrator_pb.OUTCOME_DRAINED, "stopped", exit_code=EXIT_DONE)
        if not evaluating.cancelled():
            try:
                evaluation = evaluating.result()
                ending = Ending(orchestrator_pb.OUTCOME_FINISHED)
            except PodraceError as error:
                ending = ending_of_error(error, opened=True)
        await self._complete(lease, ending, evaluation)
        return ending.exit_code

    async def _complete(self, lease: Lease, ending: "Ending", evaluation: Evaluation | None = None) -> None:
        if lease.ours:
            try:
                await lease.complete(ending.outcome, ending.message, evaluation)
            except PodraceError as error:
                # Taken over, or nobody there: the lease expires by itself; the next pod goes on from what is published.
                _log.warning("the end of the assignment could not be told", error=error.message)
        if ending.outcome == orchestrator_pb.OUTCOME_DRAINED and ending.exit_code is None:
            # Whatever made this pod give the agent up may still be there: never in a hurry.
            await asyncio.sleep(GIVEN_UP_SECONDS)


@dataclass(frozen=True)
class Ending:
    """How an assignment ends, and the pod with it if there is an exit code."""

    outcome: orchestrator_pb.Outcome.ValueType
    message: str = ""
    exit_code: int | None = None
    publish: bool = False
    """Publish the training files as they are first."""


def _ending_of(training: AgentTraining, lease: Lease) -> Ending:
    """The ending of an assignment without an error."""
    # Drained, the pod goes; if only the agent was taken from it, it asks for another.
    exit_code = EXIT_DONE if lease.stop.done() and lease.ours else None
    if training.finished:
        return Ending(orchestrator_pb.OUTCOME_FINISHED, exit_code=exit_code)
    return Ending(orchestrator_pb.OUTCOME_DRAINED, lease.stop.result(), exit_code)


def ending_of_error(error: PodraceError, *, opened: bool) -> Ending:
    """What an error means for the agent, for its tournament and for the pod.

    Args:
        error: What ended the work.
        opened: Whether the environment could be made: an error before that would meet every other agent as well, unless
            it is that this one's algorithm cannot act there. One after it does, if it says that it is the
            specification's.
    """
    if isinstance(error, RoleLost):
        return Ending(orchestrator_pb.OUTCOME_DRAINED, error.message, EXIT_ROLE_LOST, publish=True)
    everyones = error.reason == BAD_SPEC or (not opened and error.reason != UNSUITABLE_SPACE)
    if everyones and isinstance(error, InvalidArgument | Unimplemented | ResourceExhausted | Internal):
        return Ending(orchestrator_pb.OUTCOME_SPEC_FAILED, error.message)
    if isinstance(error, DataLoss | InvalidArgument | Unimplemented | ResourceExhausted | NotFound | Internal):
        return Ending(orchestrator_pb.OUTCOME_AGENT_FAILED, error.message)
    # The agent belongs to another pod, or the mesh is not there: nothing that is wrong with the agent.
    return Ending(orchestrator_pb.OUTCOME_DRAINED, error.message)


class LearnerServicer(pb_grpc.LearnerServiceServicer):
    """Tells how the head is doing, and lets the other learners meet it."""

    def __init__(self, leader: Leader) -> None:
        """Reports on a leader."""
        self._leader = leader

    async def GetLearner(
        self, request: pb.GetLearnerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetLearnerResponse:
        """Answers from memory; see the contract."""
        leader = self._leader
        return pb.GetLearnerResponse(
            pod_id=leader.config.pod_id,
            agent_id=leader.lease.assignment.train.agent_id if leader.lease else "",
            progress=leader.lease.progress if leader.lease else None,
            plane=leader.roles.plane,
            role_restarts=leader.training.role_restarts if leader.training else 0,
        )

    async def GetTraining(
        self, request: pb.GetTrainingRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetTrainingResponse:
        """Tells what is trained; see the contract."""
        wait = request.wait_duration
        wait_seconds = min(max(0.0, wait.seconds + wait.nanos / 1e9), LONGEST_WAIT_SECONDS)
        try:
            return await self._leader.shared_training.wait_for_change(request.session, wait_seconds)
        except asyncio.CancelledError:
            self._leader.shared_training.learner_disconnected(request.learner_index)
            raise

    async def JoinFusion(
        self, request: pb.JoinFusionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.JoinFusionResponse:
        """Joins; see the contract."""
        return await self._leader.shared_training.rendezvous.join(request)

    async def CommitFusion(
        self, request: pb.CommitFusionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CommitFusionResponse:
        """Commits; see the contract."""
        return await self._leader.shared_training.rendezvous.commit(request)
