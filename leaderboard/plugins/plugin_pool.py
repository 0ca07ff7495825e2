"""Calls the generators and updaters that specifications name, with time limits and a circuit breaker for each.

    problem = await pool.find_missing_function(spec.evolution)
    reply = await pool.call(PROPOSAL, spec.evolution, prepare)
    await pool.close()

A failing plugin never blocks a tournament: `call` returns within a bounded time, with a usable answer or with the
reason why there is none. The pool decides nothing about agents and candidates, and stores nothing beyond this process.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc.aio
import prometheus_client
import structlog
from google.protobuf.message import Message

from leaderboard.config import PluginConfig
from leaderboard.plugins.function_process import function_connection
from leaderboard.plugins.plugin_users import PluginUser, PluginUsers
from leaderboard.plugins.runtime_folder import RuntimeFolder
from podrace import rpc
from podrace.errors import BAD_SPEC, DeadlineExceeded, InvalidArgument, PodraceError
from podrace.evolution.v1.evolution_pb2 import (
    JudgeCandidateRequest,
    JudgeCandidateResponse,
    ProposeAgentRequest,
    ProposeAgentResponse,
)
from podrace.evolution.v1.evolution_pb2_grpc import EvolutionServiceStub
from podrace.limits.config import NOTHING, Allowed
from podrace.limits.names import plugin_problem
from podrace.limits.services import check_transport, service_token
from podrace.limits.specification import plugin_refusal
from podrace.plugins.address import EXPECTED, GrpcService, PythonFunction, parse
from podrace.plugins.child import PluginConnection, ServiceConnection
from podrace.plugins.circuit_breaker import CircuitBreaker
from podrace.plugins.host import NamedPlugin
from podrace.plugins.hosted import HostedConnection
from podrace.printable import one_line
from podrace.specification.plugin_settings import evolution_answer_seconds
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec

CALL_SECONDS = 9.0
"""Time limit of a whole call except for preparing its request: waiting for earlier calls, starting the process, and the
answer. The caller of the leaderboard waits 10 s."""
CHECK_SECONDS = 3.0
"""Time limit of the check whether a function exists. A module that takes longer to import is not checked."""
LARGEST_ANSWER_BYTES = 1 << 16
"""Answers are stored with the agent or the candidate."""
IDLE_SECONDS = 600.0
"""A plugin that was not called for this long is disconnected, its process killed."""

ANSWERS = prometheus_client.Counter(
    "podrace_leaderboard_plugin_answers", "Calls of generator and updater plugins by outcome", ["plugin", "outcome"]
)
ANSWER_SECONDS = prometheus_client.Histogram(
    "podrace_leaderboard_plugin_seconds", "Time from a call of a plugin to its usable answer", ["plugin"]
)
_log = structlog.get_logger(__name__)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True)
class PluginMethod(Generic[Answer]):
    """One of the two methods of EvolutionService."""

    kind: str
    """Key of `[evolution]` that names the plugin."""
    name: str
    request: type[Message]
    answer: type[Answer]


PROPOSAL = PluginMethod("generator", "ProposeAgent", ProposeAgentRequest, ProposeAgentResponse)
JUDGEMENT = PluginMethod("updater", "JudgeCandidate", JudgeCandidateRequest, JudgeCandidateResponse)


@dataclass(frozen=True)
class PreparedRequest(Generic[Answer]):
    """A request, and the check of its answer."""

    request: Message
    check: Callable[[Answer], object]
    """Raises InvalidArgument for an answer that cannot be used."""


@dataclass(frozen=True)
class PluginReply(Generic[Answer]):
    """The result of a call."""

    answer: Answer | None
    """A usable answer."""
    problem: str = ""
    """Else what went wrong, in one line that begins with the kind and the address. Empty if nothing was requested."""


Prepare = Callable[[], Awaitable[PreparedRequest[Answer] | None]]
"""Makes the request when it is the call's turn; None if there is nothing to request any more."""


