"""Asks a server what it is and what a specification may name there."""

from typing import Any

from google.protobuf.message import Message

from podrace import rpc
from podrace.access.credentials import TokenSource
from podrace.access.token_file import operator_token
from podrace.discovery.v1 import discovery_pb2 as pb
from podrace.discovery.v1 import discovery_pb2_grpc as pb_grpc
from podrace.errors import DeadlineExceeded, Unavailable

ANSWER_SECONDS = 5.0


async def get_server(address: str, token: TokenSource | None = None) -> pb.GetServerResponse:
    """Returns version, features and limits of the server at an address; raises PodraceError.

    Args:
        address: Address of the orchestrator.
        token: What `Client.token_for` returns for this address; None: that of this process.
    """
    found: pb.GetServerResponse = await _ask(address, "GetServer", pb.GetServerRequest(), token)
    return found


async def get_caller(address: str, token: TokenSource | None = None) -> pb.GetCallerResponse:
    """Returns who the server takes the caller for, and its roles; arguments as of `get_server`.

    Raises:
        Unauthenticated: The credentials are not valid there.
        Unimplemented: The server is of an earlier version.
        PodraceError: It does not answer, or refuses.
    """
    found: pb.GetCallerResponse = await _ask(address, "GetCaller", pb.GetCallerRequest(), token)
    return found


async def list_algorithms(address: str) -> pb.ListAlgorithmsResponse:
    """Returns the algorithms that a server knows; raises PodraceError."""
    found: pb.ListAlgorithmsResponse = await _ask(address, "ListAlgorithms", pb.ListAlgorithmsRequest())
    return found


async def list_simulators(address: str) -> pb.ListSimulatorsResponse:
    """Returns the simulators that a server knows; raises PodraceError."""
    found: pb.ListSimulatorsResponse = await _ask(address, "ListSimulators", pb.ListSimulatorsRequest())
    return found


async def list_strategies(address: str) -> pb.ListStrategiesResponse:
    """Returns the strategies that a server knows; raises PodraceError."""
    found: pb.ListStrategiesResponse = await _ask(address, "ListStrategies", pb.ListStrategiesRequest())
    return found


async def list_event_kinds(address: str) -> pb.ListEventKindsResponse:
    """Returns the kinds of events that a server records; raises PodraceError."""
    found: pb.ListEventKindsResponse = await _ask(address, "ListEventKinds", pb.ListEventKindsRequest())
    return found


async def _ask(address: str, method: str, request: Message, token: TokenSource | None = None) -> Any:
    async with rpc.connect(address, pb.DESCRIPTOR, token=token or operator_token(address)) as channel:
        stub = pb_grpc.DiscoveryServiceStub(channel)
        try:
            return await rpc.call(getattr(stub, method), request, deadline_seconds=ANSWER_SECONDS)
        except (DeadlineExceeded, Unavailable) as error:
            raise Unavailable(
                f"{address} does not answer (waited up to {ANSWER_SECONDS:g} s): {error.message}"
            ) from None
