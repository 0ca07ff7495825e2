"""Tests that a whole pod trains and is resumed without the keys of the store, by the grants of a leaderboard."""

import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import weed
from google.protobuf.duration_pb2 import Duration
from scripted import ScriptedOrchestrator

from agentpod.config import PodConfig
from agentpod.process.wiring import run_leader
from leaderboard.generator import Generator
from leaderboard.service import services
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store import records
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store_access.access import StoreAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace.checkpoint_store import open_store
from podrace.checkpoint_store.publish import fetch_latest
from podrace.checkpoint_store.store import CheckpointStore
from podrace.database import Database
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, GenerateAgentRequest
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.rpc import Server, ServerConfig, Service
from podrace.specification.resolve import parse, resolve
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "cartpole-x1"
VALUES = {
    "environment": {"id": "cartpole", "count": 8},
    "algorithms": {"dqn": {"hyperparameters": {"hidden_sizes": [16], "replay_capacity": 4096, "warmup_steps": 512}}},
    "objective": {"environment_steps": 10**9},
    "assignment": {"environment_steps": 8192},
    "evaluation": {"episodes": 4},
}


@pytest.fixture(scope="module")
def server() -> Iterator[weed.S3Server]:
    if weed.binary() is None:
        pytest.skip(weed.MISSING)
    with weed.running_server() as running:
        yield running


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pk-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def store(server: weed.S3Server, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    """The store with its keys, which no process of a pod finds in its environment."""
    uri = server.uri(f"test/{uuid.uuid4().hex[:12]}")
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    opened = open_store(uri)
    for name in server.environ:
        monkeypatch.delenv(name)
    return opened


@pytest.fixture
async def state(folder: Path, store: CheckpointStore) -> AsyncIterator[Database]:
    """The database of a leaderboard that serves on a socket."""
    state = Database.open(folder / "l.sqlite", DATABASE_FORMAT, lambda: 1_700_000_000.0)
    watch, access = SubmissionWatch(), StoreAccess(state, store, renew_after_seconds=1800.0)
    updater, generator = Updater(state, store, watch), Generator(state)
    served = services(state, watch, updater, generator, SnapshotRecorder(state, store), access)
    running = await Server.start(ServerConfig(listen=f"unix:{folder}/l.sock", grace_seconds=0), served)
    yield state
    await watch.close()
    await running.drain()
    await updater.close()
    state.close()


async def generated(state: Database, spec: TournamentSpec) -> Agent:
    request = GenerateAgentRequest(request_id="r", tournament_id=TOURNAMENT, spec=spec, number=0)
    agent = await Generator(state).generate(request)
    assert isinstance(agent, Agent)
    return agent


async def run_pod(folder: Path, uri: str, assignment: pb.Assignment, **script: Any) -> list[Any]:
    """Runs a pod until the assignment is complete; returns the outcome."""
    orchestrator = ScriptedOrchestrator(assignments=[assignment], **script)
    added = pb_grpc.add_OrchestratorServiceServicer_to_server
    service = Service(pb.DESCRIPTOR.services_by_name["OrchestratorService"], added, orchestrator)
    running = await Server.start(ServerConfig(listen=f"unix:{folder}/o.sock", grace_seconds=0), [service])
    (folder / "pod").mkdir(mode=0o700, exist_ok=True)
    config = PodConfig(
        pod_id="granted",
        orchestrator=f"unix:{folder}/o.sock",
        leaderboard=f"unix:{folder}/l.sock",
        store=uri,
        store_access="granted",
        folder=folder / "pod",
        orphan_seconds=5.0,
        telemetry=TelemetryConfig(metrics_listen="", log_level="warning"),
    )
    assert await run_leader(config) == 0
    await running.drain()
    return [completed.outcome for completed in orchestrator.completed]


def assignment(agent: Agent, spec: TournamentSpec, lease_epoch: int) -> pb.Assignment:
    return pb.Assignment(
        assignment_id=f"{agent.agent_id}.{lease_epoch}",
        tournament_id=TOURNAMENT,
        spec=spec,
        lease_epoch=lease_epoch,
        lease_duration=Duration(nanos=300_000_000),
        train=agent,
    )


async def test_a_pod_without_keys_trains_and_another_one_resumes_the_agent(
    folder: Path, store: CheckpointStore, state: Database
) -> None:
    spec = resolve(parse(VALUES, source="test"))
    agent = await generated(state, spec)
    drained = {"directive": pb.DIRECTIVE_DRAIN, "after_steps": 512}
    assert await run_pod(folder, store.uri, assignment(agent, spec, 1), **drained) == [pb.OUTCOME_DRAINED]
    first = fetch_latest(store.within(TOURNAMENT), agent.agent_id)
    assert first is not None
    assert await run_pod(folder, store.uri, assignment(agent, spec, 2)) == [pb.OUTCOME_FINISHED]
    latest = fetch_latest(store.within(TOURNAMENT), agent.agent_id)
    assert latest is not None
    assert latest.manifest.lease_epoch == 2
    assert latest.manifest.environment_steps > first.manifest.environment_steps > 0
    assert latest.manifest.replay_steps > 0
    candidates = await state.transact(records.list_candidates, TOURNAMENT)
    assert latest.manifest_digest in {candidate.candidate_id for candidate in candidates}
    probes = {stored.digest for stored in store.list_objects()} - {
        stored.digest for stored in store.within(TOURNAMENT).list_objects()
    }
    assert len(probes) == 1, "all other objects are in the folder of the tournament"
