import asyncio
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from podrace.cli.render import command
from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec


@pytest.mark.parametrize("file", ["episode.avi", "episode", "-"])
def test_a_file_of_another_kind_is_refused(type_: Any, mesh: Any, file: str) -> None:
    answer = type_("render", "latest", "--file", file, "--orchestrator", mesh.address)
    assert answer.code != 0
    assert "--file" in answer.err


class Child:
    """A child process that answers at once."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.returncode, self._answer = code, (out, err)
        self.request: dict[str, Any] = {}

    async def communicate(self, data: bytes) -> tuple[bytes, bytes]:
        self.request = json.loads(data)
        Path(self.request["file"]).write_bytes(b"GIF89a")
        return self._answer


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the process that draws by one that returns what a test chooses."""

    def replaced(code: int, out: bytes = b"", err: bytes = b"") -> Child:
        made = Child(code, out, err)

        async def start(*arguments: Any, **pipes: Any) -> Child:
            return made

        monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
        return made

    return replaced


def test_the_episode_is_that_of_the_evaluations_with_the_options_of_the_command(
    type_: Any, mesh: Any, child: Any
) -> None:
    facts = {"steps": 500, "episode_return": 500.0, "ended": True, "pictures": 250}
    made = child(0, b"a library says hello\n" + json.dumps(facts).encode())
    mesh.known.tournaments[0].spec.evaluation.options.update({"split": "validation", "max_episode_steps": 7})
    arguments = ("--option", "max_episode_steps=9", "--seed", "4", "--orchestrator", mesh.address)
    answer = type_("render", "latest", *arguments)
    assert answer.code == 0, answer.err
    assert answer.out == "cartpole-abc123.gif: return 500.0 in 500 steps (seed 4)\n"
    environment = EnvironmentSpec.FromString(b64decode(made.request["environment"]))
    assert (environment.id, environment.count) == ("CartPole-v1", 1)
    assert dict(environment.options) == {"split": "validation", "max_episode_steps": 9}
    assert (made.request["seed"], made.request["trusted"]) == (4, False)


def test_why_an_environment_cannot_be_drawn_is_reported_in_one_line(
    type_: Any, mesh: Any, child: Any, tmp_path: Any
) -> None:
    child(1, err=b"a warning of a library\nerror: envpool:Ant-v5: cannot be drawn; use another\n")
    answer = type_("render", "latest", "--orchestrator", mesh.address)
    assert answer.code == 1
    assert answer.err == "error: render: envpool:Ant-v5: cannot be drawn; use another\n"
    assert not list(tmp_path.glob("*.gif"))
    assert command.SUFFIXES == (".gif", ".mp4", ".webp")
