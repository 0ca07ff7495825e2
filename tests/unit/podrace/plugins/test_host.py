"""The host of functions: a process ends when it was idle for a while, and not while it is called."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.errors import PodraceError, Unavailable
from podrace.plugins.host import IDLE_SECONDS, NamedPlugin, PluginHost

METHOD = pb.DESCRIPTOR.services_by_name["EvaluatorService"].methods_by_name["CloseEvaluator"]
PLUGIN = NamedPlugin("python:module:function", "evaluator")


class Connection:
    """A connection whose calls fail when a test lets them."""

    def __init__(self) -> None:
        self.answers, self.closed = asyncio.Event(), 0

    def start(self) -> None:
        pass

    async def ready(self, seconds: float) -> Any:
        await self.answers.wait()
        raise Unavailable("no process")

    async def failed(self, error: PodraceError) -> str:
        return error.message

    async def close(self) -> None:
        self.closed += 1


class Timer:
    """A timer that a test fires."""

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._callback, self._arguments = callback, arguments
        self.pending = True

    def cancel(self) -> None:
        self.pending = False

    def fire(self) -> None:
        self.pending = False
        self._callback(*self._arguments)


class World:
    """A host, its connections, and its timers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections: list[Connection] = []
        self._timers: list[Timer] = []
        self.host = PluginHost(self._connect)
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def timer(seconds: float, callback: Callable[..., object], *arguments: Any, **options: Any) -> Any:
            if seconds != IDLE_SECONDS:
                return call_later(seconds, callback, *arguments, **options)
            self._timers.append(Timer(callback, arguments))
            return self._timers[-1]

        monkeypatch.setattr(loop, "call_later", timer)

    def _connect(self, plugin: NamedPlugin) -> Connection:
        self.connections.append(Connection())
        return self.connections[-1]

    @property
    def timers(self) -> list[Timer]:
        return [timer for timer in self._timers if timer.pending]

    async def begin(self, calls: int) -> list[asyncio.Task[Any]]:
        """Begins calls, which last until `end`."""
        begun = [
            asyncio.create_task(self.host.call(PLUGIN, METHOD, pb.CloseEvaluatorRequest(), 60.0)) for _ in range(calls)
        ]
        await asyncio.sleep(0)
        return begun

    async def end(self, calls: list[asyncio.Task[Any]]) -> None:
        self.connections[-1].answers.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Unavailable] * len(calls)
        self.connections[-1].answers.clear()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_a_process_ends_once_after_its_last_call(world: World) -> None:
    await world.end(await world.begin(3))
    (timer,) = world.timers
    timer.fire()
    await world.host.close()
    assert [connection.closed for connection in world.connections] == [1]


async def test_no_timer_of_former_calls_ends_the_next_process(world: World) -> None:
    await world.end(await world.begin(2))
    for timer in world.timers:
        timer.fire()
    running = await world.begin(1)
    assert len(world.connections) == 2
    assert not world.timers
    await world.end(running)
    await world.host.close()


async def test_a_process_that_is_called_does_not_end(world: World) -> None:
    await world.end(await world.begin(1))
    again = await world.begin(2)
    assert not world.timers
    again[0].cancel()
    await asyncio.wait(again[:1])
    assert not world.timers, "the other call has not ended"
    await world.end(again[1:])
    assert len(world.timers) == 1
    await world.host.close()


@pytest.mark.parametrize("called", [False, True])
async def test_a_closed_host_has_no_timer(world: World, called: bool) -> None:
    calls = await world.begin(2)
    if not called:
        await world.end(calls)
    await world.host.close()
    if called:
        await world.end(calls)
    assert not world.timers
    assert [connection.closed for connection in world.connections] == [1]
