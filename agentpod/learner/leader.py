"""Runs the leader of a pod: acquires assignments, works on one at a time and decides when the pod exits.

Everything that can end the work early is handled here: a directive of the orchestrator, SIGTERM, a lost lifeline, an
orchestrator that does not answer, a role that cannot be opened again, an error of the agent.

This is the controlling half of the leader, see agentpod.learner.interfaces.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio
import structlog

from agentpod.compute_thread import ComputeThread
from agentpod.config import LEADER_ROLE, PodConfig
from agentpod.fusion.shared_training import SharedTraining
from agentpod.gpu_sampler import GpuSampler
from agentpod.learner.agent_training import AgentTraining, TrainingContext
from agentpod.learner.ending import EXIT_DONE, EXIT_ROLE_LOST, Ending, ending_of_error, ending_of_stop
from agentpod.learner.evaluation_job import evaluate_policies
from agentpod.learner.evaluation_schedule import EvaluationTime
from agentpod.learner.lease import ANSWERS, Lease
from agentpod.learner.policy_loader import load_policies
from agentpod.learner.progress_reporter import ProgressReporter
from agentpod.learner.publisher import Publisher
from agentpod.learner.training_setup import Preparation, TrainingSetup
from agentpod.liveness.supervisor import Supervisor
from agentpod.liveness.supervisor_actions import SupervisorActions
from agentpod.pod_token import token_of
from agentpod.session.role_polls import RolePolls
from agentpod.session.session import Roles
from agentpod.storage_waits import StorageWaits
from podrace import backoff, rpc, tracing
from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc
from podrace.checkpoint.v1 import store_pb2
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.checkpoint_store.assignment_store import AssignmentStores
from podrace.errors import PodraceError
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.limits.specification import check_options, check_specification
from podrace.limits.user_code import runs_apart
from podrace.orchestrator.v1 import orchestrator_pb2 as orchestrator_pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc
from podrace.specification.messages import bad_spec
from podrace.tasks import cancel_all, finish_unless_stopped, wait_at_most
from podrace.tensor_transport.plane import Plane

_log = structlog.get_logger(__name__)
ACQUIRE_WAIT_SECONDS = 10.0
"""How long one AcquireAssignment call may wait for an assignment."""
LONGEST_WAIT_SECONDS = 30.0
"""How long one GetTraining call may wait for another session."""
RETRY_SECONDS = 0.5
"""Pause after a failed AcquireAssignment call, and while the roles open for an agent of another pod."""
REFUSED_SECONDS = 5.0
"""Pause of an external pod that the orchestrator refused."""
EXIT_NOTICE_SECONDS = 5.0
"""Time limit for notifying the followers that the pod exits."""
UNKNOWN_ANSWER_SECONDS = 1.0
"""Pause after an answer that this build does not know."""
GIVEN_UP_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 4.0
"""Pause after an assignment that was given back, doubled after each without an update; shorter than a silent pod's."""


