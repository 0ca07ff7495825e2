"""Receives the request of a call after its caller was authenticated, and only few requests of anyone at a time.

gRPC keeps what has arrived of a request in memory, up to 4 MiB for each call, as soon as the server reads. Before, it
accepts 64 KiB of a call. A handler with a single request would read before the server has decided anything, so each
handler is wrapped as one with a stream of requests, which reads when it is ready.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from podrace.access.credentials import bearer_token
from podrace.access.interceptor import AccessInterceptor
from podrace.access.open_streams import host_of
from podrace.access.rules import rule_of
from podrace.errors import DeadlineExceeded, InvalidArgument, PodraceError, ResourceExhausted
from podrace.rpc.status import abort

PUBLIC_SECONDS = 2.0
"""Time in which the request of a method without authentication must arrive; it arrives with the call as a rule."""
MOST_PUBLIC = 64
"""Requests of methods without authentication that a server receives at a time."""
MOST_PUBLIC_OF_ADDRESS = 8
"""Those of one address."""
MOST_CALLS_OF_ADDRESS = 256
"""Calls of one address that wait for that, or whose request is being received; further ones are refused."""
RETRY_SECONDS = 1.0

Context = grpc.aio.ServicerContext[Any, Any]
Receive = Callable[[Context], Awaitable[Any]]


class ReceivingInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler with a single request; it is the first interceptor of a server."""

    def __init__(self, access: AccessInterceptor) -> None:
        """Creates the interceptor; `access` authenticates the callers."""
        self._access, self._public = access, PublicRequests()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        receive = self._receiving(handler_call_details)
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if not handler.response_streaming:
            return grpc.stream_unary_rpc_method_handler(_single(handler.unary_unary, receive), **codec)
        if not inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.stream_stream_rpc_method_handler(_single(handler.unary_stream, receive), **codec)
        return grpc.stream_stream_rpc_method_handler(_stream(handler.unary_stream, receive), **codec)

    def _receiving(self, details: grpc.HandlerCallDetails) -> Receive:
        method, metadata = details.method, details.invocation_metadata or ()

        async def receive(context: Context) -> Any:
            try:
                rule = rule_of(method)
                if rule.public:
                    request = await self._public.receive(context.peer(), context.read)
                else:
                    await self._access.authenticate(rule, bearer_token(metadata), context)
                    request = await context.read()
                if request is grpc.aio.EOF:
                    raise InvalidArgument(f"{method}: the call has no request")
            except PodraceError as error:
                await abort(context, error, method)
            return request

        return receive


def _single(behaviour: Callable[..., Awaitable[Any]], receive: Receive) -> Callable[..., Awaitable[Any]]:
    async def received(_: Any, context: Context) -> Any:
        return await behaviour(await receive(context), context)

    return received


def _stream(behaviour: Callable[..., AsyncIterator[Any]], receive: Receive) -> Callable[..., AsyncIterator[Any]]:
    async def received(_: Any, context: Context) -> AsyncIterator[Any]:
        async for message in behaviour(await receive(context), context):
            yield message

    return received


class PublicRequests:
    """Receives requests of callers that are not authenticated, a few of each address at a time.

    request = await requests.receive(context.peer(), context.read)
    """

    def __init__(self, seconds: float = PUBLIC_SECONDS) -> None:
        """Starts without requests; `seconds` is the time in which one must arrive."""
        self._seconds = seconds
        self._all = asyncio.Semaphore(MOST_PUBLIC)
        self._of_address: dict[str, asyncio.Semaphore] = {}
        self._calls: Counter[str] = Counter()

    async def receive(self, peer: str, read: Callable[[], Awaitable[Any]]) -> Any:
        """Returns a request.

        Args:
            peer: Address of the caller as gRPC writes it.
            read: Reads the request.

        Raises:
            ResourceExhausted: Too many calls of the address wait.
            DeadlineExceeded: It did not arrive in time.
        """
        address = host_of(peer)
        if self._calls[address] >= MOST_CALLS_OF_ADDRESS:
            raise ResourceExhausted(
                f"{MOST_CALLS_OF_ADDRESS} calls of {address} wait until their requests are received: try again",
                retry_seconds=RETRY_SECONDS,
            )
        self._calls[address] += 1
        of_address = self._of_address.setdefault(address, asyncio.Semaphore(MOST_PUBLIC_OF_ADDRESS))
        try:
            async with of_address, self._all:
                return await self._received(read)
        finally:
            self._calls[address] -= 1
            if not self._calls[address]:
                del self._calls[address], self._of_address[address]

    async def _received(self, read: Callable[[], Awaitable[Any]]) -> Any:
        # A read of gRPC must not be cancelled: it ends with the call.
        reading = asyncio.ensure_future(read())
        reading.add_done_callback(_noticed)
        done, _ = await asyncio.wait({reading}, timeout=self._seconds)
        if not done:
            raise DeadlineExceeded(f"the request did not arrive within {self._seconds:g} s")
        return reading.result()


def _noticed(reading: "asyncio.Future[Any]") -> None:
    """Takes the error of a read whose call has ended, which would otherwise be logged."""
    if not reading.cancelled():
        reading.exception()
