"""A mesh with an external pod: the pod trains for two tournaments in a row, then stops after a signal."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from podrace import rpc
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.specification.resolve import parse
from podrace.tournament.v1 import tournament_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
DEADLINE_SECONDS = 60.0


class Processes:
    """The processes of one mesh in a temporary folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.orchestrator, self.leaderboard = f"unix:{folder}/o.sock", f"unix:{folder}/l.sock"
        self.shared = {"telemetry.log_format": "json", "store": f"folder://{folder}/store"}

    def start(self, *command: str, **settings: Any) -> "subprocess.Popen[bytes]":
        pairs = [f"{key.replace('__', '.')}={value}" for key, value in (self.shared | settings).items()]
        arguments = [argument for pair in pairs for argument in ("--set", pair)]
        log = self._stack.enter_context((self.folder / f"{command[0]}.log").open("wb"))
        process = subprocess.Popen([sys.executable, "-m", *command, *arguments], stderr=log)
        self._stack.callback(process.wait, DEADLINE_SECONDS)
        self._stack.callback(process.terminate)
        return process

    def log_entry(self, program: str, event: str) -> dict[str, Any]:
        lines = map(json.loads, (self.folder / f"{program}.log").read_text().splitlines())
        return next(line for line in lines if line["event"] == event)


@pytest.fixture
def mesh() -> Iterator[Processes]:
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name, ExitStack() as stack:
        folder = Path(name)
        made = Processes(folder, stack)
        (folder / "pod").mkdir(mode=0o700)
        made.start("leaderboard", server__listen=made.leaderboard, database=folder / "l.sqlite")
        made.start(
            "orchestrator",
            server__listen=made.orchestrator,
            database=folder / "o.sqlite",
            leaderboard=made.leaderboard,
            runtime_folder=folder,
            log_folder=folder / "logs",
            launcher="external",
            launchers__external__metrics_port=9090,
            lease_duration_seconds=1,
        )
        yield made


async def trained(stub: Any, number: int) -> pb.WatchTournamentResponse:
    """Runs a short tournament and returns its last update."""
    values = {
        "environment": {"id": "cartpole", "count": 16},
        "algorithms": {"ppo": {}},
        "objective": {"environment_steps": 20_000},
        "evaluation": {"episodes": 4},
    }
    request = pb.CreateTournamentRequest(request_id=f"r{number}", spec=parse(values, source="test"))
    name = (await rpc.call(stub.CreateTournament, request, deadline_seconds=10)).tournament.tournament_id
    watch = stub.WatchTournament(pb.WatchTournamentRequest(tournament_id=name), timeout=DEADLINE_SECONDS)
    return [message async for message in watch][-1]


async def test_an_external_pod_serves_several_tournaments_and_stops_after_a_signal(mesh: Processes) -> None:
    await rpc.wait_until_serving(mesh.orchestrator, deadline_seconds=DEADLINE_SECONDS)
    pod = mesh.start(
        "agentpod",
        "learner",
        pod_id="",
        standing="true",
        orchestrator=mesh.orchestrator,
        leaderboard=mesh.leaderboard,
        folder=mesh.folder / "pod",
    )
    async with rpc.connect(mesh.orchestrator, pb.DESCRIPTOR) as channel:
        stub = pb_grpc.OrchestratorServiceStub(channel)
        for number in range(2):
            ended = await trained(stub, number)
            assert ended.tournament.state == tournament_pb2.TOURNAMENT_STATE_COMPLETED, ended.tournament.reason
            assert ended.tournament.environment_steps >= 20_000
        assert pod.poll() is None
    page = f"http://{mesh.log_entry('orchestrator', 'serving')['metrics']}/pods"
    answer = await asyncio.to_thread(lambda: urllib.request.urlopen(page, timeout=5).read())
    # Whether the pod is still listed depends on timing.
    assert all(group["labels"]["role"] == "learner" for group in json.loads(answer))
    pod.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(pod.wait, DEADLINE_SECONDS) == 0
