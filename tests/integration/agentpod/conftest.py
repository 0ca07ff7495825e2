"""A scripted orchestrator and leaderboard around one pod."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from fork_servers import ForkServerProcess, RunningForkServer, connected, running_fork_server
from google.protobuf.duration_pb2 import Duration
from scripted import Mesh, ScriptedLeaderboard, ScriptedOrchestrator

from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.rpc import Server, ServerConfig, Service
from podrace.specification.resolve import parse, resolve
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder directly under /tmp, because Linux limits socket paths to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def shared_fork_server(warm_python: str) -> Iterator[RunningForkServer]:
    """One fork server for all tests of this process, because importing torch takes seconds."""
    folder = tempfile.TemporaryDirectory(prefix="pr", dir="/tmp")
    with folder as name, running_fork_server(Path(name), warm_python) as server:
        yield server


@pytest.fixture
async def fork_server(shared_fork_server: RunningForkServer, short_folder: Path) -> AsyncIterator[ForkServerProcess]:
    """The shared fork server; the pods of a test exit with the test."""
    async with connected(shared_fork_server, short_folder) as connection:
        yield connection


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
        (algorithm,) = spec.algorithms
        agent = leaderboard_pb2.Agent(
            agent_id=f"t-a{number}",
            tournament_id="t",
            number=number,
            algorithm=algorithm,
            seed=7 + number,
            **agent_fields,
        )
        for name, hyperparameter in spec.algorithms[algorithm].hyperparameters.items():
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
