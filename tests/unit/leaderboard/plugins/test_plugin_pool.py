"""Whose time it is that a question to a custom part costs."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leaderboard.config import PartsConfig
from leaderboard.plugins import plugin_pool as module
from leaderboard.plugins.plugin_pool import PROPOSAL, Parts, Prepared, Reply
from podrace.evolution.v1.evolution_pb2 import ProposeAgentRequest, ProposeAgentResponse
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec


class Part:
    """A connection to a part that answers when it is told to, and its stub."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        """How long it was given, for each question."""
        self.may_answer = asyncio.Event()

    async def ready(self, seconds: float) -> Any:
        return self

    async def ProposeAgent(self, request: Any, *, timeout: float) -> ProposeAgentResponse:
        self.asked.append(timeout)
        await self.may_answer.wait()
        return ProposeAgentResponse(fresh={})

    async def close(self) -> None:
        pass


@pytest.fixture
def part() -> Part:
    return Part()


@pytest.fixture
def ask(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[Reply[Any]]]:
    parts, evolution = Parts(PartsConfig(), tmp_path), EvolutionSpec(generator="grpc://127.0.0.1:1")
    monkeypatch.setattr(parts, "_connect", lambda *_: part)

    async def at_once() -> Prepared[ProposeAgentResponse]:
        return Prepared(ProposeAgentRequest(), lambda answer: None)

    def asked(answer_seconds: float, prepare: Any = at_once) -> Awaitable[Reply[Any]]:
        evolution.answer_duration.FromNanoseconds(round(answer_seconds * 1e9))
        return parts.ask(PROPOSAL, evolution, prepare)

    return asked


async def test_who_waits_for_others_waits_no_longer_than_leaves_time_for_a_whole_answer(
    part: Part, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEP_SECONDS", 1.0)
    first = asyncio.create_task(ask(0.75))
    while not part.asked:
        await asyncio.sleep(0)
    second = await ask(0.75)
    assert second.problem == "the generator grpc://127.0.0.1:1 was busy with other questions for 0.25 s"
    part.may_answer.set()
    assert (await first).answer is not None
    assert part.asked == [0.75]


async def test_the_time_that_a_question_takes_to_be_made_is_not_the_parts(
    part: Part, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))

    async def prepare() -> Prepared[ProposeAgentResponse]:
        nonlocal now
        now += 60.0
        return Prepared(ProposeAgentRequest(), lambda answer: None)

    part.may_answer.set()
    assert (await ask(8.0, prepare)).problem == ""
    assert part.asked == [8.0]


async def test_no_socket_is_put_where_somebody_else_could_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(module, "ROOT", owner + 1)
    monkeypatch.setattr("os.getuid", lambda: owner + 2)
    parts, evolution = Parts(PartsConfig(), tmp_path), EvolutionSpec(generator="python:mine:propose")
    evolution.answer_duration.FromSeconds(1)

    async def prepare() -> None:
        raise AssertionError("it is not asked")

    problem = (await parts.ask(PROPOSAL, evolution, prepare)).problem
    assert problem.endswith(f"runtime_folder {tmp_path}: belongs to somebody else; choose another")
    assert not list(tmp_path.iterdir())


async def test_a_machine_without_room_for_a_process_costs_the_part_its_say_and_nobody_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", full)
    parts, evolution = Parts(PartsConfig(), tmp_path), EvolutionSpec(generator="python:mine:propose")
    evolution.answer_duration.FromSeconds(1)

    async def prepare() -> Prepared[ProposeAgentResponse]:
        return Prepared(ProposeAgentRequest(), lambda answer: None)

    reply = await parts.ask(PROPOSAL, evolution, prepare)
    assert reply.answer is None
    assert reply.problem.endswith("mine:propose cannot be started: Resource temporarily unavailable")
    await parts.close()