class Leader:
    """Works on assignments until the pod exits.

        exit_code = await Leader(config, planes, compute, open_stores).run(stop)

    Attributes:
        lease: The lease that is held, if any.
        training: The training under way, if any.
    """

    def __init__(
        self,
        config: PodConfig,
        planes: Sequence[Plane],
        compute: ComputeThread,
        open_stores: Callable[[grpc.aio.Channel], AssignmentStores],
        *,
        device: str = "cpu",
    ) -> None:
        """Creates the channels, which connect on first use.

        Args:
            config: Configuration of the pod.
            planes: Planes on which it may share memory with its other roles.
            compute: Its compute thread.
            open_stores: Opens the checkpoint store, given a channel to the leaderboard.
            device: Device that the leader computes on.
        """
        self.config = config
        self._compute, self._device = compute, device
        self._token = token_of(config)
        self._orchestrator_channel = rpc.connect(config.orchestrator, orchestrator_pb.DESCRIPTOR, token=self._token)
        self._leaderboard_channel = rpc.connect(
            config.leaderboard, leaderboard_pb2.DESCRIPTOR, store_pb2.DESCRIPTOR, token=self._token
        )
        self._stores = open_stores(self._leaderboard_channel)
        self._orchestrator: Any = orchestrator_pb2_grpc.OrchestratorServiceStub(self._orchestrator_channel)
        self._updater: Any = leaderboard_pb2_grpc.UpdaterServiceStub(self._leaderboard_channel)
        self.roles = Roles(config, planes, device=device, activity=compute.activity)
        self.shared_training = SharedTraining(config.learners, config.learners_here, config.orphan_seconds)
        self._polls = RolePolls(config, calls=self.shared_training.calls.answers)
        self._incarnation = uuid.uuid4().hex
        self._gpu_sampler = GpuSampler(config.gpus)
        self.lease: Lease | None = None
        self.training: AgentTraining | None = None
        self._given_back, self._evaluation_time = 0, EvaluationTime()
        self._preparation = Preparation(self.roles, compute, config, self.shared_training, self._check, device=device)

    async def run(self, stop: "asyncio.Future[str]") -> int:
        """Works on assignments until the pod is drained, stopped or orphaned; returns the exit code of the pod."""
        try:
            while True:
                assignment = await self._acquire(stop)
                if assignment is None:
                    return EXIT_DONE
                exit_code = await self._work(assignment, stop)
                if exit_code == EXIT_DONE and self.config.standing and not stop.done():
                    # Only this assignment ended, or its tournament. There may be others.
                    continue
                if exit_code is not None:
                    return exit_code
                # The cause may still be there: without a pause the pod would acquire and give up in a tight loop.
                await self._pause(backoff.exponential(self._given_back, GIVEN_UP_SECONDS, LONGEST_PAUSE_SECONDS), stop)
        finally:
            await self._preparation.end()
            self.shared_training.end()
            await self.shared_training.all_notified(EXIT_NOTICE_SECONDS)
            await self.roles.close()
            await self._polls.close()
            await self._orchestrator_channel.close()
            await self._leaderboard_channel.close()

    # --- acquiring --------------------------------------------------------------------------------------------

    async def _acquire(self, stop: "asyncio.Future[str]") -> orchestrator_pb.Assignment | None:
        """Returns the next assignment; None when the pod must exit."""
        last_answer = time.monotonic()
        while not stop.done():
            request = asyncio.create_task(self._request_assignment())
            if not await finish_unless_stopped(request, stop):
                break
            try:
                response = request.result()
            except PodraceError as error:
                if isinstance(error, ANSWERS):
                    last_answer = time.monotonic()
                silence = time.monotonic() - last_answer
                if silence > self.config.orphan_seconds and not self.config.standing:
                    _log.error("the orchestrator does not answer; exiting", error=error.message, seconds=round(silence))
                    return None
                _log.warning("no assignment", error=error.message)
                await self._pause(RETRY_SECONDS, stop)
                continue
            last_answer = time.monotonic()
            self._token.renew(response.pod_token)
            kind = response.WhichOneof("answer")
            if kind == "assignment":
                return response.assignment
            if kind == "drain" and not self.config.standing:
                # An idle pod has no renewal that could carry the directive; the log line is the same.
                directive = orchestrator_pb.Directive.Name(orchestrator_pb.DIRECTIVE_DRAIN)
                _log.info("directive received", directive=directive, reason=response.drain)
                return None
            known = kind == "retry_after"
            retry_seconds = response.retry_after.ToTimedelta().total_seconds() if known else UNKNOWN_ANSWER_SECONDS
            if kind == "prepare":
                self._preparation.begin(response.prepare)
                retry_seconds = RETRY_SECONDS
            elif kind == "drain":
                # The orchestrator may start its pods itself, or may be about to be configured for external ones.
                _log.warning("refused; asking again", reason=response.drain)
                retry_seconds = REFUSED_SECONDS
            await self._pause(retry_seconds, stop)
        return None

    async def _request_assignment(self) -> orchestrator_pb.AcquireAssignmentResponse:
        # The call also waits for a server that is not up yet, but no longer than an orphaned pod may live.
        wait_seconds = min(ACQUIRE_WAIT_SECONDS, self.config.orphan_seconds)
        request = orchestrator_pb.AcquireAssignmentRequest(
            pod_id=self.config.pod_id,
            incarnation=self._incarnation,
            prepared_agent_id=self._preparation.agent_id,
        )
        request.wait_duration.FromNanoseconds(round(wait_seconds * 1e9))
        response: orchestrator_pb.AcquireAssignmentResponse = await rpc.call(
            self._orchestrator.AcquireAssignment, request, deadline_seconds=2 * wait_seconds
        )
        return response

    async def _pause(self, seconds: float, stop: "asyncio.Future[str]") -> None:
        await wait_at_most(asyncio.shield(stop), seconds)

    # --- working ----------------------------------------------------------------------------------------------

    async def _work(self, assignment: orchestrator_pb.Assignment, stop: "asyncio.Future[str]") -> int | None:
        """Works on one assignment and completes it; returns the exit code if the pod must exit, else None."""
        lease = Lease(
            self._orchestrator,
            assignment,
            orphan_seconds=self.config.orphan_seconds,
            pod_id=self.config.pod_id,
            on_token=self._token.renew,
        )

        def on_stop(done: "asyncio.Future[str]") -> None:
            if not done.cancelled():
                lease.request_stop(done.result())

        stop.add_done_callback(on_stop)
        ids = {"agent_id": assignment.train.agent_id, "tournament_id": assignment.tournament_id}
        trace = tracing.span("assignment", assignment_id=assignment.assignment_id, **ids)
        with trace, structlog.contextvars.bound_contextvars(**ids):
            async with lease:
                self.lease = lease
                progress = ProgressReporter(lease, self._gpu_sampler.take)
                lease.before_report = progress.stamp
                actions = SupervisorActions(progress.report_roles, lease.report_stuck, lease.request_exit)
                activity, updates = self._compute.activity, progress.updates_in_training
                waits = StorageWaits(lease.stop, progress.report_storage_fault, activity)
                supervisor = Supervisor(self.config, LEADER_ROLE, activity, self._polls.poll, actions, updates)
                supervising = asyncio.create_task(supervisor.run())
                try:
                    work = assignment.WhichOneof("work")
                    await self._preparation.end()
                    _log.info("assignment begins", work=work or "unknown", lease_epoch=assignment.lease_epoch)
                    if work == "evaluate":
                        return await self._evaluate(lease, progress, waits)
                    return await (self._train(lease, progress, waits) if work == "train" else self._give_back(lease))
                finally:
                    await cancel_all(supervising)
                    actions.close()
                    stop.remove_done_callback(on_stop)
                    self.lease = self.training = None

    async def _give_back(self, lease: Lease) -> int | None:
        """Completes an assignment whose kind of work this build does not know."""
        ending = Ending(orchestrator_pb.OUTCOME_DRAINED, "this pod does not know this kind of work")
        _log.error("assignment of an unknown kind", assignment_id=lease.assignment.assignment_id, reason=ending.message)
        return await self._complete(lease, ending)

    async def _train(self, lease: Lease, progress: ProgressReporter, waits: StorageWaits) -> int | None:
        assignment = lease.assignment
        publisher = Publisher(
            self._stores.of(assignment),
            self._updater,
            assignment.train,
            assignment.lease_epoch,
            assignment.spec,
            waits,
            lease_token=lambda: lease.token,
        )
        context = TrainingContext(
            self.config,
            assignment,
            lease,
            publisher,
            progress,
            self.roles,
            self._compute,
            self.shared_training,
            self._evaluation_time,
            device=self._device,
        )
        setup, started = TrainingSetup(context), time.monotonic()
        try:
            self._check(assignment)
            self.training = await setup.prepare()
            if self.training and await self.training.run():
                await publisher.submit_all()
            ending = self._ending_of_training(lease)
        except PodraceError as error:
            ending = ending_of_error(error, opened=setup.opened)
            await self._leave(publish=ending.publish)
        self._evaluation_time.earlier_seconds += time.monotonic() - started
        _log_ending(ending)
        return await self._complete(lease, ending)

    def _ending_of_training(self, lease: Lease) -> Ending:
        finished = self.training is not None and self.training.finished
        if not lease.stop.done():
            return Ending(orchestrator_pb.OUTCOME_FINISHED)
        return ending_of_stop(
            lease.stop.result(),
            finished=finished,
            held=lease.held,
            yielded=lease.yielded,
            stopped_early=lease.stopped_early,
        )

    async def _leave(self, *, publish: bool) -> None:
        """Ends a training that failed."""
        if self.training is None:
            return
        try:
            await (self.training.leave() if publish else self.training.abandon())
        except PodraceError as error:
            _log.error("checkpoint files were not published", error=error.message)

    async def _evaluate(self, lease: Lease, progress: ProgressReporter, waits: StorageWaits) -> int | None:
        progress.enter(orchestrator_pb.POD_ACTIVITY_EVALUATING)
        evaluating = asyncio.create_task(self._evaluate_checkpoint(lease, progress, waits))
        evaluation: Evaluation | None = None
        if await finish_unless_stopped(evaluating, lease.stop):
            try:
                evaluation = evaluating.result()
                ending = Ending(orchestrator_pb.OUTCOME_FINISHED)
            except PodraceError as error:
                ending = ending_of_error(error, opened=True)
        else:
            ending = ending_of_stop(lease.stop.result(), finished=False, held=lease.held, yielded=lease.yielded)
        _log_ending(ending)
        return await self._complete(lease, ending, evaluation)

    async def _evaluate_checkpoint(self, lease: Lease, progress: ProgressReporter, waits: StorageWaits) -> Evaluation:
        assignment = lease.assignment
        self._check(assignment)
        check_options(assignment.spec, assignment.evaluate.options, self.config.allow, "options")
        policies = await load_policies(self._stores.of(assignment), assignment.evaluate, waits)
        return await evaluate_policies(self.roles, policies, assignment, progress)

    def _check(self, assignment: orchestrator_pb.Assignment) -> None:
        """Refuses a specification that names what this pod may not use, whatever the orchestrator hands out."""
        check_specification(assignment.spec, self.config.allow)
        if self.config.shares_processes and runs_apart(assignment.spec, self.config.allow):
            raise bad_spec(
                "pod.layout = 'fused': the specification names user code, which does not run in the process that has"
                " the token of the pod; start this pod with isolated = true, or with layout = 'separate'"
            )

    async def _complete(self, lease: Lease, ending: Ending, evaluation: Evaluation | None = None) -> int | None:
        """Reports the end of an assignment; returns the exit code if the pod must exit, else None."""
        if lease.held:
            try:
                with self._compute.activity.doing(orchestrator_pb.ROLE_PHASE_WAITING):
                    await lease.complete(ending.outcome, ending.message, evaluation, gave_up=ending.gave_up)
            except PodraceError as error:
                # Another pod holds the agent, or the orchestrator does not answer. The lease expires by itself, and the
                # next pod continues from what is published.
                _log.warning("the end of the assignment could not be reported", error=error.message)
        gave_back = ending.outcome == orchestrator_pb.OUTCOME_DRAINED and ending.exit_code is None and not lease.yielded
        earlier = 0 if lease.progress.HasField("update_age_seconds") else self._given_back
        self._given_back = earlier + 1 if gave_back else 0
        # However the work ended: a role that is stuck and cannot be restarted would block the next assignment as well.
        return EXIT_ROLE_LOST if lease.broken else ending.exit_code


def _log_ending(ending: Ending) -> None:
    _log.info("assignment ends", outcome=orchestrator_pb.Outcome.Name(ending.outcome), reason=ending.message)


class LearnerServicer(pb_grpc.LearnerServiceServicer):
    """Reports the state of the leader, and serves the followers of the pod."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    async def GetLearner(
        self, request: pb.GetLearnerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetLearnerResponse:
        """Returns the progress of the current assignment; see the contract."""
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
        """Returns what the followers train, as soon as it differs from what the caller knows; see the contract."""
        wait = request.wait_duration
        wait_seconds = min(max(0.0, wait.seconds + wait.nanos / 1e9), LONGEST_WAIT_SECONDS)
        return await self._leader.shared_training.wait_for_change(request.session, wait_seconds, request.learner_index)

    async def JoinFusion(
        self, request: pb.JoinFusionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.JoinFusionResponse:
        """Joins a fusion round; see the contract."""
        return await self._leader.shared_training.join(request)

    async def CommitFusion(
        self, request: pb.CommitFusionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CommitFusionResponse:
        """Commits a fusion round; see the contract."""
        return await self._leader.shared_training.rendezvous.commit(request)
