"""Two people with tokens of their own on one standing mesh: quotas, fair shares, and nothing of each other."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from homes import REPOSITORY, wait_for

from podrace import rpc

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
SECONDS = 60.0
SPEC = """
name = "NAME"
environment = { id = "python:sleepy_environment:Sleepy", count = 2 }
[algorithms.ppo.hyperparameters]
horizon = 32
minibatch_size = 64
hidden_sizes = [16]
[evaluation]
episodes = 2
[pod]
layout = "fused"
cores = 1.0
[pool]
minimum_pods = 1
maximum_pods = 2
[objective]
wall_clock_duration = "1h"
"""


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@dataclass
class Person:
    """A person with a token, and nothing else of the mesh."""

    folder: Path
    orchestrator: str
    token: str
    stack: ExitStack

    def _start(self, *arguments: str) -> "subprocess.Popen[str]":
        environment = os.environ | {"PODRACE_TOKEN": self.token, "PODRACE_HOME": str(self.folder / "home")}
        return subprocess.Popen(
            [sys.executable, "-m", "podrace.cli", *arguments, "--orchestrator", self.orchestrator],
            env=environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self._start(*arguments)
        out, err = process.communicate(timeout=SECONDS)
        return process.returncode, out, err

    def json(self, *arguments: str) -> Any:
        code, out, err = self.run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    def train(self, name: str, *settings: str) -> "subprocess.Popen[str]":
        """Starts `podrace train`, which follows the tournament until it is stopped."""
        path = self.folder / f"{name}.toml"
        path.write_text(SPEC.replace("NAME", name))
        process = self._start("train", str(path), *settings)
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        return process

    def tournament(self, name: str) -> str:
        """Waits for the tournament of a name among those that this person sees."""

        def find() -> list[str]:
            return [each["tournament_id"] for each in self.json("ls") if each["tournament_id"].startswith(f"{name}-")]

        (found,) = wait_for(find, SECONDS, what="a tournament")
        return str(found)

    def events(self, tournament: str, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.json("events", tournament) if event["kind"] == kind]


@pytest.fixture
async def people(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Person]]:
    """Standing services on ports, and alice, bob and the operator."""
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as name, ExitStack() as stack:
        folder, token_file = Path(name), Path(name) / "access" / "token"
        monkeypatch.setenv("PODRACE_TOKEN_FILE", str(token_file))
        leaderboard, orchestrator = free_address(), free_address()
        store = {"store": f"folder://{folder}/store"}
        serve(stack, folder, "leaderboard", {**store, "server.listen": leaderboard, "database": folder / "l.sqlite"})
        settings = {
            **store,
            "server.listen": orchestrator,
            "leaderboard": leaderboard,
            "database": folder / "o.sqlite",
            "runtime_folder": folder / "run",
            "log_folder": folder / "logs",
            # Pods of an environment that sleeps leave the processors to the rest of the test.
            "allow.modules": '["sleepy_environment"]',
            "quota.yield_seconds": 1.0,
            "quota.pods": 2,
            "quota.owners.bob.tournaments": 1,
        }
        serve(stack, folder, "orchestrator", settings)
        for address in (leaderboard, orchestrator):
            await rpc.wait_until_serving(address, deadline_seconds=SECONDS)
        tokens = {"operator": token_file.read_text().strip()}
        for person in ("alice", "bob"):
            command = [sys.executable, "-m", "podrace.cli", "token", person, "--lifetime", "1h"]
            tokens[person] = subprocess.check_output(command, text=True).strip()
        monkeypatch.delenv("PODRACE_TOKEN_FILE")
        made = {}
        for person, token in tokens.items():
            (folder / person).mkdir()
            made[person] = Person(folder / person, orchestrator, token, stack)
        yield made


def serve(stack: ExitStack, folder: Path, program: str, settings: dict[str, Any]) -> None:
    arguments = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
    log = stack.enter_context((folder / f"{program}.log").open("wb"))
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/tests/chaos"}
    process = subprocess.Popen([sys.executable, "-m", program, *arguments], stderr=log, stdout=log, env=environment)
    stack.callback(process.wait, SECONDS)
    stack.callback(process.terminate)


async def test_two_owners_share_a_mesh_and_see_nothing_of_each_other(people: dict[str, Person]) -> None:
    alice, bob, operator = people["alice"], people["bob"], people["operator"]
    alice.train("secret", "--set", "pool.maximum_pods=1")
    hers = alice.tournament("secret")
    wait_for(lambda: alice.events(hers, "agent_assigned"), SECONDS, what="a pod of alice at work")
    alice.train("later", "--set", "pool.minimum_pods=0", "--set", "pool.priority=-5")
    later = alice.tournament("later")
    wait_for(lambda: alice.events(later, "agent_assigned"), SECONDS, what="another pod of alice at work")

    # What belongs to alice is answered as what does not exist.
    assert bob.json("ls") == []
    for command in (("show",), ("events",), ("stop",), ("delete", "--yes")):
        code, _, problem = bob.run(command[0], hers, *command[1:])
        unknown = bob.run(command[0], "secret-zzzzzz", *command[1:])
        assert (code, problem) == (unknown[0], unknown[2].replace("secret-zzzzzz", hers)), command
        assert code != 0

    # A second owner reclaims its share: the pod of alice's lowest priority publishes its agent and makes room.
    bob.train("small")
    his = bob.tournament("small")
    wait_for(lambda: alice.events(later, "pod_draining"), SECONDS, what="a pod of alice that yields")
    wait_for(lambda: bob.events(his, "agent_assigned"), SECONDS, what="a pod of bob at work")
    assert "the fair share of" in alice.events(later, "pod_draining")[0]["message"]
    (drained,) = wait_for(lambda: alice.events(later, "agent_drained"), SECONDS, what="an agent that is put back")
    assert "share" in drained["message"]
    assert not alice.events(later, "pod_terminated")
    assert not alice.events(hers, "pod_draining"), "the higher priority keeps its pod"

    # The limits of the operator, in the words of the operator's settings.
    code, _, problem = bob.run("train", str(bob.folder / "small.toml"))
    assert code != 0
    assert "quota" in problem
    assert "tournaments" in problem
    code, _, problem = alice.run("train", str(alice.folder / "secret.toml"), "--set", "pool.priority=5")
    assert code != 0
    assert "pool.priority" in problem

    # What was published is continued when there is room again.
    assert {each["tournament_id"] for each in operator.json("ls")} == {hers, later, his}
    assert alice.run("stop", hers)[0] == 0
    wait_for(lambda: len(alice.events(later, "agent_assigned")) > 1, SECONDS, what="the agent of the drained pod")
    again = alice.events(later, "agent_assigned")
    assert again[-1]["agent_id"] == again[0]["agent_id"] == drained["agent_id"]
    assert [each["tournament_id"] for each in bob.json("ls")] == [his]

    for tournament in (later, his):
        assert operator.run("stop", tournament)[0] == 0
