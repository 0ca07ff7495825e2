"""An orchestrator and a leaderboard that answer from a script, and what a pod needs to talk to them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from agentpod.config import PodConfig
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import read_manifest
from podrace.errors import DeadlineExceeded, FailedPrecondition, NotFound
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.telemetry import TelemetryConfig


@dataclass
class ScriptedOrchestrator(pb_grpc.OrchestratorServiceServicer):
    """Hands out a list of assignments, then says drain; remembers what it is told."""

    assignments: list[pb.Assignment] = field(default_factory=list)
    completed: list[pb.CompleteAssignmentRequest] = field(default_factory=list)
    renewals: list[pb.RenewAssignmentRequest] = field(default_factory=list)
    directive: pb.Directive.ValueType = pb.DIRECTIVE_CONTINUE
    after_steps: int = 0
    """The directive is given once the agent has taken so many."""
    stale: bool = False
    running_seconds: float | None = None
    """What a renewal says of the tournament's clock; None: nothing."""
    refused: int = 0
    """How often it has said drain."""

    async def AcquireAssignment(self, request, context):
        if self.assignments:
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
            reason="the script says so",
        )
        if due and self.running_seconds is not None:
            response.running_duration.FromNanoseconds(round(self.running_seconds * 1e9))
        return response

    async def CompleteAssignment(self, request, context):
        self.completed.append(request)
        return pb.CompleteAssignmentResponse()


@dataclass
class ScriptedLeaderboard(leaderboard_pb2_grpc.UpdaterServiceServicer):
    """Accepts every candidate and remembers its manifest."""

    store_uri: str
    manifests: list[Manifest] = field(default_factory=list)
    refuse: int = 0
    missing: bool = False
    snapshots: list[leaderboard_pb2.SubmitSnapshotRequest] = field(default_factory=list)
    refuse_snapshots: bool = False

    async def SubmitSnapshot(self, request, context):
        if self.refuse_snapshots:
            raise FailedPrecondition("no snapshots here")
        self.snapshots.append(request)
        return leaderboard_pb2.SubmitSnapshotResponse()

    async def SubmitCandidate(self, request, context):
        if self.refuse:
            self.refuse -= 1
            raise DeadlineExceeded("away")
        if self.missing:
            raise NotFound("never heard of it")
        manifest = read_manifest(open_store(self.store_uri), request.checkpoint.manifest_digest)
        self.manifests.append(manifest)
        candidate = leaderboard_pb2.Candidate(agent_id=manifest.agent_id, score=manifest.evaluation.mean_return, rank=1)
        return leaderboard_pb2.SubmitCandidateResponse(candidate=candidate)


@dataclass
class Mesh:
    """What a pod needs to be."""

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
                **changes,
            }
        )


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Lets the loop run until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
