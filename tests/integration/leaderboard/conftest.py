import asyncio
import itertools
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from policy_files import manifest_of, policy_file, steps_behind

from leaderboard.checkpoints.deletion import TournamentDeletion
from leaderboard.generator import Generator
from leaderboard.service import services
from leaderboard.snapshots import SnapshotRecorder
from leaderboard.store.schema import DATABASE_FORMAT
from leaderboard.store_access.access import StoreAccess
from leaderboard.submission_watch import SubmissionWatch
from leaderboard.updater import Updater
from podrace import rpc
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.checkpoint_store.folder import FolderStore
from podrace.checkpoint_store.publish import claim, publish
from podrace.database import Database
from podrace.leaderboard.v1 import leaderboard_pb2 as pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as pb_grpc
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

TOURNAMENT = "cartpole-abc123"
NOW = 1_700_000_000.0
DEADLINE_SECONDS = 10.0
START_SECONDS = 20.0
Process = asyncio.subprocess.Process
Start = Callable[..., Awaitable[Process]]


@dataclass
class Client:
    """An orchestrator, some learners and a person, as far as a leaderboard at an address is concerned."""

    address: str
    store: FolderStore
    spec: TournamentSpec
    counter: Iterator[int] = field(default_factory=itertools.count)
    times: Iterator[int] = field(default_factory=lambda: itertools.count(int(NOW)))

    def __post_init__(self) -> None:
        self.channel = rpc.connect(self.address, pb.DESCRIPTOR)
        self.reading: Any = pb_grpc.LeaderboardServiceStub(self.channel)
        self.updater: Any = pb_grpc.UpdaterServiceStub(self.channel)
        self.generator: Any = pb_grpc.GeneratorServiceStub(self.channel)

    async def call(self, method: Any, request: Any) -> Any:
        return await rpc.call(method, request, deadline_seconds=DEADLINE_SECONDS)

    async def generate(self, number: int, tournament_id: str = TOURNAMENT) -> pb.Agent:
        request = pb.GenerateAgentRequest(
            request_id=f"{tournament_id}-a{number}", tournament_id=tournament_id, spec=self.spec, number=number
        )
        agent: pb.Agent = (await self.call(self.generator.GenerateAgent, request)).agent
        return agent

    async def register(self, *tournament_ids: str) -> None:
        """Makes tournaments known, as the orchestrator does when they are created."""
        named = [pb.RegisteredTournament(tournament_id=name) for name in tournament_ids]
        await self.call(self.updater.RegisterTournaments, pb.RegisterTournamentsRequest(tournaments=named))

    def publish(self, agent: pb.Agent, score: float) -> pb.SubmitCandidateRequest:
        """Publishes a checkpoint and returns the request that submits it; blocks."""
        policy = policy_file(agent, f"{agent.agent_id} {score} {next(self.counter)}")
        manifest = manifest_of(agent, policy, score, lineage_environment_steps=steps_behind(self.store, agent) + 1000)
        manifest.starting_manifest_digest = agent.starting_checkpoint.manifest_digest
        manifest.spec.update(json_format.MessageToDict(self.spec, preserving_proto_field_name=True))
        manifest.publish_time.FromSeconds(next(self.times))
        claim(self.store, agent.agent_id, 1)
        name = publish(self.store, agent.agent_id, 1, {"policy": policy}, manifest)
        checkpoint = Checkpoint(agent_id=agent.agent_id, manifest_digest=name)
        return pb.SubmitCandidateRequest(request_id=name, checkpoint=checkpoint, lease_epoch=1)

    async def submit(self, agent: pb.Agent, score: float) -> pb.Candidate:
        response = await self.call(self.updater.SubmitCandidate, self.publish(agent, score))
        candidate: pb.Candidate = response.candidate
        return candidate

    async def candidates(self, **request: Any) -> list[pb.Candidate]:
        """All pages of a list."""
        found: list[pb.Candidate] = []
        asked = pb.ListCandidatesRequest(tournament_id=TOURNAMENT, **request)
        while True:
            page = await self.call(self.reading.ListCandidates, asked)
            found += page.candidates
            asked.page_token = page.next_page_token
            if not asked.page_token:
                return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, because Linux limits the paths of sockets."""
    path = Path(tempfile.mkdtemp(prefix="lb-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def store(folder: Path) -> FolderStore:
    return FolderStore(folder / "store")


@pytest.fixture
def spec() -> TournamentSpec:
    values = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 1_000_000},
        "evolution": {"strategy": "tournament", "initial_agents": 2, "fresh_probability": 0.0, "board_capacity": 4},
    }
    return specification.resolve(specification.parse(values, source="test"))


@pytest.fixture
def make_client(store: FolderStore, spec: TournamentSpec) -> Callable[[str], Client]:
    return lambda address: Client(address, store, spec)


@pytest.fixture
def watch() -> SubmissionWatch:
    return SubmissionWatch()


@pytest.fixture
async def client(
    folder: Path, store: FolderStore, watch: SubmissionWatch, make_client: Callable[[str], Client]
) -> AsyncIterator[Client]:
    """A client of a leaderboard that serves in this process on a Unix socket."""
    state = Database.open(folder / "leaderboard.sqlite", DATABASE_FORMAT, lambda: NOW)
    updater = Updater(state, store, watch)
    config = rpc.ServerConfig(listen=f"unix:{folder}/leaderboard.sock", grace_seconds=0.5)
    access = StoreAccess(state, store, renew_after_seconds=1800.0)
    generator = Generator(state)
    deletion = TournamentDeletion(state, store, generator.owners, watch)
    served = services(state, watch, updater, generator, SnapshotRecorder(state, store), access, deletion=deletion)
    server = await rpc.Server.start(config, served)
    client = make_client(server.address)
    yield client
    await client.channel.close()
    await watch.close()
    await server.drain()
    state.close()


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[Start]:
    """Starts leaderboards in the folder; keyword arguments are settings, dots written as two underscores."""
    processes: list[Process] = []

    async def start_one(**settings: object) -> Process:
        values: dict[str, object] = {
            "server__listen": f"unix:{folder}/leaderboard.sock",
            "database": folder / "leaderboard.sqlite",
            "store": folder / "store",
        }
        overrides = [
            argument
            for key, value in (values | settings).items()
            for argument in ("--set", f"{key.replace('__', '.')}={value}")
        ]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "leaderboard", *overrides, stderr=asyncio.subprocess.PIPE
        )
        processes.append(process)
        return process

    yield start_one
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
def connect(folder: Path, spec: TournamentSpec, make_client: Callable[..., Any]) -> Callable[[], Awaitable[Any]]:
    async def connect_when_serving() -> Any:
        address = f"unix:{folder}/leaderboard.sock"
        await rpc.wait_until_serving(address, deadline_seconds=START_SECONDS)
        return make_client(address)

    return connect_when_serving
