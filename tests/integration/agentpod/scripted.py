"""An orchestrator and a leaderboard that answer from a script, and the configuration of a pod that calls them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from agentpod.config import PodConfig
from agentpod.process.wiring import run_leader
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import read_manifest
from podrace.checkpoint_store.store import CheckpointStore
from podrace.errors import DeadlineExceeded, FailedPrecondition, NotFound
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.limits.config import EVERYTHING
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.telemetry import TelemetryConfig


@dataclass
class ScriptedOrchestrator(pb_grpc.OrchestratorServiceServicer):
    """Hands out a list of assignments and then drains; records the requests."""

    assignments: list[pb.Assignment] = field(default_factory=list)
    completed: list[pb.CompleteAssignmentRequest] = field(default_factory=list)
    renewals: list[pb.RenewAssignmentRequest] = field(default_factory=list)
    directive: pb.Directive.ValueType = pb.DIRECTIVE_CONTINUE
    after_steps: int = 0
    """Environment steps of the agent from which on the directive is given."""
    stale: bool = False
    running_seconds: float | None = None
    """Running time of the tournament, reported with the directive; None: not reported."""
    evaluation_epoch: int = 0
    refused: int = 0
    """How many times it answered with drain."""
    preparation: pb.Assignment | None = None
    """What the pod prepares for before it gets assignments; None: nothing."""

    acquired: int = 0
    """How many times it was asked for work."""

    async def AcquireAssignment(self, request, context):
        self.acquired += 1
        if self.preparation and not request.prepared_agent_id:
            return pb.AcquireAssignmentResponse(prepare=self.preparation)
        if self.assignments:
            self.preparation = None
            return pb.AcquireAssignmentResponse(assignment=self.assignments.pop(0))
        self.refused += 1
        return pb.AcquireAssignmentResponse(drain="nothing left")

    async def RenewAssignment(self, request, context):
        self.renewals.append(request)
        if self.stale:
            raise FailedPrecondition("handed out again", reason="ERROR_REASON_STALE_EPOCH")
        due = request.progress.environment_steps >= self.after_steps
        response = pb.RenewAssignmentResponse(
            directive=self.directive if due else pb.DIRECTIVE_CONTINUE,
            lease_duration=Duration(nanos=300_000_000),
            reason="by the script",
            evaluation_epoch=self.evaluation_epoch,
        )
        if due and self.running_seconds is not None:
            response.running_duration.FromNanoseconds(round(self.running_seconds * 1e9))
        return response

    async def CompleteAssignment(self, request, context):
        self.completed.append(request)
        return pb.CompleteAssignmentResponse()


@dataclass
class ScriptedLeaderboard(leaderboard_pb2_grpc.UpdaterServiceServicer):
    """Accepts every candidate and records its manifest."""

    store_uri: str
    manifests: list[Manifest] = field(default_factory=list)
    newest: dict[str, str] = field(default_factory=dict)
    """Digest of the last manifest of each agent."""
    refuse: int = 0
    missing: bool = False
    snapshots: list[leaderboard_pb2.SubmitSnapshotRequest] = field(default_factory=list)
    refuse_snapshots: bool = False
    plan: leaderboard_pb2.PlanEvaluationResponse = field(default_factory=leaderboard_pb2.PlanEvaluationResponse)
    no_plans: bool = False
    plans: list[leaderboard_pb2.PlanEvaluationRequest] = field(default_factory=list)

    async def SubmitSnapshot(self, request, context):
        if self.refuse_snapshots:
            raise FailedPrecondition("no snapshots here")
        self.snapshots.append(request)
        return leaderboard_pb2.SubmitSnapshotResponse()

    async def PlanEvaluation(self, request, context):
        if self.no_plans:
            raise NotFound("no such agent")
        self.plans.append(request)
        return self.plan

    async def ListExperience(self, request, context):
        sources = [
            leaderboard_pb2.ExperienceSource(agent_id=name, manifest_digest=digest)
            for name, digest in self.newest.items()
            if name != request.agent_id
        ]
        return leaderboard_pb2.ListExperienceResponse(sources=sources, sequence=len(self.manifests))

    async def SubmitCandidate(self, request, context):
        if self.refuse:
            self.refuse -= 1
            raise DeadlineExceeded("away")
        if self.missing:
            raise NotFound("no such agent")
        manifest = read_manifest(open_store(self.store_uri), request.checkpoint.manifest_digest)
        self.manifests.append(manifest)
        self.newest[manifest.agent_id] = request.checkpoint.manifest_digest
        candidate = leaderboard_pb2.Candidate(agent_id=manifest.agent_id, score=manifest.evaluation.mean_return, rank=1)
        return leaderboard_pb2.SubmitCandidateResponse(candidate=candidate)


@dataclass
class Mesh:
    """The services and the folder of a pod."""

    folder: Path
    orchestrator: ScriptedOrchestrator
    leaderboard: ScriptedLeaderboard

    def pod_config(self, layout: str, **changes) -> PodConfig:
        return PodConfig(
            **{
                "pod_id": f"test-{self.folder.name.lower()}",
                "orchestrator": f"unix:{self.folder}/o.sock",
                "leaderboard": f"unix:{self.folder}/l.sock",
                "store": self.leaderboard.store_uri,
                "folder": self.folder / "pod",
                "layout": layout,
                "orphan_seconds": 5.0,
                "telemetry": TelemetryConfig(metrics_listen="", log_level="warning"),
                "allow": EVERYTHING,
                **changes,
            }
        )


async def run(mesh: Mesh, *assignments: pb.Assignment, layout: str = "fused", **changes) -> int:
    """Runs the leader of a pod in this process until the assignments are complete; returns its exit code."""
    mesh.orchestrator.assignments.extend(assignments)
    config = mesh.pod_config(layout, **changes)
    config.folder.mkdir(exist_ok=True, mode=0o700)
    return await run_leader(config)


def only_completion(mesh: Mesh) -> pb.CompleteAssignmentRequest:
    (completed,) = mesh.orchestrator.completed
    return completed


def store_of(mesh: Mesh) -> CheckpointStore:
    return open_store(mesh.leaderboard.store_uri)


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Runs the event loop until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