@dataclass
class _PooledPlugin:
    """One plugin, and the calls that wait for it."""

    connection: PluginConnection
    user: PluginUser | None = None
    """User of its process; None: that of the leaderboard, or it has no process here."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    disconnect: asyncio.TimerHandle | None = None


class PluginPool:
    """Calls plugins, one request at a time for each."""

    def __init__(
        self,
        config: PluginConfig,
        runtime_folder: Path,
        allowed: Allowed = NOTHING,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects to no plugin until it is called.

        Args:
            config: Limits of child processes.
            runtime_folder: Folder of their sockets.
            allowed: Which functions and services may be called.
            monotonic: Clock of the circuit breakers, in seconds.
        """
        self._config, self._allowed, self._monotonic = config, allowed, monotonic
        self._folder = RuntimeFolder(runtime_folder)
        self._users = PluginUsers(config, runtime_folder, allowed)
        self._plugins: dict[tuple[str, str], _PooledPlugin] = {}
        self._numbers = itertools.count(1)
        self._closing: set[asyncio.Task[None]] = set()

    async def find_missing_function(self, evolution: EvolutionSpec) -> str:
        """Returns which plugin is not allowed or names a function that does not exist, as key, value and reason.

        The result is empty if all functions exist, if the check takes longer than CHECK_SECONDS, and if a module exists
        but fails: that may be repaired, and the built-in component is used until then. Services are not checked.
        """
        for method in (PROPOSAL, JUDGEMENT):
            if problem := plugin_refusal(f"evolution.{method.kind}", getattr(evolution, method.kind), self._allowed):
                return problem
        functions = [
            method
            for method in (PROPOSAL, JUDGEMENT)
            if isinstance(parse(getattr(evolution, method.kind)), PythonFunction)
        ]
        problems = await asyncio.gather(*(self._check_exists(one, getattr(evolution, one.kind)) for one in functions))
        return next(filter(None, problems), "")

    async def _check_exists(self, method: PluginMethod[Any], address: str) -> str:
        try:
            plugin = self._plugin(method.kind, address)
        except PodraceError:
            return ""
        give_up = time.monotonic() + CHECK_SECONDS
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await plugin.turn.acquire()
        except TimeoutError:
            return ""
        try:
            channel = await plugin.connection.ready(give_up - time.monotonic())
            seconds = max(0.0, give_up - time.monotonic())
            await rpc.call(_method_of(channel, method), method.request(), deadline_seconds=seconds)
        except PodraceError as error:
            await plugin.connection.failed(error)
            return f"evolution.{method.kind} = {address!r}: {error.message}" if error.reason == BAD_SPEC else ""
        finally:
            plugin.turn.release()
            self._disconnect_later((method.kind, address), plugin)
        return ""

    async def call(
        self, method: PluginMethod[Answer], evolution: EvolutionSpec, prepare: Prepare[Answer]
    ) -> PluginReply[Answer]:
        """Calls the plugin that the specification names; raises nothing for a failure of the plugin.

        Args:
            method: The method.
            evolution: Names the plugin and the time limit of its answer.
            prepare: Makes the request; what it raises is passed on.
        """
        address = getattr(evolution, method.kind)
        begin = time.monotonic()
        reply, outcome = await self._call_in_turn(method, address, evolution_answer_seconds(evolution), prepare)
        ANSWERS.labels(method.kind, outcome).inc()
        if not reply.problem:
            ANSWER_SECONDS.labels(method.kind).observe(time.monotonic() - begin)
            return reply
        return PluginReply(None, f"{method.kind} {address}: {one_line(reply.problem)}")

    async def _call_in_turn(
        self, method: PluginMethod[Answer], address: str, answer_seconds: float, prepare: Prepare[Answer]
    ) -> tuple[PluginReply[Answer], str]:
        give_up = time.monotonic() + CALL_SECONDS
        try:
            plugin = self._plugin(method.kind, address)
        except PodraceError as error:
            return PluginReply(None, error.message), "failed"
        # A longer wait would shorten the time to answer: the plugin would fail because of other calls.
        turn_seconds = min(answer_seconds, CALL_SECONDS - answer_seconds)
        try:
            async with asyncio.timeout(turn_seconds):
                await plugin.turn.acquire()
        except TimeoutError:
            return PluginReply(None, f"busy with other requests for {turn_seconds:g} s"), "busy"
        try:
            if plugin.breaker.is_open(self._monotonic()):
                return PluginReply(None, plugin.breaker.summary), "left out"
            begin = time.monotonic()
            prepared = await prepare()
            if prepared is None:
                return PluginReply(None), "nothing to ask"
            give_up += time.monotonic() - begin
            answer, problem = await _answer_of(plugin.connection, method, answer_seconds, give_up, prepared)
            self._record_outcome(plugin, method.kind, address, problem)
            return PluginReply(answer, problem), "failed" if problem else "used"
        finally:
            plugin.turn.release()
            self._disconnect_later((method.kind, address), plugin)

    def _record_outcome(self, plugin: _PooledPlugin, kind: str, address: str, problem: str) -> None:
        if not problem:
            if plugin.breaker.failures:
                _log.info("plugin answers again", kind=kind, address=address)
            plugin.breaker = CircuitBreaker()
            return
        now = self._monotonic()
        plugin.breaker = plugin.breaker.after_failure(now, problem)
        _log.warning(
            "plugin failed; built-in component used instead",
            kind=kind,
            address=address,
            problem=one_line(problem),
            failures_in_a_row=plugin.breaker.failures,
            pause_seconds=max(0.0, plugin.breaker.open_until - now),
        )

    def _plugin(self, kind: str, address: str) -> _PooledPlugin:
        """Returns the plugin of an address; raises PodraceError if it cannot be connected to."""
        plugin = self._plugins.get((kind, address))
        if plugin is None:
            plugin = self._plugins[kind, address] = self._connect(kind, address)
        if plugin.disconnect is not None:
            plugin.disconnect.cancel()
        return plugin

    def _connect(self, kind: str, address: str) -> _PooledPlugin:
        named = parse(address)
        if problem := plugin_problem(address, self._allowed):
            raise InvalidArgument(problem)
        if isinstance(named, GrpcService):
            check_transport(named.target, self._allowed)
            return _PooledPlugin(ServiceConnection(named.target, token=service_token(named.target, self._allowed)))
        if named is None:
            raise InvalidArgument(f"malformed address: {EXPECTED}")
        if self._config.host:
            hosted = HostedConnection(self._config.host, NamedPlugin(address, kind), owner=self._config.host_uid)
            return _PooledPlugin(hosted)
        user = self._users.choose()
        lifeline = user.lifeline if user else self._folder.hold_lifeline()
        number = next(self._numbers)
        connection = function_connection(
            address,
            kind,
            memory_bytes=self._config.memory_bytes,
            lifeline=lifeline,
            socket_prefix=user.home / "function" if user else lifeline.with_name(f"{lifeline.stem}-{kind}-{number}"),
            allowed=self._allowed,
            user_id=user.user_id if user else 0,
        )
        if user is None and not self._allowed.everything:
            _log.warning(
                "a plugin has the user id of the leaderboard and can read its files: set plugins.host, or run the"
                " leaderboard as root",
                kind=kind,
                address=address,
            )
        return _PooledPlugin(connection, user)

    def _disconnect_later(self, key: tuple[str, str], plugin: _PooledPlugin) -> None:
        def disconnect() -> None:
            if not plugin.turn.locked():
                self._plugins.pop(key, None)
                task = asyncio.ensure_future(self._end(plugin))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

        if plugin.disconnect is not None:
            plugin.disconnect.cancel()
        plugin.disconnect = asyncio.get_running_loop().call_later(IDLE_SECONDS, disconnect)

    async def _end(self, plugin: _PooledPlugin) -> None:
        await plugin.connection.close()
        self._users.end(plugin.user)

    async def close(self) -> None:
        """Disconnects all plugins, and kills the child processes."""
        for plugin in self._plugins.values():
            if plugin.disconnect is not None:
                plugin.disconnect.cancel()
        await asyncio.gather(*(self._end(plugin) for plugin in self._plugins.values()), *self._closing)
        self._plugins.clear()
        self._folder.release()


