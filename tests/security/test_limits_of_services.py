"""Real services apply the limits of their operators, and send no token to addresses that specifications name.

The first test ran the command on the services that README starts, before there were limits.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from leaderboard.config import PluginConfig
from leaderboard.plugins.plugin_pool import PROPOSAL, PluginPool, PreparedRequest
from podrace import rpc
from podrace.access.guard import Guard
from podrace.errors import InvalidArgument
from podrace.evolution.v1 import evolution_pb2, evolution_pb2_grpc
from podrace.limits.config import Allowed
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.rpc import Server, ServerConfig, Service
from podrace.simulator.v1 import simulator_pb2, simulator_pb2_grpc
from podrace.specification.resolve import parse
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, TournamentSpec
from simulators import make

REPOSITORY = Path(__file__).parents[2]
SECONDS = 60.0
CREATED = "was-here"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def orchestrator(folder: Path, **settings: Any) -> AsyncIterator[Any]:
    """Runs `python -m orchestrator` with a launcher that starts no pods; yields a stub."""
    address = f"unix:{folder}/o.sock"
    keys = {
        "server.listen": address,
        "telemetry.metrics_listen": "",
        "database": folder / "o.sqlite",
        "leaderboard": f"unix:{folder}/l.sock",
        "store": f"folder://{folder}/store",
        "runtime_folder": folder,
        "log_folder": folder / "logs",
        "launcher": "external",
        **settings,
    }
    arguments = [text for key, value in keys.items() for text in ("--set", f"{key}={value}")]
    environment = os.environ | {"PODRACE_TOKEN_FILE": str(folder / "token"), "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen([sys.executable, "-m", "orchestrator", *arguments], cwd=folder, env=environment)
    try:
        while not (folder / "o.sock").exists():
            assert process.poll() is None
            await asyncio.sleep(0.02)
        await rpc.wait_until_serving(address, deadline_seconds=SECONDS)
        async with rpc.connect(address, pb.DESCRIPTOR) as channel:
            yield pb_grpc.OrchestratorServiceStub(channel)
    finally:
        process.terminate()
        process.wait(SECONDS)


def popen() -> TournamentSpec:
    """The specification of the attack: its environment is a command."""
    options = {"args": ["touch", CREATED]}
    environment = {"id": "python:subprocess:Popen", "options": options}
    return parse(
        {"environment": environment, "algorithms": {"ppo": {}}, "objective": {"target_return": 1.0}}, source="test"
    )


async def create(stub: Any, spec: TournamentSpec) -> Any:
    request = pb.CreateTournamentRequest(request_id=os.urandom(8).hex(), spec=spec)
    return await rpc.call(stub.CreateTournament, request, deadline_seconds=SECONDS)


async def test_a_standing_orchestrator_runs_no_command_that_a_specification_names(folder: Path) -> None:
    async with orchestrator(folder) as stub:
        with pytest.raises(InvalidArgument) as caught:
            await create(stub, popen())
        assert caught.value.message == (
            "environment.id = 'python:subprocess:Popen': module 'subprocess' is not allowed here; the setting of its"
            " operator is allow.modules"
        )
        listed = await rpc.call(stub.ListTournaments, pb.ListTournamentsRequest(), deadline_seconds=SECONDS)
        assert not listed.tournaments
    assert not (folder / CREATED).exists()


async def test_the_operator_can_allow_it_and_take_it_back(folder: Path) -> None:
    async with orchestrator(folder, **{"allow.modules": "subprocess"}) as stub:
        made = (await create(stub, popen())).tournament
        cancel = pb.CancelTournamentRequest(request_id="c", tournament_id=made.tournament_id)
        await rpc.call(stub.CancelTournament, cancel, deadline_seconds=SECONDS)
    (folder / "o.sock").unlink(missing_ok=True)
    async with orchestrator(folder) as stub:
        resume = pb.ResumeTournamentRequest(request_id="r", tournament_id=made.tournament_id)
        with pytest.raises(InvalidArgument, match=r"^environment\.id = 'python:subprocess:Popen'"):
            await rpc.call(stub.ResumeTournament, resume, deadline_seconds=SECONDS)


# --- services of third parties ---------------------------------------------------------------------------------------


class Recorder(evolution_pb2_grpc.EvolutionServiceServicer, simulator_pb2_grpc.SimulatorServiceServicer):
    """A service of a third party that keeps what its callers send besides the request."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def _keep(self, context: Any) -> None:
        self.keys += [key for key, _ in context.invocation_metadata()]

    async def ProposeAgent(self, request: Any, context: Any) -> evolution_pb2.ProposeAgentResponse:
        self._keep(context)
        return evolution_pb2.ProposeAgentResponse()

    async def StreamSteps(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        self._keep(context)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        yield


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A token of the user, as the command and external pods find it."""
    (tmp_path / "token").write_text("hunter2")
    monkeypatch.setenv("PODRACE_TOKEN", "hunter2")
    monkeypatch.setenv("PODRACE_TOKEN_FILE", str(tmp_path / "token"))


async def test_no_token_is_sent_to_an_address_of_a_specification(folder: Path, token: None) -> None:
    recorder = Recorder()
    files = (
        (evolution_pb2, "EvolutionService", evolution_pb2_grpc.add_EvolutionServiceServicer_to_server),
        (simulator_pb2, "SimulatorService", simulator_pb2_grpc.add_SimulatorServiceServicer_to_server),
    )
    services = [Service(module.DESCRIPTOR.services_by_name[name], add, recorder) for module, name, add in files]
    config = ServerConfig(listen="127.0.0.1:0", grace_seconds=0.0)
    server = await Server.start(config, services, guard=Guard.of_anyone())
    allowed = Allowed(services=(server.address,))
    plugins = PluginPool(PluginConfig(), folder, allowed)
    evolution = EvolutionSpec(generator=f"grpc://{server.address}")
    evolution.answer_duration.FromSeconds(2)
    try:

        async def prepare() -> PreparedRequest[Any]:
            return PreparedRequest(evolution_pb2.ProposeAgentRequest(tournament_id="t"), lambda _: None)

        await plugins.call(PROPOSAL, evolution, prepare)
        called = len(recorder.keys)
        with pytest.raises(InvalidArgument):
            await asyncio.to_thread(make, f"grpc://{server.address}", 1, {"id": "x"}, allowed=allowed)
        assert 0 < called < len(recorder.keys)
        assert "authorization" not in recorder.keys
    finally:
        await plugins.close()
        await server.drain()


async def test_where_the_operator_demands_tls_a_service_without_it_is_not_called(folder: Path) -> None:
    allowed = Allowed(services=("127.0.0.1:*",), services_need_tls=True)
    with pytest.raises(InvalidArgument, match=r"by TLS only here \(allow\.services_need_tls\)"):
        make("grpc://127.0.0.1:1", 1, {"id": "x"}, allowed=allowed)
    plugins = PluginPool(PluginConfig(), folder, allowed)
    evolution = EvolutionSpec(generator="grpc://127.0.0.1:1")
    evolution.answer_duration.FromSeconds(1)
    try:

        async def prepare() -> PreparedRequest[Any]:
            raise AssertionError("it must not be called")

        reply = await plugins.call(PROPOSAL, evolution, prepare)
        assert "by TLS only here" in reply.problem
    finally:
        await plugins.close()
