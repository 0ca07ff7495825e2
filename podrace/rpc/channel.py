"""Opens gRPC channels and makes calls: retries as the protos allow, deadlines, errors as PodraceError."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from podrace import tls, tracing
from podrace.access.credentials import NoListener, TokenSource
from podrace.access.sending import TokenChannel, may_send_token
from podrace.errors import Unavailable
from podrace.ownership import check_socket
from podrace.rpc.renewing_channel import CallOutcome, RenewingChannel
from podrace.rpc.status import from_rpc_error

ENDED_WHILE_SENDING = "Internal error from Core"
"""What gRPC says, with the code INTERNAL and without the status of the server, if it could not send a request."""
NOTHING: Mapping[str, Any] = {}
SERVING_POLL_SECONDS = 0.05
LISTENER_POLL_SECONDS = 0.1
KEEPALIVE_SECONDS = 5.0
"""Silence of a connection after which it is probed, and time that the probe may take. So a half-open connection is
replaced after about twice this time."""
CONNECT_SECONDS = 3.0
"""Time that one attempt to connect may take."""

Request = TypeVar("Request", contravariant=True)
Response = TypeVar("Response", covariant=True)


def connect(
    address: str,
    *files: FileDescriptor,
    token: TokenSource | None = None,
    private_network: bool = False,
    third_party: bool = False,
    owner: int | None = None,
) -> grpc.aio.Channel:
    """Opens a channel whose retry policy follows the `idempotency_level` of each method in `files`.

    Methods marked NO_SIDE_EFFECTS or IDEMPOTENT wait for a server that restarts and are retried on UNAVAILABLE. The
    others are sent once. No call is retried on DEADLINE_EXCEEDED: its effect is unknown and its time is used up.

    On a network, connections are probed (keepalive), and after several calls in a row that exceeded their deadline a
    new connection is opened: the present one may be half-open.

    Args:
        address: `host:port` or `unix:/path`.
        files: Contracts of the services that are called.
        token: Returns the token that identifies the caller. It is sent over TLS and within this machine only. None for
            an address that came from a specification: its owner must not receive a token of the mesh.
        private_network: Whether the token may be sent unencrypted to another machine: a secret of one pod, on the
            network that its collectives use unencrypted as well.
        third_party: Whether the server belongs to a third party. It is not probed, because servers refuse clients that
            probe more often than every five minutes unless they were configured otherwise.
        owner: User who must own a Unix socket; None: the user of this process.

    Raises:
        InvalidArgument, FailedPrecondition: The files of podrace.tls cannot be used, or the address is a Unix socket of
            another user.
    """
    check_socket(address, owner)
    options: list[tuple[str, Any]] = [
        ("grpc.service_config", json.dumps(service_config(files))),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # This is also the time that one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", round(CONNECT_SECONDS * 1000)),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # The name of a service may stand for replicas that get other addresses when they start again. The default,
        # 30 s, is longer than a takeover may take.
        ("grpc.dns_min_time_between_resolutions_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),
        # Services are never reached through a web proxy.
        ("grpc.enable_http_proxy", 0),
    ]
    identity = tls.identity_for(address)
    if not address.startswith("unix:") and not third_party:
        options += keepalive_options()
    channel: grpc.aio.Channel
    if address.startswith("unix:"):
        channel = grpc.aio.insecure_channel(address, options=options)
    elif identity is None:
        channel = RenewingChannel(lambda: grpc.aio.insecure_channel(address, options=options), lambda: None)
    else:
        channel = _with_certificates(address, identity, [*options, *identity.options])
    return TokenChannel(channel, token) if token and (private_network or may_send_token(address)) else channel


def keepalive_options() -> list[tuple[str, int]]:
    """Returns the gRPC options by which a client notices a half-open connection."""
    milliseconds = round(KEEPALIVE_SECONDS * 1000)
    return [
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        # A probe of gRPC itself, which measures the bandwidth, may be under way: no other is sent until it is answered.
        ("grpc.http2.ping_timeout_ms", milliseconds),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _with_certificates(address: str, identity: tls.TlsIdentity, options: list[tuple[str, Any]]) -> grpc.aio.Channel:
    # Checked at once, so that the caller learns what is wrong with the files.
    identity.check()
    return RenewingChannel(
        lambda: grpc.aio.secure_channel(address, identity.of_channel(), options=options), identity.stamp
    )


def service_config(files: Sequence[FileDescriptor]) -> dict[str, object]:
    """Derives the gRPC service config (as a JSON object) from the `idempotency_level` of each method."""
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


async def _made(
    method: Callable[..., Any], request: Any, deadline_seconds: float | None, carried: Mapping[str, Any] = NOTHING
) -> Any:
    """Makes a call. While nothing listens at its address, a method that may be repeated waits, as its channel would.

    Raises:
        NoListener: Nothing listens within the deadline, or the method may not be repeated.
    """
    now = asyncio.get_running_loop().time
    left, end = deadline_seconds, inf if deadline_seconds is None else now() + deadline_seconds
    while True:
        try:
            return method(request, timeout=left, **carried)
        except NoListener:
            if now() + LISTENER_POLL_SECONDS >= end or not _may_be_repeated(getattr(method, "path", "")):
                raise
        await asyncio.sleep(LISTENER_POLL_SECONDS)
        left = None if deadline_seconds is None else end - now()


def _may_be_repeated(path: str) -> bool:
    """Whether the proto of the method `/package.Service/Method` says that it may be repeated."""
    try:
        method = descriptor_pool.Default().FindMethodByName(path.lstrip("/").replace("/", "."))
    except KeyError:
        return False
    return bool(method.GetOptions().idempotency_level != MethodOptions.IDEMPOTENCY_UNKNOWN)


@contextmanager
def _closing_is_unavailable() -> Iterator[None]:
    """Raises Unavailable if a call ends because its channel was closed: gRPC raises CancelledError.

    Otherwise the caller's task would end as if it had been cancelled.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Unavailable("the connection was closed before the call ended; try again") from None