async def _answer_of(
    connection: PluginConnection,
    method: PluginMethod[Answer],
    answer_seconds: float,
    give_up: float,
    prepared: PreparedRequest[Answer],
) -> tuple[Answer | None, str]:
    """Calls once; returns a usable answer, or what went wrong."""
    try:
        channel = await connection.ready(max(0.0, give_up - answer_seconds - time.monotonic()))
        seconds = min(answer_seconds, max(0.0, give_up - time.monotonic()))
        try:
            answer: Any = await rpc.call(_method_of(channel, method), prepared.request, deadline_seconds=seconds)
        except DeadlineExceeded:
            raise DeadlineExceeded(f"no answer within {seconds:g} s") from None
    except PodraceError as error:
        return None, await connection.failed(error)
    try:
        if answer is None:
            # gRPC returns None for bytes that cannot be parsed, after logging an error.
            raise InvalidArgument(f"not a {method.answer.__name__}")
        if answer.ByteSize() > LARGEST_ANSWER_BYTES:
            raise InvalidArgument(f"{answer.ByteSize()} bytes, expected at most {LARGEST_ANSWER_BYTES}")
        prepared.check(answer)
    except InvalidArgument as error:
        return None, f"invalid answer: {error.message}"
    return answer, ""


def _method_of(channel: grpc.aio.Channel, method: PluginMethod[Any]) -> Any:
    stub: Any = EvolutionServiceStub(channel)
    return getattr(stub, method.name)
