"""Serves functions of plugins to another process: a host runs their child processes under another user id.

    host = PluginHost(make_connection)                  # make_connection(NamedPlugin) -> ChildConnection, not started
    server = await Server.start(config, [hosted_service(descriptor, host)])

A service or a leader in a container cannot change user ids. Its functions then run in another container, which has none
of its tokens, keys and files. The caller names the function in the metadata of each call (podrace.plugins.hosted). The
host starts the child process, forwards the call, and kills a child that does not answer in time.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from podrace import rpc
from podrace.errors import NOT_OPEN, Cancelled, InvalidArgument, PodraceError
from podrace.plugins.child import PluginConnection
from podrace.rpc import Service

PLUGIN_KEY = "podrace-plugin-bin"
"""Key of the metadata that names the function: a NamedPlugin as JSON."""
LONGEST_CALL_SECONDS = 1800.0
"""Time limit of a call without a deadline."""
ANSWER_SECONDS = 0.1
"""Time reserved for the answer to reach the caller before the caller's deadline."""
IDLE_SECONDS = 600.0
"""A child that was not called for this long is killed."""
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class NamedPlugin:
    """The function that a call is for."""

    address: str
    """`python:module:function`."""
    kind: str
    """What the function is used as: `generator`, `updater` or `evaluator`."""
    on_gpu: bool = False
    """Whether the function computes on the GPU of its role."""

    def encode(self) -> bytes:
        """Returns it as the value of PLUGIN_KEY."""
        return json.dumps(asdict(self)).encode()


@dataclass
class _Hosted:
    connection: PluginConnection
    calls: int = 0
    """Calls in progress."""
    idle: asyncio.TimerHandle | None = field(default=None)


class PluginHost:
    """Forwards calls to the child processes of functions, and starts and kills these processes."""

    def __init__(self, make_connection: Callable[[NamedPlugin], PluginConnection]) -> None:
        """Creates the host; processes are started when they are first called.

        Args:
            make_connection: Makes the connection to a child process that is not started yet. Raises a PodraceError if
                the function is not allowed here.
        """
        self._make_connection = make_connection
        self._plugins: dict[NamedPlugin, _Hosted] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, plugin: NamedPlugin, method: MethodDescriptor, request: Any, seconds: float) -> Any:
        """Calls a function.

        Args:
            plugin: The function.
            method: Method of the contract.
            request: Its request.
            seconds: Time limit, in which its process may have to be started.

        Raises:
            PodraceError: What the function raised, or why its process cannot be called.
        """
        hosted = self._plugins.get(plugin)
        if hosted is None:
            hosted = self._plugins[plugin] = _Hosted(self._make_connection(plugin))
        if hosted.idle is not None:
            hosted.idle.cancel()
        hosted.calls += 1
        try:
            return await _pass_on(hosted.connection, method, request, seconds)
        finally:
            hosted.calls -= 1
            # A call that `close` cut short leaves no timer behind.
            if not hosted.calls and self._plugins.get(plugin) is hosted:
                hosted.idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end, plugin)

    def _end(self, plugin: NamedPlugin) -> None:
        task = asyncio.ensure_future(self._plugins.pop(plugin).connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Kills all child processes."""
        closed, self._plugins = self._plugins, {}
        for hosted in closed.values():
            if hosted.idle is not None:
                hosted.idle.cancel()
        await asyncio.gather(*(hosted.connection.close() for hosted in closed.values()), *self._closing)


async def _pass_on(connection: PluginConnection, method: MethodDescriptor, request: Any, seconds: float) -> Any:
    give_up = asyncio.get_running_loop().time() + seconds
    try:
        channel = await connection.ready(seconds)
        call: Any = channel.unary_unary(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        left_seconds = max(0.0, give_up - asyncio.get_running_loop().time())
        response = await rpc.call(call, request, deadline_seconds=left_seconds)
        if response is None:
            # gRPC returns None for bytes that cannot be parsed, after logging an error.
            raise InvalidArgument(f"not a {method.output_type.name}")
        return response
    except PodraceError as error:
        if error.reason == NOT_OPEN:
            # Its process was started again; the caller opens another session there.
            raise
        problem = await connection.failed(error)
        raise type(error)(problem, reason=error.reason) from None
    except asyncio.CancelledError:
        await asyncio.shield(connection.failed(Cancelled("the caller does not wait any more")))
        raise


def hosted_service(descriptor: ServiceDescriptor, host: PluginHost) -> Service:
    """Returns a service whose calls the host passes on. All its methods must have one request and one response."""

    def add(host: PluginHost, server: grpc.aio.Server) -> None:
        handlers = {method.name: _handler(host, method) for method in descriptor.methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(descriptor.full_name, handlers),))

    return Service(descriptor, add, host)


def _handler(host: PluginHost, method: MethodDescriptor) -> Any:
    async def passed_on(request: Any, context: Context) -> Any:
        remaining = context.time_remaining()
        seconds = LONGEST_CALL_SECONDS if remaining is None else max(0.0, remaining - ANSWER_SECONDS)
        return await host.call(_named(context.invocation_metadata() or ()), method, request, seconds)

    behaviour: Callable[[Any, Context], Awaitable[Any]] = passed_on
    return grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def _named(metadata: Iterable[tuple[str, str | bytes]]) -> NamedPlugin:
    """Returns the function that the metadata of a call names.

    Raises:
        InvalidArgument: It names none.
    """
    for key, value in metadata:
        if key == PLUGIN_KEY:
            try:
                named = NamedPlugin(**json.loads(value))
            except (TypeError, ValueError, RecursionError):
                break
            if isinstance(named.address, str) and isinstance(named.kind, str) and isinstance(named.on_gpu, bool):
                return named
    raise InvalidArgument(f"the metadata {PLUGIN_KEY} of the call names no function of a plugin")
