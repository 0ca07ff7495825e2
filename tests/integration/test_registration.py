"""Tournaments of a real orchestrator at a real leaderboard, which is killed, replaced, and asked too early."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from podrace import rpc
from podrace.errors import NotFound
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.leaderboard.v1 import leaderboard_pb2_grpc as board_grpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.resolve import parse

pytestmark = pytest.mark.cold
"""Cold: a service is killed, and has exited before it is started again."""
START_SECONDS = 60.0
SECONDS = 20.0


class Services:
    """An orchestrator that starts no pods, and a leaderboard, as processes on Unix sockets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def address(self, name: str) -> str:
        return f"unix:{self.folder}/{name}.sock"

    async def start(self, name: str, *own: str) -> None:
        settings = [f"server.listen={self.address(name)}", f"database={self.folder}/{name}.sqlite", *own]
        settings.append(f"store=folder://{self.folder}/store")
        command = [sys.executable, "-m", name, *(part for one in settings for part in ("--set", one))]
        with (self.folder / f"{name}.log").open("a") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)
        await rpc.wait_until_serving(self.address(name), deadline_seconds=START_SECONDS)

    async def start_orchestrator(self) -> None:
        own = (f"leaderboard={self.address('leaderboard')}", f"runtime_folder={self.folder}/run", "launcher=external")
        await self.start("orchestrator", *own)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait(SECONDS)

    async def create(self, request_id: str) -> str:
        values = {"environment": {"id": "CartPole-v1"}, "objective": {"environment_steps": 1000}}
        spec = parse(values | {"algorithms": {"ppo": {}}}, source="test")
        request = pb.CreateTournamentRequest(request_id=request_id, spec=spec)
        return str((await self.call("CreateTournament", request)).tournament.tournament_id)

    async def call(self, method: str, request: Any) -> Any:
        board = method in board_pb.DESCRIPTOR.services_by_name["LeaderboardService"].methods_by_name
        stub: Any = board_grpc.LeaderboardServiceStub if board else pb_grpc.OrchestratorServiceStub
        async with rpc.connect(self.address("leaderboard" if board else "orchestrator")) as channel:
            return await rpc.call(getattr(stub(channel), method), request, deadline_seconds=SECONDS)

    async def board(self, name: str) -> list[board_pb.Candidate]:
        return list((await self.call("ListCandidates", board_pb.ListCandidatesRequest(tournament_id=name))).candidates)

    async def until_known(self, name: str) -> None:
        """Reads the board until the leaderboard knows the tournament."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    assert await self.board(name) == []
                except NotFound:
                    continue
                return


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rg-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def services(folder: Path) -> AsyncIterator[Services]:
    started = Services(folder)
    yield started
    for name in list(started.running):
        started.kill(name)


async def test_a_tournament_is_known_from_its_creation_to_its_deletion(services: Services) -> None:
    await services.start("leaderboard")
    await services.start_orchestrator()
    name = await services.create("first")
    assert await services.board(name) == []
    with pytest.raises(NotFound, match=f"unknown tournament 'none-abcdef'; known: {name}"):
        await services.board("none-abcdef")
    await services.call("CancelTournament", pb.CancelTournamentRequest(request_id="c", tournament_id=name))
    assert await services.board(name) == []
    await services.call("DeleteTournament", pb.DeleteTournamentRequest(tournament_id=name))
    for method, request in (
        ("ListCandidates", board_pb.ListCandidatesRequest(tournament_id=name)),
        ("GetTournament", pb.GetTournamentRequest(tournament_id=name)),
    ):
        with pytest.raises(NotFound):
            await services.call(method, request)


async def test_a_leaderboard_that_was_down_or_lost_its_database_learns_the_tournaments(services: Services) -> None:
    await services.start("leaderboard")
    await services.start_orchestrator()
    first = await services.create("first")
    services.kill("leaderboard")
    second = await services.create("second")
    for path in services.folder.glob("leaderboard.sqlite*"):
        path.unlink()
    await services.start("leaderboard")
    for name in (first, second):
        await services.until_known(name)
    services.kill("orchestrator")
    services.kill("leaderboard")
    await services.start("leaderboard")
    for name in (first, second):
        assert await services.board(name) == []
