"""Homes of released versions, read by the services and commands of today; no pod is started."""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from released import HOMES, ReleasedHome, contracts, differences, name

from podrace import rpc
from podrace.cli import main

START_SECONDS, STOP_SECONDS = 90.0, 20.0
COMMANDS = ("ls", "show", "standings", "events", "lineage")
"""Those that read a home through the services and start no pod."""

Command = Callable[..., Any]


class Mesh:
    """The services on a copy of a released home; pods would have to come by themselves, and none does."""

    def __init__(self, folder: Path, home: ReleasedHome, stack: ExitStack, python: str) -> None:
        self.home, self._stack, self._folder, self._python = home, stack, folder, python
        self.address = f"unix:{folder}/o.sock"
        leaderboard = f"unix:{folder}/l.sock"
        self._start("leaderboard", "database=leaderboard.sqlite", f"server.listen={leaderboard}")
        self._start(
            "orchestrator",
            "database=orchestrator.sqlite",
            f"server.listen={self.address}",
            f"leaderboard={leaderboard}",
            f"runtime_folder={folder}",
            f"log_folder={folder}/logs",
            "launcher=external",
        )
        # A command waits only seconds for a service, which takes longer to start on a busy machine.
        for address in (leaderboard, self.address):
            asyncio.run(rpc.wait_until_serving(address, deadline_seconds=START_SECONDS))

    def _start(self, service: str, database: str, *settings: str) -> None:
        key, _, file = database.partition("=")
        shared = (f"{key}={self.home.path / file}", f"store=folder://{self.home.path}/store")
        arguments = [part for setting in (*shared, *settings) for part in ("--set", setting)]
        log = self._stack.enter_context((self._folder / f"{service}.log").open("wb"))
        process = subprocess.Popen([self._python, "-m", service, *arguments], stderr=log)
        self._stack.callback(process.wait, STOP_SECONDS)
        self._stack.callback(process.terminate)


@pytest.fixture(scope="module", params=HOMES, ids=name)
def mesh(request: pytest.FixtureRequest, warm_python: str) -> Iterator[Mesh]:
    # A short name: paths of sockets are limited.
    with tempfile.TemporaryDirectory(prefix="rh") as folder, ExitStack() as stack:
        yield Mesh(Path(folder), ReleasedHome(request.param, Path(folder)), stack, warm_python)


@pytest.fixture
def podrace(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command on the released home; returns the value that it prints."""

    def run(*arguments: str, home: bool = True) -> Any:
        where = ("--home", str(mesh.home.path), "--orchestrator", mesh.address) if home else ()
        code = main([*arguments, *where, "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return json.loads(printed.out)

    return run


def test_home_and_contracts_are_kept_of_every_release() -> None:
    assert "0.1.0" in map(name, HOMES)
    for archive in HOMES:
        services = {service.name for file in contracts(name(archive)).file for service in file.service}
        assert {"OrchestratorService", "UpdaterService", "GeneratorService", "LeaderboardService"} <= services


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_answers_about_a_released_home_what_the_release_answered(
    mesh: Mesh, podrace: Command, command: str
) -> None:
    recorded = mesh.home.answers(command)
    assert recorded
    for arguments, answer in recorded:
        assert differences(answer, podrace(*arguments)) == []


def test_every_decision_of_a_release_is_made_again_from_its_log(mesh: Mesh, podrace: Command) -> None:
    for tournament in ("raced", "stopped"):
        tournament_id = mesh.home.tournament(tournament)["tournament_id"]
        assert podrace("lineage", tournament_id, "--replay")["differences"] == []


def test_every_checkpoint_of_a_release_is_whole(mesh: Mesh, podrace: Command) -> None:
    verified = podrace("store", "verify", f"folder://{mesh.home.path}/store", home=False)
    assert verified["manifests"] > 0
    assert verified["damage"] == []


def test_the_history_of_continuous_training_survives_the_release(mesh: Mesh, podrace: Command) -> None:
    ((arguments, answer),) = mesh.home.answers("continuous")
    assert answer["champion"]
    where = ("--home", str(mesh.home.path))
    assert differences(answer, podrace(*arguments, *where, home=False)) == []
