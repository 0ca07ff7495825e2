"""Calls methods with deadlines, reads lists to their last page, and keeps the channels of a client."""

import asyncio
import functools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from podrace import rpc
from podrace.access.credentials import TokenSource
from podrace.access.sending import may_send_token
from podrace.access.token_file import operator_token
from podrace.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted, Unavailable
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from podrace.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceAsyncStub

PAGE_SIZE = 64
"""Entries a page. A page that exceeds the message limit of gRPC (4 MiB) is requested again with half as many."""
LARGEST_PAGE = 1000
"""Entries a page, at most, by the contracts."""
MOST_REPEATS = 10
"""How often one page is requested again after a pause that the service asked for."""
LONGEST_PAUSE_SECONDS = 5.0
ARCHIVE_SECONDS = 90.0
"""Deadline of a deletion: the operator may have tournaments archived first."""
BACK_UP_SECONDS = 600.0
"""Deadline of backups of both databases."""
QUICK_SECONDS = 5.0
"""Deadline of calls to the orchestrator that write little or nothing, and of calls for a single agent."""
DURABLE_SECONDS = 10.0
"""Deadline of calls that create a tournament, and of other calls to the leaderboard."""
CHECK_SECONDS = 90.0
"""Deadline of CreateTournament that only checks the specification, for which environments are made."""
REPLAY_SECONDS = 60.0
"""Deadline of ReplayTournament."""


Response = TypeVar("Response")


class MeshChannels:
    """Holds the channels of one client; an asynchronous context manager that closes them at the end.

    Args:
        orchestrator: Address of the orchestrator, `host:port` or `unix:/path`.
        token: Returns the token of a person, with which all calls are made; None: the calls have the token and the
            certificate of this process.
    """

    def __init__(self, orchestrator: str, token: TokenSource | None = None) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._address, self._token = orchestrator, token
        channel = self._channel(orchestrator)
        self._orchestrator: OrchestratorServiceAsyncStub = pb_grpc.OrchestratorServiceStub(channel)

    @property
    def address(self) -> str:
        """Address of the orchestrator."""
        return self._address

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            files = pb.DESCRIPTOR, board_pb.DESCRIPTOR
            # Addresses come from the user and from the orchestrator, never from a specification.
            self._channels[address] = rpc.connect(address, *files, token=self.token_for(address))
        return self._channels[address]

    def token_for(self, address: str) -> TokenSource | None:
        """Returns what identifies this client at an address of the mesh.

        Raises:
            FailedPrecondition: The token of a person would be sent unencrypted to another machine.
        """
        return operator_token(address) if self._token is None else token_of_person(address, self._token)

    async def _ask(self, method: Callable[..., Awaitable[Response]], request: Message, seconds: float) -> Response:
        return await call(self._address, method, request, seconds)


def token_of_person(address: str, token: TokenSource) -> TokenSource:
    """Returns the token of a person for an address. Without it, a call would have the rights of this process.

    Raises:
        FailedPrecondition: It would be sent unencrypted to another machine.
    """
    if not may_send_token(address):
        raise FailedPrecondition(f"{address}: a token is not sent without TLS to another machine; set PODRACE_TLS_*")
    return token


def new_request_id() -> str:
    """Returns a text that makes one call idempotent."""
    return str(uuid.uuid4())


async def call(
    address: str, method: Callable[..., Awaitable[Response]], request: Message, deadline_seconds: float
) -> Response:
    """Makes one call; the error about a service that does not answer names its address."""
    try:
        return await rpc.call(method, request, deadline_seconds=deadline_seconds)
    except (DeadlineExceeded, Unavailable) as error:
        raise type(error)(f"{address} does not answer (waited up to {deadline_seconds:g} s): {error.message}") from None


async def pages(
    address: str, method: Callable[..., Awaitable[Response]], request: Any, deadline_seconds: float
) -> AsyncIterator[Response]:
    """Calls a list method until its last page, with the deadline for each call."""
    async for page in pages_by(functools.partial(call, address, method, deadline_seconds=deadline_seconds), request):
        yield page


async def pages_by(
    ask: Callable[[Any], Awaitable[Response]],
    request: Any,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[Response]:
    """Asks for the pages of a list until the last one.

    A page that is larger than a message may be is requested again with half as many entries. If the service limits the
    rate of calls, the page is requested again after the pause that it asks for.

    Args:
        ask: Makes the call.
        request: The first request; its page size and its page token are changed.
        sleep: Waits for so many seconds.

    Raises:
        ResourceExhausted: A single entry is larger than a message may be, or the service still refuses a page after
            MOST_REPEATS pauses.
    """
    repeats = 0
    while True:
        try:
            page: Any = await ask(request)
        except ResourceExhausted as error:
            if error.retry_seconds is not None:
                repeats += 1
                if repeats > MOST_REPEATS:
                    raise
                await sleep(min(error.retry_seconds, LONGEST_PAUSE_SECONDS))
                continue
            # gRPC refuses the page. Present services limit pages by bytes; those of earlier versions do not.
            if getattr(request, "page_size", 0) <= 1:
                raise
            request.page_size //= 2
            continue
        repeats = 0
        yield page
        request.page_token = page.next_page_token
        if not request.page_token:
            return
