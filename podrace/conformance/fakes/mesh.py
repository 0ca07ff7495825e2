"""Plays the orchestrator, the leaderboard and the checkpoint store of a pod, and records what the pod calls."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from podrace.checkpoint.v1 import store_pb2, store_pb2_grpc
from podrace.checkpoint.v1.checkpoint_pb2 import Pointer
from podrace.conformance.fakes import manifests
from podrace.conformance.fakes.leases import ExaminedLease
from podrace.conformance.fakes.object_server import CONDITION, Objects
from podrace.conformance.findings import Judge, Violated
from podrace.errors import Aborted, FailedPrecondition, InvalidArgument, NamedResource, NotFound, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc

STALE = "ERROR_REASON_STALE_EPOCH"
POD_TOKEN = "conformance-pod-token"
LONGEST_WAIT_SECONDS = 30.0


class ExaminedCalls:
    """What the pod called, by lease."""

    def __init__(self, judge: Judge, read: manifests.Read) -> None:
        self.judge, self.read = judge, read
        self.leases: dict[str, ExaminedLease] = {}
        self.acquisitions: list[tuple[float, pb.AcquireAssignmentRequest]] = []
        self.answers: asyncio.Queue[pb.AcquireAssignmentResponse] = asyncio.Queue()
        self.answered: list[float] = []
        self.refuse_completion = False
        """Whether the next CompleteAssignment is answered with UNAVAILABLE."""
        self.expects_token = False

    def lease(self, assignment_id: str) -> ExaminedLease:
        """Returns the lease of an assignment; raises NotFound."""
        if assignment_id not in self.leases:
            raise NotFound(f"there is no assignment '{assignment_id}'")
        return self.leases[assignment_id]

    def lease_of(self, agent_id: str) -> ExaminedLease:
        """Returns the lease of an agent; raises NotFound."""
        for lease in self.leases.values():
            if lease.agent_id == agent_id:
                return lease
        raise NotFound(f"there is no agent '{agent_id}'")

    def check(self, name: str, context: Any) -> None:
        """Judges the token of the pod in the metadata of a call."""
        if self.expects_token:
            sent = dict(context.invocation_metadata() or ()).get("authorization", "")
            problem = f"{name} was called {'with another token' if sent else 'without a token'}"
            self.judge.expect("pod-token", sent == f"Bearer {POD_TOKEN}", problem)

    def check_writes(self, name: str, lease: ExaminedLease, request: Any) -> None:
        """Judges a call that publishes or submits.

        Raises:
            FailedPrecondition: The epoch is stale.
        """
        lease.check_call(self.judge, name, request.lease_epoch, request.lease_token)
        if lease.goes_stale and lease.ended_at is not None:
            self.judge.expect("stale", False, f"{name} was called after STALE_EPOCH")
            raise FailedPrecondition("the agent has been assigned to another pod", reason=STALE)


class FakeOrchestrator(pb_grpc.OrchestratorServiceServicer):
    """Answers the calls of a pod to the orchestrator."""

    def __init__(self, calls: ExaminedCalls) -> None:
        self.calls = calls

    async def AcquireAssignment(self, request: Any, context: Any) -> pb.AcquireAssignmentResponse:
        """Answers what the examination has prepared, or that there is no work."""
        calls = self.calls
        calls.acquisitions.append((time.monotonic(), request))
        calls.check("AcquireAssignment", context)
        seconds = min(request.wait_duration.ToTimedelta().total_seconds(), LONGEST_WAIT_SECONDS)
        try:
            answer = await asyncio.wait_for(calls.answers.get(), max(seconds, 0.01))
        except TimeoutError:
            answer = pb.AcquireAssignmentResponse()
            answer.retry_after.FromMilliseconds(100)
            return answer
        now = time.monotonic()
        if answer.HasField("assignment"):
            calls.lease(answer.assignment.assignment_id).acquired_at = now
            calls.expects_token = calls.expects_token or bool(answer.pod_token)
        calls.answered.append(now)
        return answer

    async def RenewAssignment(self, request: Any, context: Any) -> pb.RenewAssignmentResponse:
        """Records a renewal."""
        lease = self.calls.lease(request.assignment_id)
        self.calls.check("RenewAssignment", context)
        lease.check_call(self.calls.judge, "RenewAssignment", request.lease_epoch, request.lease_token)
        response = lease.renew(self.calls.judge, request)
        if lease.goes_stale and request.progress.environment_steps:
            lease.ended_at = lease.ended_at or time.monotonic()
            raise FailedPrecondition("the agent has been assigned to another pod", reason=STALE)
        return response

    async def CompleteAssignment(self, request: Any, context: Any) -> pb.CompleteAssignmentResponse:
        """Records the outcome."""
        lease = self.calls.lease(request.assignment_id)
        self.calls.check("CompleteAssignment", context)
        self.calls.check_writes("CompleteAssignment", lease, request)
        lease.completions.append((time.monotonic(), request))
        if self.calls.refuse_completion:
            self.calls.refuse_completion = False
            raise Unavailable("the examination lets this call fail once")
        return pb.CompleteAssignmentResponse()


class FakeUpdater(leaderboard_pb2_grpc.UpdaterServiceServicer):
    """Answers the calls of a pod to the leaderboard."""

    def __init__(self, calls: ExaminedCalls) -> None:
        self.calls = calls

    async def SubmitCandidate(self, request: Any, context: Any) -> leaderboard_pb2.SubmitCandidateResponse:
        """Judges a checkpoint and accepts it."""
        lease = self.calls.lease_of(request.checkpoint.agent_id)
        self.calls.check("SubmitCandidate", context)
        self.calls.check_writes("SubmitCandidate", lease, request)
        lease.submissions.append((time.monotonic(), request))
        digest = request.checkpoint.manifest_digest
        try:
            await asyncio.to_thread(
                manifests.judge_submission, self.calls.judge, self.calls.read, lease.assignment, digest
            )
        except Violated as found:
            raise InvalidArgument(found.problem, reason="ERROR_REASON_BAD_CHECKPOINT") from None
        candidate = leaderboard_pb2.Candidate(
            candidate_id=digest,
            tournament_id=lease.assignment.tournament_id,
            agent_id=lease.agent_id,
            rank=1,
            verdict=leaderboard_pb2.VERDICT_ACCEPTED,
            reason="accepted by the examination",
        )
        return leaderboard_pb2.SubmitCandidateResponse(candidate=candidate)

    async def ListExperience(self, request: Any, context: Any) -> leaderboard_pb2.ListExperienceResponse:
        """There are no other agents."""
        return leaderboard_pb2.ListExperienceResponse()

    async def PlanEvaluation(self, request: Any, context: Any) -> leaderboard_pb2.PlanEvaluationResponse:
        """Has no advice."""
        return leaderboard_pb2.PlanEvaluationResponse()

    async def SubmitSnapshot(self, request: Any, context: Any) -> leaderboard_pb2.SubmitSnapshotResponse:
        """Accepts a snapshot."""
        lease = self.calls.lease_of(request.checkpoint.agent_id)
        self.calls.check_writes("SubmitSnapshot", lease, request)
        return leaderboard_pb2.SubmitSnapshotResponse()


class FakeStore(store_pb2_grpc.StoreServiceServicer):
    """Keeps pointers in memory, and grants URLs of objects."""

    def __init__(self, calls: ExaminedCalls, objects: Objects) -> None:
        self.calls, self.objects = calls, objects
        self.pointers: dict[str, tuple[Pointer, str]] = {}

    def _lease(self, name: str, request: Any, context: Any) -> ExaminedLease:
        lease = self.calls.lease_of(request.agent_id)
        self.calls.check(name, context)
        self.calls.check_writes(name, lease, request)
        return lease

    async def GetPointer(self, request: Any, context: Any) -> store_pb2.GetPointerResponse:
        """Returns the pointer of an agent."""
        self._lease("GetPointer", request, context)
        pointer, etag = self.pointers.get(request.agent_id, (None, ""))
        return store_pb2.GetPointerResponse(pointer=pointer, etag=etag)

    async def SwapPointer(self, request: Any, context: Any) -> store_pb2.SwapPointerResponse:
        """Replaces the pointer of an agent."""
        lease = self._lease("SwapPointer", request, context)
        pointer, etag = self.pointers.get(request.agent_id, (Pointer(), ""))
        if request.etag != etag:
            raise Aborted("the pointer was changed; read it again")
        new = request.pointer.manifest_digest
        if new != pointer.manifest_digest:
            stored = self.objects.get(new) is not None
            problem = f"the pointer names the manifest {new}, which is not in the store"
            if not self.calls.judge.expect("parts-first", stored, problem):
                raise NotFound(problem)
            lease.publications.append((time.monotonic(), new))
        kept = Pointer()
        kept.CopyFrom(request.pointer)
        self.pointers[request.agent_id] = (kept, f"etag-{int(etag.rpartition('-')[2] or 0) + 1}")
        return store_pb2.SwapPointerResponse()

    async def GrantUploads(self, request: Any, context: Any) -> store_pb2.GrantUploadsResponse:
        """Grants a URL for each object."""
        self._lease("GrantUploads", request, context)
        response = store_pb2.GrantUploadsResponse()
        for file in request.files:
            response.uploads.add(digest=file.digest, url=self.objects.url + file.digest, headers=CONDITION)
        response.lifetime.FromSeconds(600)
        return response

    async def GrantReads(self, request: Any, context: Any) -> store_pb2.GrantReadsResponse:
        """Grants a URL for each object that is named."""
        response = store_pb2.GrantReadsResponse(own=True)
        for digest in [request.manifest_digest, *request.digests]:
            response.reads.add(digest=digest, url=self.objects.url + digest)
        response.lifetime.FromSeconds(600)
        return response

    async def RenewObjects(self, request: Any, context: Any) -> store_pb2.RenewObjectsResponse:
        """Answers whether objects exist."""
        self._lease("RenewObjects", request, context)
        for digest in request.digests:
            if self.objects.get(digest) is None:
                raise NotFound(f"there is no object {digest}", resource=NamedResource("object", digest))
        return store_pb2.RenewObjectsResponse()


Notify = Callable[[str], None]
