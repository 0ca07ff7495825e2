"""A generator function looks for the files and the processes of the leaderboard that runs it.

Before, it had the user id of the leaderboard: as root it read the databases, the key of the mesh and the store.
"""

import itertools
import json
import os
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leaderboard.config import PluginConfig
from leaderboard.plugins.plugin_pool import PROPOSAL, PluginPool, PreparedRequest
from leaderboard.plugins.plugin_users import PluginUsers
from podrace.evolution.v1.evolution_pb2 import ProposeAgentRequest
from podrace.limits.config import EVERYTHING, Allowed
from podrace.processes import user_ids
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

IDS = PluginConfig(user_code_uid=65_400, user_code_uids=4)
ALLOWED = Allowed(modules=("prying",), variables=("PRYING_SECRET",))
needs_root = pytest.mark.skipif(not user_ids.may_change([65_400, 65_403]), reason="only root may change user ids")
CODE = """
    import json, os, signal
    from podrace.evolution.v1.evolution_pb2 import ProposeAgentResponse

    def attempt(act):
        try:
            act()
        except OSError as error:
            return type(error).__name__
        return "done"

    def propose(request):
        secret, parent = os.environ["PRYING_SECRET"], os.getppid()
        found = {
            "uid": os.getuid(),
            "groups": os.getgroups(),
            "read": attempt(lambda: open(secret).read()),
            "environment": attempt(lambda: open(f"/proc/{LEADERBOARD}/environ").read()),
            "memory": attempt(lambda: open(f"/proc/{LEADERBOARD}/mem", "rb").read(1)),
            "kill": attempt(lambda: os.kill(LEADERBOARD, 0)),
            "root": attempt(lambda: os.setuid(0)),
            "home": attempt(lambda: open(os.path.join(os.environ["HOME"], "own"), "w").close()),
        }
        if os.fork() == 0:
            # Leaves its process group, so that killing the group does not reach it.
            os.setsid()
            while True:
                signal.pause()
        return ProposeAgentResponse(reason=json.dumps(found))
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everyone may enter, with the module of the plugin and a secret of this user."""
    with tempfile.TemporaryDirectory(prefix="pr-") as created:
        path = Path(created)
        path.chmod(0o755)
        code = textwrap.dedent(CODE).replace("LEADERBOARD", str(os.getpid()))
        (path / "prying.py").write_text(code)
        (path / "prying.py").chmod(0o644)
        (path / "secret").write_text("hunter2")
        (path / "secret").chmod(0o600)
        monkeypatch.setenv("PRYING_SECRET", str(path / "secret"))
        monkeypatch.setenv("TMPDIR", created)
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.syspath_prepend(created)
        yield path
    tempfile.tempdir = None


async def call(plugins: PluginPool) -> Any:
    evolution = EvolutionSpec(generator="python:prying:propose")
    evolution.answer_duration.FromSeconds(8)

    async def prepare() -> PreparedRequest[Any]:
        return PreparedRequest(ProposeAgentRequest(tournament_id="t"), lambda _: None)

    # A busy machine needs longer to start the process than one call waits. The clock ends all pauses between calls.
    for _ in range(60):
        reply = await plugins.call(PROPOSAL, evolution, prepare)
        if "did not serve within" not in reply.problem:
            break
    assert reply.answer is not None, reply.problem
    return json.loads(reply.answer.reason)


@needs_root
async def test_a_function_reaches_neither_files_nor_processes_of_the_leaderboard(folder: Path) -> None:
    plugins = PluginPool(IDS, folder / "run", ALLOWED, itertools.count(0.0, 1000.0).__next__)
    try:
        found = await call(plugins)
        assert found.pop("uid") in range(65_400, 65_404)
        assert found == {
            "groups": [],
            "read": "PermissionError",
            "environment": "PermissionError",
            "memory": "PermissionError",
            "kill": "PermissionError",
            "root": "PermissionError",
            "home": "done",
        }
    finally:
        await plugins.close()


@needs_root
async def test_processes_and_files_that_a_function_leaves_are_removed_with_it(folder: Path) -> None:
    plugins = PluginPool(IDS, folder / "run", ALLOWED, itertools.count(0.0, 1000.0).__next__)
    user_id = (await call(plugins))["uid"]
    (base,) = folder.glob("podrace-plugins-*")
    assert (base / str(user_id)).exists()
    processes = [process for process, owner in user_ids._owners().items() if owner == user_id]
    assert processes
    await plugins.close()
    assert not list(base.iterdir())
    assert all([await process.ended(10.0) for process in processes])


@needs_root
def test_each_process_has_a_separate_user_and_more_are_refused(folder: Path) -> None:
    users = PluginUsers(IDS, folder / "run", ALLOWED)
    chosen = [users.choose() for _ in range(4)]
    assert {user.user_id for user in chosen if user} == set(range(65_400, 65_404))
    with pytest.raises(Exception, match=r"raise plugins.user_code_uids"):
        users.choose()
    users.end(chosen[2])
    again = users.choose()
    assert again is not None
    assert again.user_id == 65_402
    for user in (*chosen[:2], chosen[3], again):
        users.end(user)


def test_the_mesh_of_one_user_and_a_leaderboard_without_user_ids_change_none(folder: Path) -> None:
    assert PluginUsers(IDS, folder / "run", EVERYTHING).choose() is None
    assert PluginUsers(PluginConfig(user_code_uid=0), folder / "run", ALLOWED).choose() is None
