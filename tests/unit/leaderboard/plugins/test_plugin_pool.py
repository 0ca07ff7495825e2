"""Time limits of calls to plugins, and what happens when a process cannot be started."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leaderboard.config import PluginConfig
from leaderboard.plugins import plugin_pool as module
from leaderboard.plugins.plugin_pool import PROPOSAL, PluginPool, PluginReply, PreparedRequest
from podrace.evolution.v1.evolution_pb2 import ProposeAgentRequest, ProposeAgentResponse
from podrace.limits.config import EVERYTHING
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec


class Plugin:
    """A connection to a plugin that answers once the test lets it, and the plugin's stub."""

    def __init__(self) -> None:
        self.time_limits: list[float] = []
        """Of each call, in seconds."""
        self.may_answer = asyncio.Event()

    async def ready(self, seconds: float) -> Any:
        return self

    async def ProposeAgent(self, request: Any, *, timeout: float) -> ProposeAgentResponse:
        self.time_limits.append(timeout)
        await self.may_answer.wait()
        return ProposeAgentResponse(fresh={})

    async def close(self) -> None:
        pass


@pytest.fixture
def plugin() -> Plugin:
    return Plugin()


@pytest.fixture
def call(plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[PluginReply[Any]]]:
    plugins, evolution = PluginPool(PluginConfig(), tmp_path, EVERYTHING), EvolutionSpec(generator="grpc://127.0.0.1:1")
    monkeypatch.setattr(plugins, "_connect", lambda *_: module._PooledPlugin(plugin))
    monkeypatch.setattr(module, "EvolutionServiceStub", lambda channel: channel)

    async def at_once() -> PreparedRequest[ProposeAgentResponse]:
        return PreparedRequest(ProposeAgentRequest(), lambda answer: None)

    def called(answer_seconds: float, prepare: Any = at_once) -> Awaitable[PluginReply[Any]]:
        evolution.answer_duration.FromNanoseconds(round(answer_seconds * 1e9))
        return plugins.call(PROPOSAL, evolution, prepare)

    return called


async def test_a_call_waits_for_earlier_calls_only_as_long_as_time_for_its_own_answer_remains(
    plugin: Plugin, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_SECONDS", 1.0)
    first = asyncio.create_task(call(0.75))
    while not plugin.time_limits:
        await asyncio.sleep(0)
    second = await call(0.75)
    assert second.problem == "generator grpc://127.0.0.1:1: busy with other requests for 0.25 s"
    plugin.may_answer.set()
    assert (await first).answer is not None
    assert plugin.time_limits == [0.75]


async def test_preparing_a_request_does_not_shorten_the_time_to_answer(
    plugin: Plugin, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))

    async def prepare() -> PreparedRequest[ProposeAgentResponse]:
        nonlocal now
        now += 60.0
        return PreparedRequest(ProposeAgentRequest(), lambda answer: None)

    plugin.may_answer.set()
    assert (await call(8.0, prepare)).problem == ""
    assert plugin.time_limits == [8.0]


async def test_no_socket_is_created_in_a_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    plugins, evolution = (
        PluginPool(PluginConfig(), tmp_path, EVERYTHING),
        EvolutionSpec(generator="python:mine:propose"),
    )
    evolution.answer_duration.FromSeconds(1)

    async def prepare() -> None:
        raise AssertionError("the plugin is called")

    problem = (await plugins.call(PROPOSAL, evolution, prepare)).problem
    assert problem.endswith(
        f"runtime_folder = {str(tmp_path)!r}: belongs to another user ({owner}); choose another folder"
    )
    assert not list(tmp_path.iterdir())


async def test_a_process_that_cannot_be_started_is_a_failure_of_the_plugin_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    plugins, evolution = (
        PluginPool(PluginConfig(), tmp_path, EVERYTHING),
        EvolutionSpec(generator="python:mine:propose"),
    )
    evolution.answer_duration.FromSeconds(1)

    async def prepare() -> PreparedRequest[ProposeAgentResponse]:
        return PreparedRequest(ProposeAgentRequest(), lambda answer: None)

    reply = await plugins.call(PROPOSAL, evolution, prepare)
    assert reply.answer is None
    assert reply.problem.endswith("mine:propose: its process cannot be started: Resource temporarily unavailable")
    await plugins.close()
