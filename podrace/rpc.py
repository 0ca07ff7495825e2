"""gRPC as the mesh uses it: servers with health and drain, channels whose retries come from the contract, one error
translator.

Servers raise PodraceError and clients catch PodraceError; only this file knows grpc.StatusCode. Every call names its
deadline.
"""

import asyncio
import errno
import inspect
import json
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import grpc
import structlog
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from podrace import errors, tls

DOMAIN = "podrace"
"""Domain of every google.rpc.ErrorInfo the mesh sends."""
DETAILS_KEY = "grpc-status-details-bin"
LONGEST_MESSAGE_BYTES = 1000
"""Longer messages are cut: gRPC refuses metadata above 8 KiB, and escapes each byte that is not ASCII with three."""
SERVING_POLL_SECONDS = 0.05

_log = structlog.get_logger(__name__)
Request = TypeVar("Request", contravariant=True)
Response = TypeVar("Response", covariant=True)


@dataclass(frozen=True)
class ServerConfig:
    """How a service listens and how it goes."""

    listen: str = "127.0.0.1:0"
    """Address: `host:port` (port 0: any free one) or `unix:/path`."""
    reflection: bool = False
    """Answer grpc.reflection, for grpcurl and the like."""
    drain_seconds: float = 0.0
    """After NOT_SERVING, wait this long for load balancers to notice before refusing new calls."""
    grace_seconds: float = 5.0
    """Calls in flight may take this long to finish when the service stops."""
    health_listen: str = ""
    """Another address, where health is told without TLS to whoever asks: probes of Kubernetes know no certificates."""


@dataclass(frozen=True)
class Service:
    """One service of a server: its descriptor, the generated function that adds it, and the servicer."""

    descriptor: ServiceDescriptor
    add: Callable[[Any, Any], None]
    servicer: object


class Server:
    """A listening gRPC server.

    server = await Server.start(config, [Service(...), ...])
    reason = await shutdown_requested(...)
    await server.drain()
    """

    def __init__(
        self,
        config: ServerConfig,
        server: grpc.aio.Server,
        health_servicer: health.aio.HealthServicer,
        address: str,
        asked: "_Bound | None" = None,
    ) -> None:
        self._config = config
        self._server = server
        self._health = health_servicer
        self._asked = asked
        self.address = address

    @classmethod
    async def start(cls, config: ServerConfig, services: Sequence[Service]) -> "Server":
        """Binds and serves.

        Raises:
            Unavailable: The address cannot be bound, or another server listens on it; the message names it.
            InvalidArgument, FailedPrecondition: The files of podrace.tls cannot be used.
        """
        server = await _bound(config.listen, tls.identity_for(config.listen))
        health_servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server.server)
        names = [service.descriptor.full_name for service in services]
        for service in services:
            service.add(service.servicer, server.server)
        if config.reflection:
            reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server.server)
        await server.server.start()
        asked = await _bound(config.health_listen, None) if config.health_listen else None
        if asked:
            health_pb2_grpc.add_HealthServicer_to_server(health_servicer, asked.server)
            await asked.server.start()
        for name in ["", *names]:
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        return cls(config, server.server, health_servicer, server.address, asked)

    @property
    def health_address(self) -> str:
        """Where health is told without TLS; empty if nowhere but with the rest."""
        return self._asked.address if self._asked else ""

    async def drain(self) -> None:
        """NOT_SERVING, wait, refuse new calls, let the others finish within the grace."""
        await self._health.enter_graceful_shutdown()
        if self._config.drain_seconds:
            await asyncio.sleep(self._config.drain_seconds)
        await self._server.stop(self._config.grace_seconds)
        if self._asked:
            await self._asked.server.stop(None)


class _Bound(NamedTuple):
    server: grpc.aio.Server
    address: str


