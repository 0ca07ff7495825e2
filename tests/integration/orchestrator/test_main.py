"""Tests the service as a separate process, with pods that are processes, and kills it in several ways."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from podrace import rpc
from podrace.backup.copies import Backups
from podrace.checkpoint_store import open_store
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from podrace.processes import lifeline
from podrace.tournament.v1 import tournament_pb2

ROOT = Path(__file__).parents[3]
STAND_IN = Path(__file__).parent / "stand_in"
TIMEOUT_SECONDS = 20.0
RUNNING = tournament_pb2.TOURNAMENT_STATE_RUNNING
CANCELLED = tournament_pb2.TOURNAMENT_STATE_CANCELLED


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """Waits until a condition returns a true value, and returns that value."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        found = await condition()
        if found:
            return found
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0.02)


class Service:
    """Runs `python -m orchestrator` in a separate folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = {
            "server.listen": f"unix:{folder}/o.sock",
            "telemetry.metrics_listen": "",
            "database": folder / "o.sqlite",
            "leaderboard": f"unix:{folder}/l.sock",
            "store": "sleepers",
            "runtime_folder": folder,
            "log_folder": folder / "logs",
            "reconcile_period_seconds": 0.05,
        }
        self.process: subprocess.Popen[str] | None = None

    def spawn(self, **settings: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "orchestrator"]
        for key, value in (self.settings | settings).items():
            command += ["--set", f"{key}={value}"]
        environment = os.environ | {"PYTHONPATH": f"{STAND_IN}:{ROOT}"}
        self.process = subprocess.Popen(
            command, cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        return self.process

    def refusal(self, **settings: Any) -> str:
        """Starts the service with invalid settings, and returns its error output."""
        process = self.spawn(**settings)
        _, output = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 2, output
        return output

    def end(self, number: signal.Signals) -> int:
        assert self.process
        self.process.send_signal(number)
        self.process.communicate(timeout=TIMEOUT_SECONDS)
        (self.folder / "o.sock").unlink(missing_ok=True)
        return self.process.returncode

    @contextlib.asynccontextmanager
    async def stub(self) -> AsyncIterator[Any]:
        address = self.settings["server.listen"]
        # A channel that connects too early waits for a second before it retries.
        await until(lambda: asyncio.to_thread((self.folder / "o.sock").exists))
        await rpc.wait_until_serving(str(address), deadline_seconds=TIMEOUT_SECONDS)
        async with rpc.connect(str(address), pb.DESCRIPTOR) as channel:
            yield pb_grpc.OrchestratorServiceStub(channel)

    async def create(self, stub: Any, spec: Any) -> str:
        request = pb.CreateTournamentRequest(request_id="r", spec=spec(maximum_pods=2))
        return str((await rpc.call(stub.CreateTournament, request, deadline_seconds=10)).tournament.tournament_id)

    async def pods(self, stub: Any) -> list[str]:
        answer = await rpc.call(stub.ListPods, pb.ListPodsRequest(), deadline_seconds=5)
        return [pod.pod_id for pod in answer.pods if pod.activity == pb.POD_ACTIVITY_STARTING]

    async def has_pods(self, stub: Any, count: int = 2) -> list[str]:
        async def enough() -> list[str] | None:
            names = await self.pods(stub)
            return names if len(names) == count else None

        found: list[str] = await until(enough)
        return found

    async def state(self, stub: Any, name: str) -> tuple[int, str]:
        request = pb.GetTournamentRequest(tournament_id=name)
        tournament = (await rpc.call(stub.GetTournament, request, deadline_seconds=5)).tournament
        return tournament.state, tournament.reason

    def descendants(self) -> list[psutil.Process]:
        """Returns all running processes that were started from the folder of this test."""
        return [
            process
            for process in psutil.process_iter(["cwd", "status"])
            if process.info["cwd"] == str(self.folder) and process.info["status"] != psutil.STATUS_ZOMBIE
        ]


@pytest.fixture
async def service(short_folder: Path) -> AsyncIterator[Service]:
    made = Service(short_folder)
    yield made
    for process in made.descendants():
        # A process that has just exited needs no signal.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if made.process:
        made.process.communicate()


async def test_a_restarted_orchestrator_adopts_its_pods(service: Service, spec: Any) -> None:
    service.spawn()
    async with service.stub() as stub:
        name = await service.create(stub, spec)
        before = await service.has_pods(stub)
    service.end(signal.SIGKILL)
    service.spawn()
    async with service.stub() as stub:
        assert await service.has_pods(stub) == before
        assert (await service.state(stub, name))[0] == RUNNING
        pids = {path.name for path in (service.folder / "pods").iterdir()}
        assert pids == set(before)


async def test_a_killed_pod_is_replaced(service: Service, spec: Any) -> None:
    service.spawn()
    async with service.stub() as stub:
        await service.create(stub, spec)
        before = await service.has_pods(stub)
        forkserver = next(process for process in service.descendants() if "forkserver" in process.cmdline())
        forkserver.children()[0].kill()

        async def replaced() -> bool:
            names = await service.pods(stub)
            return len(names) == 2 and set(names) != set(before)

        await until(replaced)


async def test_an_independent_service_leaves_its_pods_running_when_it_stops(service: Service, spec: Any) -> None:
    service.spawn()
    async with service.stub() as stub:
        await service.create(stub, spec)
        before = await service.has_pods(stub)
    assert service.end(signal.SIGTERM) == 0
    assert len(service.descendants()) == 3, "the fork server and two fused pods"
    service.spawn()
    async with service.stub() as stub:
        assert await service.has_pods(stub) == before


async def test_a_service_exits_once_another_one_was_restored_from_its_backups_and_leaves_its_pods_running(
    service: Service, spec: Any
) -> None:
    process = service.spawn(**{"backup.period_seconds": 0.2})
    async with service.stub() as stub:
        await service.create(stub, spec)
        await service.has_pods(stub)
        backups = Backups(open_store(str(service.folder / "sleepers")), "main", "orchestrator")
        backups.claim(backups.epoch() + 1)
        _, output = await asyncio.to_thread(process.communicate, timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0
    assert "another service was restored from the backups of" in output
    assert len(service.descendants()) == 3, "the fork server and two fused pods"
    assert "is out of date" in service.refusal(**{"backup.period_seconds": 0.2})


@pytest.mark.parametrize("how", ["SIGTERM", "lifeline"])
async def test_an_embedded_mesh_that_stops_leaves_no_process_and_no_file(service: Service, spec: Any, how: str) -> None:
    shared_memory = Path(f"/dev/shm/podrace-race-{os.getpid()}")
    with contextlib.ExitStack() as held:
        held.enter_context(lifeline.hold(service.folder / "lifeline"))
        service.spawn(mesh_id="m", lifeline=service.folder / "lifeline")
        async with service.stub() as stub:
            name = await service.create(stub, spec)
            pods = await service.has_pods(stub)
            shared_memory = Path(f"/dev/shm/podrace-{pods[0]}-slot")
            shared_memory.touch()
            if how == "SIGTERM":
                assert service.end(signal.SIGTERM) == 0
            else:
                held.close()
                assert service.process
                service.process.communicate(timeout=TIMEOUT_SECONDS)
                assert service.process.returncode == 0
    assert service.descendants() == []
    assert list((service.folder / "pods").iterdir()) == []
    assert not (service.folder / "forkserver.sock").exists()
    assert not shared_memory.exists()
    service.spawn(mesh_id="m2", start_pods="false")
    async with service.stub() as stub:
        assert await service.state(stub, name) == (CANCELLED, "the mesh was stopped")


async def test_pods_that_do_not_stop_are_killed_when_an_embedded_mesh_stops(service: Service, spec: Any) -> None:
    service.spawn(mesh_id="m", store="stubborn", stop_grace_seconds=0.5)
    async with service.stub() as stub:
        await service.create(stub, spec)
        await service.has_pods(stub)
    assert service.end(signal.SIGTERM) == 0
    assert service.descendants() == []
    assert list((service.folder / "pods").iterdir()) == []


async def test_a_running_service_rotates_long_logs_and_deletes_those_of_exited_pods(service: Service) -> None:
    logs = service.folder / "logs"
    logs.mkdir(mode=0o700)
    for name in ("orchestrator.log", "forkserver.log", "t-p0.log", "t-p1.log"):
        (logs / name).write_bytes(bytes(65_537))
    service.spawn(mesh_id="m", **{"logs.file_bytes": 65_536, "logs.pods": 1})
    expected = {"orchestrator.log.1", "forkserver.log.1", "t-p1.log.1"}

    async def tidied() -> bool:
        return {path.name for path in logs.iterdir() if path.stat().st_size} == expected

    await until(tidied)
    assert not (logs / "t-p0.log").exists()
    assert service.end(signal.SIGTERM) == 0


async def test_a_service_that_cannot_start_says_why_in_one_line(service: Service) -> None:
    (service.folder / "file").touch()
    refused = {
        "error: log_folder = ": {"log_folder": service.folder / "file" / "logs"},
        "error: --set: nonsense: unknown key": {"nonsense": 1},
        "error: lease_duration_seconds = 0: expected more than 0": {"lease_duration_seconds": 0},
        "error: kept_events = 999: expected 1000 to 100000000, or 0": {"kept_events": 999},
        "error: logs.file_bytes = 9: expected 65536 to 1099511627776, or 0": {"logs.file_bytes": 9},
        "error: launcher: unknown launcher 'proces'; did you mean 'process'?": {"launcher": "proces"},
        "error: cannot listen on unix:/nowhere/o.sock": {"server.listen": "unix:/nowhere/o.sock"},
    }
    for line, settings in refused.items():
        output = service.refusal(**settings).splitlines()
        assert output[-1].startswith(line) or "unknown key" in output[-1], output
        assert not any("Traceback" in line for line in output)


async def test_a_second_orchestrator_on_the_same_database_is_rejected(service: Service) -> None:
    service.spawn()
    first = service.process
    async with service.stub():
        output = service.refusal(**{"server.listen": f"unix:{service.folder}/o2.sock"})
        assert output.startswith(f"error: database {service.folder}/o.sqlite: another orchestrator has it open")
    service.process = first


def test_the_orchestrator_runs_without_torch_and_numpy() -> None:
    program = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; import orchestrator.__main__"
    program += "; import orchestrator.launchers.process.launcher"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
