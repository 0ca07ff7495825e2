import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from leaderboard.config import Config as LeaderboardConfig
from orchestrator.config import Config as OrchestratorConfig
from podrace import rpc
from podrace.config import config_from_arguments
from podrace.errors import FailedPrecondition
from podrace.mesh import embedded, service_process
from podrace.mesh.home import Folders
from podrace.mesh.service_process import ServiceCommand, listens

pytestmark = pytest.mark.long

SERVICE = """
import asyncio, pathlib, sys
from podrace import rpc
from podrace.processes import lifeline

async def main(address, life, journal):
    server = await rpc.Server.start(rpc.ServerConfig(listen=address, grace_seconds=0.0), [])
    reason = await rpc.shutdown_requested(lifeline.lost(life))
    with pathlib.Path(journal).open("a") as file:
        file.write(f"{pathlib.Path(address).stem} {reason.split()[0]}\\n")
    await server.drain()

asyncio.run(main(*sys.argv[1:]))
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVICE.replace(
    "await rpc.shutdown_requested(lifeline.lost(life))", "await lifeline.lost(life)"
)
ONCE = (
    """
import pathlib, sys
marker = pathlib.Path(sys.argv[3] + ".once")
if marker.exists():
    sys.exit("error: the database is damaged; restore it")
marker.touch()
"""
    + SERVICE
)
COMMAND = """
import asyncio, json, sys
from pathlib import Path
from podrace.mesh import embedded
from podrace.mesh.home import Folders
from podrace.mesh.service_process import ServiceCommand

async def main(home, services):
    commands = [ServiceCommand(name, line, Path(socket), Path(log)) for name, line, socket, log in json.loads(services)]
    async with embedded.running(Folders.of(Path(home)), commands, notify=print):
        print("running", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    made = Folders.of(tmp_path / "home")
    made.make_home()
    yield made
    shutil.rmtree(made.runtime, ignore_errors=True)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def fake_services(folders: Folders, journal: Path, script: str = SERVICE) -> list[ServiceCommand]:
    """Commands of a leaderboard that only serves, and of an orchestrator that runs `script`."""

    def command(name: str, script: str) -> ServiceCommand:
        path = folders.runtime / f"{name}.sock"
        arguments = (sys.executable, "-c", script, f"unix:{path}", str(folders.lifeline), str(journal))
        return ServiceCommand(name, arguments, path, folders.logs / f"{name}.log")

    return [command("leaderboard", SERVICE), command("orchestrator", script)]


def listener(path: Path) -> int:
    """Returns the pid of the process that listens on a socket; 0 if none does."""
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)):
            return 0
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(folders: Folders, journal: Path, script: str = SERVICE) -> AsyncIterator[list[str]]:
    notices: list[str] = []
    async with embedded.running(folders, fake_services(folders, journal, script), notify=notices.append):
        yield notices


async def test_a_mesh_serves_during_the_block_and_leaves_no_files(folders: Folders, journal: Path) -> None:
    async with running(folders, journal) as notices:
        for path in (folders.leaderboard_socket, folders.orchestrator_socket):
            await rpc.wait_until_serving(f"unix:{path}", deadline_seconds=1.0)
    assert not listens(folders.leaderboard_socket)
    assert not folders.runtime.exists()
    assert notices == []


async def test_the_orchestrator_is_stopped_before_the_leaderboard(folders: Folders, journal: Path) -> None:
    async with running(folders, journal):
        pass
    assert journal.read_text().splitlines() == ["orchestrator SIGTERM", "leaderboard SIGTERM"]


async def test_a_killed_service_serves_again_at_the_same_address(folders: Folders, journal: Path) -> None:
    async with running(folders, journal) as notices:
        for name in ("orchestrator", "leaderboard", "orchestrator"):
            path = folders.runtime / f"{name}.sock"
            killed = listener(path)
            os.kill(killed, signal.SIGKILL)
            await until(lambda path=path, killed=killed: listener(path) not in (0, killed))
            await rpc.wait_until_serving(f"unix:{path}", deadline_seconds=5.0)
    assert notices[0] == "the orchestrator was killed by SIGKILL; restarting it"
    assert len(notices) == 3


async def test_services_do_not_receive_the_signals_of_the_terminal(folders: Folders, journal: Path) -> None:
    async with running(folders, journal):
        assert os.getsid(listener(folders.orchestrator_socket)) != os.getsid(0)