async def _bound(listen: str, identity: tls.Identity | None) -> _Bound:
    """A server that owns its address; raises as Server.start does."""
    credentials = identity.of_server() if identity else None
    if _has_listener(listen):
        raise errors.Unavailable(f"cannot listen on {listen}: another server does; choose another or stop that one")
    # so_reuseport would let a second server bind the same port and share its calls: a port in use must be an error.
    server = grpc.aio.server(interceptors=[_ErrorTranslator()], options=[("grpc.so_reuseport", 0)])
    try:
        port = server.add_secure_port(listen, credentials) if credentials else server.add_insecure_port(listen)
    except RuntimeError:
        port = 0
    if port:
        return _Bound(server, listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}")
    await server.stop(None)
    # The traceback of the error would keep the server alive beyond its event loop.
    del server
    raise errors.Unavailable(
        f"cannot listen on {listen}: the address is in use or not one of this machine;"
        " choose another or stop what holds it"
    )


def _has_listener(address: str) -> bool:
    """Whether a live server listens on a Unix socket; gRPC would replace its file without a word."""
    if not address.startswith("unix:"):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            # EAGAIN: it listens, but its queue is full.
            return probe.connect_ex(address.removeprefix("unix:").removeprefix("//")) in (0, errno.EAGAIN)
        except OSError:
            # No path of a socket at all: to bind it fails as well, and tells why.
            return False


async def shutdown_requested(*others: Awaitable[str]) -> str:
    """Waits for SIGTERM, SIGINT, or the first of `others` (a lifeline, say) and returns the reason in words."""
    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[str] = loop.create_future()

    def on_signal(name: str) -> None:
        if not signalled.done():
            signalled.set_result(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    waiting = [asyncio.ensure_future(other) for other in others]
    done, pending = await asyncio.wait([signalled, *waiting], return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return next(iter(done)).result()


# --- errors, translated once -------------------------------------------------------------------------------------


class _ErrorTranslator(grpc.aio.ServerInterceptor):
    """Turns what a servicer raises into a status; a bug is logged with its traceback and told as INTERNAL."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        codec: dict[str, Any] = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        behaviour = handler.stream_stream or handler.unary_stream
        if behaviour and not inspect.isasyncgenfunction(behaviour):
            # A coroutine that writes to its context, as the health service does: its errors are grpc's own.
            return handler
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(_translate_stream(handler.stream_stream), **codec)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(_translate_unary(handler.stream_unary), **codec)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_translate_stream(handler.unary_stream), **codec)
        return grpc.unary_unary_rpc_method_handler(_translate_unary(handler.unary_unary), **codec)


def _translate_unary(behaviour: Callable[..., Awaitable[Message]]) -> Callable[..., Awaitable[Message]]:
    async def translated(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
        try:
            return await behaviour(request, context)
        except Exception as error:
            await _abort(context, error)
            raise  # not reached: abort raises

    return translated


def _translate_stream(behaviour: Callable[..., AsyncIterator[Message]]) -> Callable[..., AsyncIterator[Message]]:
    async def translated(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Message]:
        try:
            async for message in behaviour(request, context):
                yield message
        except Exception as error:
            await _abort(context, error)

    return translated


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, errors.PodraceError):
        _log.exception("call failed", error=repr(error))
        error = errors.Internal(f"{type(error).__name__}: {error}; the service's log has the traceback")
    code = grpc.StatusCode[error.code]
    message = _cut(error.message)
    await context.abort(code, message, ((DETAILS_KEY, _status_bytes(error, message)),))


def _cut(message: str) -> str:
    data = message.encode(errors="replace")
    if len(data) <= LONGEST_MESSAGE_BYTES:
        return message
    return data[:LONGEST_MESSAGE_BYTES].decode(errors="ignore") + "..."


def _status_bytes(error: errors.PodraceError, message: str) -> bytes:
    """The error as a google.rpc.Status; clients of the richer error model compare its message with the call's."""
    status = status_pb2.Status(code=grpc.StatusCode[error.code].value[0], message=message)
    if error.reason:
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))
    data: bytes = status.SerializeToString()
    return data


def from_rpc_error(error: grpc.aio.AioRpcError) -> errors.PodraceError:
    """The PodraceError that a failed call stands for."""
    reason = ""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            for detail in status_pb2.Status.FromString(cast(bytes, value)).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == DOMAIN:
                    reason = info.reason
    kind = errors.BY_CODE.get(error.code().name, errors.Internal)
    return kind(error.details() or error.code().name, reason=reason)


