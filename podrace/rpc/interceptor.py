"""Turns exceptions of servicers, and requests that cannot be decoded or are out of bounds, into gRPC statuses."""

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from podrace.access.rules import kind_name, resource_of, rule_of
from podrace.errors import InvalidArgument, NamedResource, PodraceError, Unimplemented
from podrace.field_bounds import violations
from podrace.rpc.status import abort

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class _Undecodable:
    """Replaces a request whose bytes are not a message of the expected type."""

    size_bytes: int


class ErrorTranslator(grpc.aio.ServerInterceptor):
    """Wraps every handler, so that a caller receives the status of what the servicer raised.

    gRPC decodes a request before it calls the handler, and answers UNKNOWN when that fails. So the deserializer is
    wrapped as well: it returns a marker, for which `checked_request` raises InvalidArgument.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the handler of a call."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            # With a stream of requests, because gRPC would receive a single one before it calls the handler.
            return grpc.stream_unary_rpc_method_handler(_unary(_absent(method), method))
        codec: dict[str, Any] = {
            "request_deserializer": handler.request_deserializer and _marking(handler.request_deserializer),
            "response_serializer": handler.response_serializer,
        }
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(_stream(handler.stream_stream, method), **codec)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(_unary(handler.stream_unary, method), **codec)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_stream(handler.unary_stream, method), **codec)
        return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary, method), **codec)


def _marking(deserialize: Callable[[bytes], Message]) -> Callable[[bytes], Message | _Undecodable]:
    def marked(data: bytes) -> Message | _Undecodable:
        try:
            return deserialize(data)
        except DecodeError:
            return _Undecodable(len(data))

    return marked


def _absent(method: str) -> Callable[..., Awaitable[Message]]:
    async def refused(request: Any, context: Context) -> Message:
        raise Unimplemented(f"{method}: this server has no such method; compare the versions of client and server")

    return refused


def _named(request: Any, method: str) -> NamedResource | None:
    """Returns what a call concerns, by the rule of its method; None if that is nothing, or a stream of requests.

    A request without an id names a resource with an empty name.
    """
    # First the request: the rules of methods are remembered, and a call may name any method.
    if not isinstance(request, Message) or not (rule := rule_of(method)).path:
        return None
    resource = resource_of(rule, request)
    return NamedResource(kind_name(resource.kind if resource.id else rule.resource), resource.id)


def _unary(behaviour: Callable[..., Awaitable[Message]], method: str) -> Callable[..., Awaitable[Message]]:
    async def translated(request: Any, context: Context) -> Message:
        try:
            return await behaviour(request, context)
        except Exception as error:
            await abort(context, error, method, _named(request, method))
            raise  # not reached: abort raises

    return translated


def _stream(behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
    if not inspect.isasyncgenfunction(behaviour):
        return _written_stream(behaviour, method)

    async def translated(request: Any, context: Context) -> AsyncIterator[Message]:
        try:
            async for message in behaviour(request, context):
                yield message
        except Exception as error:
            await abort(context, error, method, _named(request, method))

    return translated


def _written_stream(behaviour: Callable[..., Awaitable[None]], method: str) -> Callable[..., Awaitable[None]]:
    """Wraps a coroutine that writes to its context, such as the health watch. gRPC itself handles its other errors."""

    async def translated(request: Any, context: Context) -> None:
        try:
            await behaviour(request, context)
        except PodraceError as error:
            await abort(context, error, method, _named(request, method))

    return translated


def checked_request(request: Any, name: str) -> Any:
    """Returns a request, or the requests of a stream, after checking that they were decoded and are within bounds.

    Raises:
        InvalidArgument: The request could not be decoded, or fields are out of bounds; for a stream, raised when the
            request is reached.
    """
    if isinstance(request, AsyncIterable):
        return _checked_stream(request, name)
    _check(request, name)
    return request


async def _checked_stream(requests: AsyncIterable[Any], name: str) -> AsyncIterator[Any]:
    async for request in requests:
        _check(request, name)
        yield request


def _check(request: Any, name: str) -> None:
    if isinstance(request, _Undecodable):
        raise _refusal(request, name)
    if found := violations(request):
        listed = "; ".join(map(str, found))
        raise InvalidArgument(f"{name.rpartition('/')[2]}: {listed}", violations=found)


def _refusal(request: _Undecodable, name: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name}: the {request.size_bytes} bytes of the request are not a valid message of this method;"
        " compare the .proto files of client and server"
    )
