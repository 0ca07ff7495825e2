"""A generator function looks for the files and processes of a leaderboard that is not root and uses a plugin host.

Before, such a leaderboard, as in its image, ran functions under its own user id: they read its environment with the
keys of the store, its databases, and the key of its certificate.
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from leaderboard.config import PluginConfig
from leaderboard.plugins.plugin_pool import PROPOSAL, PluginPool, PreparedRequest
from podrace import rpc
from podrace.access.sending import MetadataChannel
from podrace.errors import InvalidArgument, PodraceError
from podrace.evolution.v1.evolution_pb2 import ProposeAgentRequest
from podrace.evolution.v1.evolution_pb2_grpc import EvolutionServiceStub
from podrace.limits.config import Allowed
from podrace.plugins.host import PLUGIN_KEY
from podrace.processes import user_ids
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

ROOT = user_ids.may_change([65_410])
READABLE = all(folder.stat().st_mode & 0o001 for folder in Path(os.__file__).parents)
SYSTEM_PYTHON = Path(f"/usr/bin/python3.{sys.version_info.minor}")
PYTHON = sys.executable if READABLE or not SYSTEM_PYTHON.exists() else str(SYSTEM_PYTHON)
"""An interpreter that another user can run: that of the system, with the packages of this one, if need be."""
HOST_UID = 65_410 if ROOT and (READABLE or sys.executable != PYTHON) else os.geteuid()
"""Another user where the test may change users."""
SECONDS = 120.0
ALLOWED = Allowed(modules=("prying", "elsewhere"))
REPOSITORY = Path(__file__).parents[2]
CODE = """
    import json, os, time
    from podrace.evolution.v1.evolution_pb2 import ProposeAgentResponse

    def attempt(act):
        try:
            act()
        except OSError as error:
            return type(error).__name__
        return "done"

    def propose(request):
        found = {
            "uid": os.getuid(),
            "read": attempt(lambda: open("FOLDER/secret").read()),
            "environment": attempt(lambda: open("/proc/LEADERBOARD/environ").read()),
            "memory": attempt(lambda: open("/proc/LEADERBOARD/mem", "rb").read(1)),
            "kill": attempt(lambda: os.kill(LEADERBOARD, 0)),
            "keys": [name for name in os.environ if "STORE" in name],
        }
        return ProposeAgentResponse(reason=json.dumps(found))

    def stop(request):
        os._exit(7)

    def hang(request):
        time.sleep(1000)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everyone may enter, with the module of the plugin and a secret of this user."""
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as created:
        path = Path(created)
        path.chmod(0o755)
        code = textwrap.dedent(CODE).replace("LEADERBOARD", str(os.getpid())).replace("FOLDER", created)
        for name, content, mode in (("prying.py", code, 0o644), ("secret", "hunter2", 0o600)):
            (path / name).write_text(content)
            (path / name).chmod(mode)
        # As the volume that both containers mount, and the temporary folder of the host.
        for name in ("shared", "tmp"):
            (path / name).mkdir()
            (path / name).chmod(0o777)
        yield path


@pytest.fixture
async def host(folder: Path) -> AsyncIterator[str]:
    """The address of a running plugin host."""
    address = f"unix:{folder}/shared/host/h.sock"
    settings = (
        f"socket={folder}/shared/host/h.sock",
        f"runtime_folder={folder}/tmp/p",
        'allow.modules=["prying"]',
        "telemetry.log_level=info",
    )
    command = [PYTHON, "-m", "leaderboard.plugins.host", *(a for one in settings for a in ("--set", one))]
    packages = [path for path in sys.path if path.endswith("site-packages")]
    searched = os.pathsep.join([str(REPOSITORY), str(folder), *packages])
    environment = os.environ | {"PYTHONPATH": searched, "PODRACE_STORE_SECRET_KEY": "kept"}
    identity: dict[str, Any] = {"user": HOST_UID, "extra_groups": []} if ROOT else {}
    with (folder / "host.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stderr=log, stdout=log, cwd="/", **identity)
    try:
        async with asyncio.timeout(SECONDS):
            while process.poll() is None and not await is_serving(address):
                pass
        assert process.poll() is None, (folder / "host.log").read_text()
        yield address
    finally:
        process.terminate()
        assert process.wait(SECONDS) == 0, (folder / "host.log").read_text()
    assert not list((folder / "tmp").rglob("*.lifeline")), "nothing is left"


async def is_serving(address: str) -> bool:
    try:
        await rpc.wait_until_serving(address, deadline_seconds=1.0, owner=HOST_UID)
    except PodraceError:
        return False
    return True


def pool(folder: Path, address: str, owner: int = HOST_UID) -> PluginPool:
    config = PluginConfig(host=address, host_uid=owner)
    return PluginPool(config, folder / "run", ALLOWED, itertools.count(0.0, 1000.0).__next__)


async def call(plugins: PluginPool, function: str, seconds: float = 4.5, *, absent: bool = False) -> tuple[Any, str]:
    """Returns what a function found, or what went wrong."""
    evolution = EvolutionSpec(generator=f"python:{function}")
    evolution.answer_duration.FromMilliseconds(round(seconds * 1000))

    async def prepare() -> PreparedRequest[Any]:
        return PreparedRequest(ProposeAgentRequest(tournament_id="t"), lambda _: None)

    # A busy machine needs longer to start the process than one call waits. The clock ends all pauses between calls.
    for _ in range(60):
        reply = await plugins.call(PROPOSAL, evolution, prepare)
        if not any(text in reply.problem for text in ("did not serve within", "(waited")) or absent:
            break
    return (json.loads(reply.answer.reason) if reply.answer else None), reply.problem


async def test_a_function_reaches_neither_files_nor_processes_of_the_leaderboard(folder: Path, host: str) -> None:
    plugins = pool(folder, host)
    try:
        found, problem = await call(plugins, "prying:propose")
        assert found, problem
        assert found.pop("uid") == HOST_UID
        assert found.pop("keys") == []
        if os.geteuid() != HOST_UID:
            assert set(found.values()) == {"PermissionError"}, found
        assert not (folder / "run").exists(), "the leaderboard starts no process"

        # What goes wrong there is reported as for a child process, and the next call gets another process.
        assert "its process exited with code 7" in (await call(plugins, "prying:stop"))[1]
        assert "no function 'absent'" in (await call(plugins, "prying:absent"))[1]
        found, problem = await call(plugins, "prying:propose")
        assert found, problem
        late = (await call(plugins, "prying:hang", seconds=1.0))[1]
        assert "no answer within" in late or "did not serve within" in late or "deadline" in late.lower()

        # The host has its own limits.
        assert "plugin host: module 'elsewhere' is not allowed" in (await call(plugins, "elsewhere:propose"))[1]
        evolution = EvolutionSpec(generator="python:prying:absent")
        # A check that takes too long on a busy machine finds nothing.
        checks = [await plugins.find_missing_function(evolution) for _ in range(10)]
        assert any("no function 'absent'" in each for each in checks)
    finally:
        await plugins.close()


async def test_only_user_and_group_of_the_host_reach_it(folder: Path, host: str) -> None:
    socket = Path(host.removeprefix("unix:"))
    found = socket.stat(), socket.parent.stat()
    assert [each.st_mode & 0o777 for each in found] == [0o660, 0o710]
    assert {(each.st_uid, each.st_gid) for each in found} == {(HOST_UID, os.getegid())}


NAMELESS = (
    b"",
    b"{",
    b"[]",
    b"{}",
    b"[" * 8000,
    b"\xff",
    b'{"address": [], "part": {}}',
    b'{"address": "a", "b": "c"}',
)


async def test_metadata_that_name_no_function_are_refused(folder: Path, host: str) -> None:
    async with rpc.connect(host, owner=HOST_UID) as plain:
        for value in NAMELESS:
            stub: Any = EvolutionServiceStub(MetadataChannel(plain, lambda value=value: ((PLUGIN_KEY, value),)))
            with pytest.raises(InvalidArgument, match="names no function of a plugin"):
                await rpc.call(stub.ProposeAgent, ProposeAgentRequest(), deadline_seconds=SECONDS)


async def test_a_host_of_another_user_is_not_called(folder: Path, host: str) -> None:
    plugins = pool(folder, host, owner=61_999)
    assert "belongs to another user" in (await call(plugins, "prying:propose"))[1]
    await plugins.close()


async def test_without_a_host_a_function_does_not_run(folder: Path) -> None:
    plugins = pool(folder, f"unix:{folder}/absent/h.sock")
    assert "no plugin host serves at unix:" in (await call(plugins, "prying:propose", absent=True))[1]
    await plugins.close()


def test_a_host_on_a_network_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="expected unix:/path"):
        PluginConfig(host="plugins:50070")