# --- channels ----------------------------------------------------------------------------------------------------


def connect(address: str, *files: FileDescriptor) -> grpc.aio.Channel:
    """Opens a channel whose retry policy is what the contracts in `files` allow.

    Methods marked NO_SIDE_EFFECTS or IDEMPOTENT wait for a server that restarts and are repeated on UNAVAILABLE; the
    others are sent once. Nothing is ever repeated on DEADLINE_EXCEEDED: its effect is unknown and its time is up.

    Raises:
        InvalidArgument, FailedPrecondition: The files of podrace.tls cannot be used.
    """
    options: list[tuple[str, Any]] = [
        ("grpc.service_config", json.dumps(service_config(files))),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),
        # Addresses of this mesh are never behind a web proxy.
        ("grpc.enable_http_proxy", 0),
    ]
    identity = tls.identity_for(address)
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, identity.of_channel(), options=[*options, *identity.options])


def service_config(files: Sequence[FileDescriptor]) -> dict[str, object]:
    """The gRPC service config (JSON shape) derived from each method's `idempotency_level`."""
    retried = [
        {"service": service.full_name, "method": method.name}
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
        if method.GetOptions().idempotency_level != MethodOptions.IDEMPOTENCY_UNKNOWN
    ]
    if not retried:
        return {}
    policy = {
        "maxAttempts": 5,
        "initialBackoff": "0.1s",
        "maxBackoff": "2s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return {"methodConfig": [{"name": retried, "waitForReady": True, "retryPolicy": policy}]}


class _Unary(Protocol[Request, Response]):
    def __call__(self, request: Request, /, *, timeout: float | None = None) -> Awaitable[Response]: ...


class _Stream(Protocol[Request, Response]):
    def __call__(self, request: Request, /, *, timeout: float | None = None) -> Any: ...


async def call(method: _Unary[Request, Response], request: Request, *, deadline_seconds: float) -> Response:
    """Makes one unary call.

    Raises:
        PodraceError: What the server answered, or Unavailable / DeadlineExceeded.
    """
    try:
        return await method(request, timeout=deadline_seconds)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None


async def stream(
    method: _Stream[Request, Response], request: Request, *, deadline_seconds: float | None
) -> AsyncIterator[Response]:
    """Reads a server stream to its end; None means that the stream lives as long as both sides do.

    Raises:
        PodraceError: As `call`.
    """
    responses = method(request, timeout=deadline_seconds)
    try:
        async for response in responses:
            yield response
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    finally:
        responses.cancel()


async def send(method: Callable[..., Any], requests: Iterable[Message], *, deadline_seconds: float) -> Message:
    """Makes one call that streams requests, made one by one as the server takes them, and returns the answer.

    Raises:
        PodraceError: As `call`.
    """

    async def one_by_one() -> AsyncIterator[Message]:
        for request in requests:
            yield request

    try:
        response: Message = await method(one_by_one(), timeout=deadline_seconds)
        return response
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None


async def wait_until_serving(address: str, *, deadline_seconds: float) -> None:
    """Waits until the server at `address` says SERVING; asks again while it says anything else.

    Raises:
        Unavailable: It did not within the deadline.
    """
    async with connect(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_seconds):
                while not await _says_serving(stub):
                    await asyncio.sleep(SERVING_POLL_SECONDS)
                return
    proven = " that shows a certificate of this authority" if tls.identity_for(address) else ""
    raise errors.Unavailable(f"nothing{proven} serves at {address} (waited {deadline_seconds:g} s)")


async def wait_until_ready(channel: grpc.aio.Channel, deadline_seconds: float) -> None:
    """Waits until a channel is connected, through the pauses between its attempts.

    Raises:
        Unavailable: It is not within the deadline.
    """
    try:
        await asyncio.wait_for(channel.channel_ready(), deadline_seconds)
    except TimeoutError:
        raise errors.Unavailable(f"a channel was not connected within {deadline_seconds:g} s") from None


async def _says_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