async def call(method: _Unary[Request, Response], request: Request, *, deadline_seconds: float | None) -> Response:
    """Makes one unary call.

    Args:
        method: The method of a stub.
        request: The request.
        deadline_seconds: Limit of the call; None if its caller ends it when the server makes no progress.

    Raises:
        PodraceError: The error that the server returned, or DeadlineExceeded, or Unavailable, also if the channel was
            closed meanwhile.
    """
    with tracing.calling(request) as carried, _closing_is_unavailable():
        made = await _made(method, request, deadline_seconds, carried)
        outcome = CallOutcome(method)
        try:
            response: Response = await made
        except grpc.aio.AioRpcError as error:
            outcome.note(deadline_exceeded=error.code() == grpc.StatusCode.DEADLINE_EXCEEDED)
            raise from_rpc_error(error) from None
    outcome.note(deadline_exceeded=False)
    return response


async def stream(
    method: _Stream[Request, Response], request: Request, *, deadline_seconds: float | None
) -> AsyncIterator[Response]:
    """Yields the messages of a server stream until it ends.

    Args:
        method: The method of a stub.
        request: The request.
        deadline_seconds: Limit for the whole stream; None for a stream that lives as long as client and server.

    Raises:
        PodraceError: As `call`.
    """
    responses = await _made(method, request, deadline_seconds)
    try:
        with _closing_is_unavailable():
            async for response in responses:
                yield response
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    finally:
        responses.cancel()


async def send(method: Callable[..., Any], requests: Iterable[Message], *, deadline_seconds: float) -> Message:
    """Makes one call that streams requests, each created when the server is ready for it, and returns the response.

    Raises:
        Unavailable: Also if the server ended the call while a request was being sent: gRPC then often does not tell why
            (1 refusal in 10 with requests of 1 MiB), so the reason may need another call.
        PodraceError: As `call`.
    """

    async def one_by_one() -> AsyncIterator[Message]:
        for request in requests:
            yield request

    try:
        with _closing_is_unavailable():
            response: Message = await method(one_by_one(), timeout=deadline_seconds)
        return response
    except grpc.aio.AioRpcError as error:
        if error.code() == grpc.StatusCode.INTERNAL and error.details() == ENDED_WHILE_SENDING:
            raise Unavailable("the server ended the call before it had received all requests; try again") from None
        raise from_rpc_error(error) from None


async def wait_until_serving(address: str, *, deadline_seconds: float, owner: int | None = None) -> None:
    """Polls the health service at `address`, of the user `owner`, until it reports SERVING.

    Raises:
        Unavailable: It did not report SERVING within the deadline.
    """
    async with connect(address, owner=owner) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_seconds):
                while not await _is_serving(stub):
                    await asyncio.sleep(SERVING_POLL_SECONDS)
                return
    proven = " with a certificate of this authority" if tls.identity_for(address) else ""
    raise Unavailable(f"nothing serves at {address}{proven} (waited {deadline_seconds:g} s)")


async def wait_until_ready(channel: grpc.aio.Channel, deadline_seconds: float) -> None:
    """Waits until a channel is connected; the channel may reconnect several times meanwhile.

    Raises:
        Unavailable: It is not connected within the deadline.
    """
    try:
        await asyncio.wait_for(channel.channel_ready(), deadline_seconds)
    except TimeoutError:
        raise Unavailable(f"a channel was not connected within {deadline_seconds:g} s") from None


async def _is_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