async def test_a_service_that_does_not_start_is_reported_with_its_last_log_line(
    folders: Folders, journal: Path
) -> None:
    script = "import sys; print('starting'); sys.exit('error: cannot listen here; choose another address')"
    with pytest.raises(FailedPrecondition) as failure:
        async with running(folders, journal, script):
            pytest.fail("nothing serves")
    log = folders.logs / "orchestrator.log"
    assert failure.value.message == (
        f"the orchestrator does not start: cannot listen here; choose another address (log: {log})"
    )
    assert journal.read_text() == "leaderboard SIGTERM\n"


async def test_a_service_that_does_not_restart_cancels_the_block(
    folders: Folders, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_process, "RESTART_DELAYS_SECONDS", (0.0, 0.0))

    async def kill_and_wait() -> None:
        async with running(folders, journal, ONCE):
            os.kill(listener(folders.orchestrator_socket), signal.SIGKILL)
            await asyncio.Event().wait()

    with pytest.raises(FailedPrecondition, match="the database is damaged; restore it"):
        await kill_and_wait()
    assert not listens(folders.leaderboard_socket)


async def test_a_service_that_does_not_stop_is_killed_after_the_grace_period(
    folders: Folders, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "GRACE_SECONDS", 0.1)
    async with running(folders, journal, STUBBORN):
        stubborn = listener(folders.orchestrator_socket)
    with pytest.raises(ProcessLookupError):
        os.kill(stubborn, 0)


async def test_services_are_killed_when_the_user_is_in_a_hurry(folders: Folders, journal: Path) -> None:
    hurried = False
    async with embedded.running(
        folders, fake_services(folders, journal, STUBBORN), notify=pytest.fail, hurried=lambda: hurried
    ):
        pids = listener(folders.orchestrator_socket), listener(folders.leaderboard_socket)
        hurried = True
    await until(lambda: not any(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if alive(pid)))
    assert not journal.exists()


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_failing_block_stops_the_mesh_in_order(folders: Folders, journal: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with running(folders, journal):
            raise ZeroDivisionError
    assert journal.read_text().splitlines() == ["orchestrator SIGTERM", "leaderboard SIGTERM"]


async def test_services_exit_when_their_command_is_killed(folders: Folders, journal: Path) -> None:
    services = [
        [command.name, list(command.arguments), str(command.socket), str(command.log)]
        for command in fake_services(folders, journal)
    ]
    arguments = [sys.executable, "-c", COMMAND, str(folders.home), json.dumps(services)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "running\n"
        command.kill()
    await until(lambda: journal.exists() and len(journal.read_text().splitlines()) == 2)
    assert sorted(journal.read_text().splitlines()) == ["leaderboard lifeline", "orchestrator lifeline"]
    await until(lambda: not listens(folders.orchestrator_socket) and not listens(folders.leaderboard_socket))


async def test_a_previous_mesh_that_does_not_stop_is_an_error(
    folders: Folders, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.make_runtime()
    monkeypatch.setattr(embedded, "NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(embedded, "PREVIOUS_MESH_SECONDS", 0.05)
    notices: list[str] = []
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folders.orchestrator_socket))
        left.listen()
        with pytest.raises(FailedPrecondition, match=r"processes of the previous mesh on .* are still running"):
            async with embedded.running(folders, fake_services(folders, journal), notify=notices.append):
                pytest.fail("two meshes on one home")
        assert listens(folders.orchestrator_socket)
    assert notices == [f"the previous mesh on {folders.home} is stopping; waiting for it"]


def test_the_services_accept_the_options_of_the_mesh(folders: Folders) -> None:
    leaderboard, orchestrator = embedded.service_commands(
        folders, store="minio://store/bucket", mesh_id="0a1b", start_pods=False, debug=True
    )
    configured = config_from_arguments(
        OrchestratorConfig, orchestrator.arguments[3:], program="orchestrator", environ={}
    )
    assert configured.server.listen == f"unix:{orchestrator.socket}"
    assert configured.leaderboard == f"unix:{leaderboard.socket}"
    assert configured.database == str(folders.orchestrator_database)
    assert configured.lifeline == str(folders.lifeline)
    assert configured.log_folder == folders.logs
    assert configured.runtime_folder == folders.runtime
    assert configured.mesh_id == "0a1b"
    assert configured.start_pods is False
    assert configured.telemetry.log_level == "debug"
    board = config_from_arguments(LeaderboardConfig, leaderboard.arguments[3:], program="leaderboard", environ={})
    assert board.server.listen == f"unix:{leaderboard.socket}"
    assert board.database == str(folders.leaderboard_database)
    assert board.store == configured.store == "minio://store/bucket"
    assert orchestrator.arguments[:3] == (sys.executable, "-m", "orchestrator")
