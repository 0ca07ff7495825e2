"""A plugin that names a function which does not exist is refused before the first agent is trained."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from leaderboard.config import PluginConfig
from leaderboard.generator import Generator
from leaderboard.plugins.plugin_pool import PluginPool
from leaderboard.store.schema import DATABASE_FORMAT
from podrace.database import Database
from podrace.errors import InvalidArgument
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, GenerateAgentRequest
from podrace.limits.config import EVERYTHING
from podrace.specification import resolve as specification
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

REPOSITORY = Path(__file__).parents[3]
TOURNAMENT = "cartpole-abc123"
Generate = Callable[..., Awaitable[Agent]]


@pytest.fixture
async def generate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Generate]:
    """Generates agents as a leaderboard that calls plugins does."""
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parent}:{REPOSITORY}")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("FAULTY_CALLS", str(folder / "calls"))
    async with AsyncExitStack() as stack:
        state = Database.open(folder / "leaderboard.sqlite", DATABASE_FORMAT, time.time)
        stack.callback(state.close)
        plugins = PluginPool(PluginConfig(), folder, EVERYTHING)
        stack.push_async_callback(plugins.close)
        generator = Generator(state, plugins)
        stack.push_async_callback(generator.close)

        async def made(number: int, **evolution: Any) -> Agent:
            values = {
                "environment": {"id": "CartPole-v1"},
                "algorithms": {"ppo": {}},
                "objective": {"environment_steps": 1_000_000},
                "evolution": {"initial_agents": 2, "fresh_probability": 0.0, **evolution},
            }
            spec = specification.resolve(specification.parse(values, source="test"))
            name = f"{TOURNAMENT}-a{number}"
            return await generator.generate(
                GenerateAgentRequest(request_id=name, tournament_id=TOURNAMENT, spec=spec, number=number)
            )

        yield made


@pytest.mark.parametrize("part", ["generator", "updater"])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("python:nowhere:f", "module 'nowhere' cannot be imported (ModuleNotFoundError"),
        ("python:examples.nowhere:f", "module 'examples.nowhere' cannot be imported (ModuleNotFoundError"),
        ("python:faulty:besst", "module 'faulty' has no function 'besst'"),
    ],
)
async def test_a_function_that_does_not_exist_is_refused_with_the_first_agent(
    generate: Generate, part: str, address: str, words: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await generate(0, **{part: address})
    assert refused.value.message.startswith(f"evolution.{part} = {address!r}: {words}")
    assert refused.value.reason == "ERROR_REASON_BAD_SPEC"
    assert "\n" not in refused.value.message
    # The same tournament can begin once the name is corrected.
    assert (await generate(0, **{part: "python:faulty:best"})).number == 0


@pytest.mark.parametrize(
    "source", ["raise RuntimeError('not now')", "import absent_package", "import os; os._exit(5)", "this is no python"]
)
async def test_a_module_that_exists_and_fails_is_not_refused(generate: Generate, folder: Path, source: str) -> None:
    (folder / "broken.py").write_text(source)
    assert (await generate(0, updater="python:broken:judge")).number == 0


async def test_a_function_that_disappears_later_does_not_stop_the_tournament(generate: Generate, folder: Path) -> None:
    module = folder / "fleeting.py"
    module.write_text("from faulty import exits as propose\n")
    await generate(0, generator="python:fleeting:propose")
    module.unlink()  # and its process has ended
    assert "generator python:fleeting:propose: " in (await generate(1, generator="python:fleeting:propose")).reason


async def test_the_check_whether_a_function_exists_does_not_call_it(generate: Generate, folder: Path) -> None:
    called = folder / "called"
    (folder / "telling.py").write_text(f"def judge(request):\n    open({str(called)!r}, 'w').close()\n")
    await generate(0, updater="python:telling:judge")
    assert not called.exists()


async def test_a_service_is_not_checked(folder: Path) -> None:
    async def refuse_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.close()

    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(refuse_all, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    plugins = PluginPool(PluginConfig(), folder, EVERYTHING)
    assert await plugins.find_missing_function(EvolutionSpec(generator=f"grpc://127.0.0.1:{port}")) == ""
    await plugins.close()
    server.close()
    assert not connections
