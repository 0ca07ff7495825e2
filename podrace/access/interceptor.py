"""Refuses calls that no rule of the contract allows: the one place of a server where access is decided."""

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import Message

from podrace import tracing
from podrace.access.credentials import NO_TRANSPORT, Credentials, bearer_token
from podrace.access.guard import Guard
from podrace.access.principal import Principal, set_current_principal
from podrace.access.rules import Rule, rule_of
from podrace.errors import InvalidArgument, Unavailable

Context = grpc.aio.ServicerContext[Any, Any]
Admit = Callable[[Any, Context], Awaitable[Any]]
"""Returns the request of an allowed call; raises if the call is refused."""
CHECK_SECONDS = 5.0
"""Time for which a watch sends messages without another check of the credentials of its caller."""
CheckRequest = Callable[[Any, str], Any]
"""Returns a request of a method, and raises InvalidArgument if it is not valid."""
LARGEST_PUBLIC_REQUEST_BYTES = 1024
"""Most bytes of a request that begins a stream without authentication: the name of a service."""


_authenticated: ContextVar[tuple[Context, Principal] | None] = ContextVar("podrace_authenticated", default=None)
"""The call that this task answers, and its caller."""


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates the caller of every call and applies the rule of the method. Methods without a rule are refused.

    The fields of the request are checked after the caller's role and before its resource, so that only callers that may
    call the method learn what is wrong with the request.
    The handlers raise PodraceError, so this interceptor comes after the one that translates errors.
    """

    def __init__(self, guard: Guard, check_request: CheckRequest) -> None:
        """Creates the interceptor.

        Args:
            guard: Decides about each call.
            check_request: Checks each request.
        """
        self._guard, self._check_request = guard, check_request

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        rule = rule_of(handler_call_details.method)
        token = bearer_token(handler_call_details.invocation_metadata or ())
        is_stream = handler.request_streaming or handler.response_streaming
        if is_watch(rule.method):
            handler = self._while_admitted(handler, rule, token)
        return _wrapped(_traced(handler, handler_call_details), self._admitting(rule, token, is_stream=is_stream))

    async def authenticate(self, rule: Rule, token: str, context: Context) -> Principal:
        """Returns the caller of a call, which is authenticated once.

        Args:
            rule: Of the method.
            token: That the caller presents; empty: none.
            context: Of the call.

        Raises:
            PodraceError: As `Guard.authenticate`.
        """
        known = _authenticated.get()
        if known is not None and known[0] is context:
            return known[1]
        principal = await self._guard.authenticate(self._credentials(token, context), rule)
        _authenticated.set((context, principal))
        return principal

    def _credentials(self, token: str, context: Context) -> Credentials:
        # The certificate matters even to a caller with a token: it may have been revoked.
        needed = not token or self._guard.checks_connections
        return Credentials(token, context.peer(), context.auth_context() if needed else NO_TRANSPORT)

    def _while_admitted(self, handler: Any, rule: Rule, token: str) -> Any:
        """Returns a handler of a watch that sends nothing more after the credentials of its caller became invalid."""

        async def watched(request: Any, context: Context) -> AsyncIterator[Any]:
            admits = functools.partial(self._guard.still_admits, self._credentials(token, context), rule)
            async with contextlib.aclosing(handler.unary_stream(request, context)) as messages:
                async for message in _until_refused(messages, admits, self._guard.now, context):
                    yield message

        return grpc.unary_stream_rpc_method_handler(
            watched, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )

    def _admitting(self, rule: Rule, token: str, *, is_stream: bool) -> Admit:
        async def admit(request: Any, context: Context) -> Any:
            if rule.public:
                checked = self._check_request(request, rule.method)
                if is_stream:
                    _check_size(checked, rule.method)
                    _call_when_done(context, self._guard.open_public_stream(context.peer()))
                return checked
            principal = await self.authenticate(rule, token, context)
            self._guard.check_role(principal, context.peer(), rule, request)
            checked = self._check_request(request, rule.method)
            self._guard.check(principal, context.peer(), rule, checked)
            if is_stream:
                _call_when_done(context, self._guard.open_stream(principal))
            set_current_principal(principal)
            return checked

        return admit


@functools.cache
def is_watch(method: str) -> bool:
    """Whether a method of a server, `/package.Service/Method`, is a stream that clients resume by a token."""
    try:
        found = descriptor_pool.Default().FindMethodByName(method.lstrip("/").replace("/", "."))
    except KeyError:
        return False
    return "resume_token" in found.output_type.fields_by_name


async def _until_refused(
    messages: AsyncIterator[Any], admits: Callable[[], Awaitable[bool]], now: Callable[[], float], context: Context
) -> AsyncIterator[Any]:
    checked, begun = now(), False
    async for message in messages:
        if now() - checked >= CHECK_SECONDS:
            if not await admits():
                if not begun:
                    # gRPC itself repeats a call that fails before it has answered anything, with the same token.
                    await context.send_initial_metadata(())
                # Clients call again, with the credentials that they have then.
                raise Unavailable("the credentials of this stream have expired or were revoked: call again")
            checked = now()
        begun = True
        yield message


def _check_size(request: Message, method: str) -> None:
    """Refuses a large request that a stream without authentication would keep in memory.

    Raises:
        InvalidArgument: It is too large.
    """
    if (size := request.ByteSize()) > LARGEST_PUBLIC_REQUEST_BYTES:
        raise InvalidArgument(f"{method}: the request has {size} bytes; at most {LARGEST_PUBLIC_REQUEST_BYTES}")


def _call_when_done(context: Any, end: Callable[[], None]) -> None:
    """Calls `end` when a call has ended. A cancelled handler may leave its generator to the garbage collector."""
    context.add_done_callback(lambda _: end())


def _traced(handler: Any, details: grpc.HandlerCallDetails) -> Any:
    """Returns a handler that answers within the trace of its call; only calls that are allowed reach it."""
    if handler.request_streaming or handler.response_streaming:
        return handler

    async def traced(request: Any, context: Context) -> Any:
        with tracing.answering(details.method, details.invocation_metadata):
            return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(
        traced, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )


def _wrapped(handler: Any, admit: Admit) -> Any:
    codec: dict[str, Any] = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(_stream(handler.stream_stream, admit), **codec)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(_unary(handler.stream_unary, admit), **codec)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(_stream(handler.unary_stream, admit), **codec)
    return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary, admit), **codec)


def _unary(behaviour: Callable[..., Awaitable[Any]], admit: Admit) -> Callable[..., Awaitable[Any]]:
    async def admitted(request: Any, context: Context) -> Any:
        return await behaviour(await admit(request, context), context)

    return admitted


def _stream(behaviour: Callable[..., Any], admit: Admit) -> Callable[..., Any]:
    if not inspect.isasyncgenfunction(behaviour):
        return _unary(behaviour, admit)

    async def admitted(request: Any, context: Context) -> AsyncIterator[Any]:
        async for message in behaviour(await admit(request, context), context):
            yield message

    return admitted
