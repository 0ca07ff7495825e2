"""Calls the methods of servicers in this process, through the same translation of errors as a server does."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from podrace.access.guard import Guard
from podrace.access.interceptor import AccessInterceptor
from podrace.rpc.interceptor import ErrorTranslator, checked_request
from podrace.rpc.server import LARGEST_MESSAGE_BYTES
from podrace.rpc.status import DETAILS_KEY

WAITING_SECONDS = 0.03
"""A call that waits for something is cancelled after this time."""
EVALUATION_SECONDS = 2.0
"""An evaluation is cancelled after this time: a request may ask for a million episodes."""
MOST_ANSWERS = 3
"""Messages that are read of a stream."""
WAITING = (
    *("AcquireAssignment", "WaitEvaluation", "WatchTournament", "WatchCandidates"),
    *("GetTraining", "JoinFusion", "CommitFusion"),
)
BLOCKING = dict.fromkeys(WAITING, WAITING_SECONDS) | {"EvaluatePolicy": EVALUATION_SECONDS}
"""Methods that wait for something that no case brings about, or compute as long as the request demands."""


class Ended(Exception):
    """The call ended with a status."""


class FakeContext:
    """The part of a gRPC context that servicers use."""

    def __init__(self) -> None:
        self.status, self.message = grpc.StatusCode.OK, ""
        self.metadata: dict[str, bytes] = {}

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self.status, self.message, self.metadata = code, details, dict(trailing_metadata)
        # The limit of clients on metadata.
        assert sum(len(key) + len(value) for key, value in trailing_metadata) + 3 * len(details.encode()) < 8192
        raise Ended

    def peer(self) -> str:
        return "unix:"

    def time_remaining(self) -> float | None:
        return None

    def auth_context(self) -> dict[str, Any]:
        return {}

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def cancelled(self) -> bool:
        return False

    def add_done_callback(self, callback: Any) -> None:
        """Never calls back."""

    async def write(self, message: Message) -> None:
        """Takes a message of a stream that is written, not yielded."""


def missing_detail(context: FakeContext, method: str) -> str:
    """Returns which detail of an error is missing that the contracts promise; empty if none is."""
    if context.status == grpc.StatusCode.OK:
        return ""
    found = {}
    for detail in status_pb2.Status.FromString(context.metadata[DETAILS_KEY]).details:
        name = detail.TypeName().rpartition(".")[2]
        found[name] = getattr(error_details_pb2, name).FromString(detail.value)
    service, _, short = method.removeprefix("/").rpartition("/")
    info = found["ErrorInfo"]
    if (info.domain, info.metadata["service"], info.metadata["method"]) != ("podrace", service, short):
        return f"ErrorInfo has {info}"
    if context.status == grpc.StatusCode.INVALID_ARGUMENT and not found["BadRequest"].field_violations:
        return "BadRequest lists no violation"
    if context.status == grpc.StatusCode.NOT_FOUND:
        resource = found.get("ResourceInfo")
        return "" if resource and resource.resource_type else f"ResourceInfo is {resource}"
    if context.status == grpc.StatusCode.UNAVAILABLE and "RetryInfo" not in found:
        return "there is no RetryInfo"
    return ""


@dataclass(frozen=True)
class Method:
    """A method of a servicer, wrapped as in a server."""

    name: str
    kind: type[Message]
    """Type of a request."""
    handler: Any

    @property
    def short_name(self) -> str:
        """The name without package and service."""
        return self.name.rpartition("/")[2]


class Collected:
    """Takes the place of a server in the generated functions that add a servicer; wraps the handlers."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Takes handlers in the older form, which is not used."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Takes the handlers of a service by method."""
        self.handlers |= {f"/{service}/{name}": handler for name, handler in handlers.items()}


async def methods_of(service: Any) -> list[Method]:
    """Returns the methods of a podrace.rpc.Service."""
    collected = Collected()
    service.add(service.servicer, collected)
    types = service.descriptor.methods_by_name
    return [
        Method(name, types[name.rpartition("/")[2]].input_type._concrete_class, await _wrapped(name, handler))
        for name, handler in collected.handlers.items()
    ]


async def _wrapped(name: str, handler: Any) -> Any:
    """Wraps a handler as a server does: errors become statuses, the caller is admitted, and bounds are checked."""
    details: Any = SimpleNamespace(method=name, invocation_metadata=())
    access = AccessInterceptor(Guard.of_anyone(), checked_request)

    async def known(details: Any) -> Any:
        return handler

    async def admitted(details: Any) -> Any:
        return await access.intercept_service(known, details)

    return await ErrorTranslator().intercept_service(admitted, details)


async def call(method: Method, requests: Sequence[bytes]) -> FakeContext:
    """Makes one call with the bytes of its requests.

    Raises:
        Exception: A defect that no status was made of.
    """
    context, handler = FakeContext(), method.handler
    decoded = [handler.request_deserializer(data) for data in requests]
    argument = _stream(decoded) if handler.request_streaming else decoded[0]
    behaviour = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
    seconds = BLOCKING.get(method.short_name)
    try:
        async with asyncio.timeout(seconds):
            await _answered(behaviour(argument, context))
    except Ended:
        pass
    except TimeoutError:
        if method.short_name not in BLOCKING:
            raise  # of the caller
    return context


async def _answered(call: Any) -> None:
    if not inspect.isasyncgen(call):
        answer = await call
        assert answer is None or len(answer.SerializeToString()) <= LARGEST_MESSAGE_BYTES
        return
    count = 0
    try:
        async for answer in call:
            assert len(answer.SerializeToString()) <= LARGEST_MESSAGE_BYTES
            count += 1
            if count >= MOST_ANSWERS:
                break
    finally:
        await call.aclose()


async def _stream(requests: Sequence[Any]) -> AsyncIterator[Any]:
    for request in requests:
        yield request
