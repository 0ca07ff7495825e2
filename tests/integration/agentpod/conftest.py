"""A mesh in miniature around one pod: a scripted orchestrator and leaderboard, and a folder store."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from agentpod.config import PodConfig
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoints import open_store
from podrace.checkpoints.publish import read_manifest
from podrace.errors import FailedPrecondition
from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.rpc import Server, ServerConfig, Service
from podrace.spec import parse, resolve
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@dataclass
class ScriptedOrchestrator(pb_grpc.OrchestratorServiceServicer):
    """Hands out a list of assignments, then says drain; remembers what it is told."""

    assignments: list[pb.Assignment] = field(default_factory=list)
    completed: list[pb.CompleteAssignmentRequest] = field(default_factory=list)
    renewals: list[pb.RenewAssignmentRequest] = field(default_factory=list)
    directive: pb.Directive.ValueType = pb.DIRECTIVE_CONTINUE
    stale: bool = False

    async def AcquireAssignment(self, request, context):
        if self.assignments:
            return pb.AcquireAssignmentResponse(assignment=self.assignments.pop(0))
        return pb.AcquireAssignmentResponse(drain="nothing left")

    async def RenewAssignment(self, request, context):
        self.renewals.append(request)
        if self.stale:
            raise FailedPrecondition("handed out again", reason="ERROR_REASON_STALE_EPOCH")
        return pb.RenewAssignmentResponse(
            directive=self.directive, lease_duration=Duration(nanos=300_000_000), reason="the script says so"
        )

    async def CompleteAssignment(self, request, context):
        self.completed.append(request)
        return pb.CompleteAssignmentResponse()


@dataclass
class ScriptedLeaderboard(leaderboard_pb2_grpc.UpdaterServiceServicer):
    """Accepts every candidate and remembers its manifest."""

    store_uri: str
    manifests: list[Manifest] = field(default_factory=list)

    async def SubmitCandidate(self, request, context):
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


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Under /tmp itself: paths of sockets are limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
async def mesh(short_folder: Path) -> AsyncIterator[Mesh]:
    orchestrator = ScriptedOrchestrator()
    leaderboard = ScriptedLeaderboard(f"folder://{short_folder}/store")
    servers = [
        await Server.start(
            ServerConfig(listen=f"unix:{short_folder}/o.sock", grace_seconds=0),
            [
                Service(
                    pb.DESCRIPTOR.services_by_name["OrchestratorService"],
                    pb_grpc.add_OrchestratorServiceServicer_to_server,
                    orchestrator,
                )
            ],
        ),
        await Server.start(
            ServerConfig(listen=f"unix:{short_folder}/l.sock", grace_seconds=0),
            [
                Service(
                    leaderboard_pb2.DESCRIPTOR.services_by_name["UpdaterService"],
                    leaderboard_pb2_grpc.add_UpdaterServiceServicer_to_server,
                    leaderboard,
                )
            ],
        ),
    ]
    yield Mesh(short_folder, orchestrator, leaderboard)
    for server in servers:
        await server.drain()


@pytest.fixture
def make_spec() -> Callable[..., TournamentSpec]:
    def make(environment: str = "CartPole-v1", steps: int = 4096, **sections) -> TournamentSpec:
        values = {
            "environment": {"id": environment, "count": 8},
            "algorithms": {"ppo": {"hyperparameters": {"horizon": 64, "minibatch_size": 128, "hidden_sizes": [16]}}},
            "objective": {"environment_steps": 10**9},
            "assignment": {"environment_steps": steps},
            "evaluation": {"episodes": 4},
        }
        return resolve(parse({**values, **sections}, source="test"))

    return make


@pytest.fixture
def make_assignment() -> Callable[..., pb.Assignment]:
    def make(spec: TournamentSpec, number: int = 0, epoch: int = 1, **agent_fields) -> pb.Assignment:
        hyperparameters = spec.algorithms["ppo"].hyperparameters
        agent = leaderboard_pb2.Agent(
            agent_id=f"t-a{number}", tournament_id="t", number=number, algorithm="ppo", seed=7 + number, **agent_fields
        )
        for name, hyperparameter in hyperparameters.items():
            agent.hyperparameters.fields[name].CopyFrom(hyperparameter.value)
        return pb.Assignment(
            assignment_id=f"t-a{number}.{epoch}",
            tournament_id="t",
            spec=spec,
            lease_epoch=epoch,
            lease_duration=Duration(nanos=300_000_000),
            train=agent,
        )

    return make


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Lets the loop run until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
