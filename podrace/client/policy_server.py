"""Calls a policy server: which versions it serves, and changes of them.

async with PolicyServerClient("127.0.0.1:8001") as server:
    serving = await server.serving()
    await server.roll_back(serving.version)
"""

import socket
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from google.protobuf.message import Message

from podrace import rpc
from podrace.access.token_file import operator_token
from podrace.errors import InvalidArgument, NotFound, Unavailable
from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.policy.v1 import policy_service_pb2_grpc as pb_grpc

QUICK_SECONDS = 5.0
LOAD_SECONDS = 60.0
DIGEST_CHARACTERS = 64
FEWEST_CHARACTERS = 6
"""A shorter prefix of a digest names no version."""


class PolicyServerClient:
    """Calls one policy server; an asynchronous context manager. Changes need the role `operator`."""

    def __init__(self, address: str) -> None:
        """Connects with the first call.

        Args:
            address: `host:port` or `unix:/path` of PolicyService.
        """
        self.address = address
        self._channel = rpc.connect(address, pb.DESCRIPTOR, token=operator_token(address))
        self._stub: Any = pb_grpc.PolicyServiceStub(self._channel)

    async def __aenter__(self) -> "PolicyServerClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def serving(self) -> pb.Serving:
        """Returns which versions serve; raises PodraceError as the contract states, like the other methods."""
        return await self._changed(self._stub.GetServing, pb.GetServingRequest())

    async def describe(self, version: str = "") -> pb.PolicyVersion:
        """Describes a loaded version; the one that serves if none is named."""
        request = pb.DescribePolicyRequest(version=version)
        answer: pb.DescribePolicyResponse = await rpc.call(
            self._stub.DescribePolicy, request, deadline_seconds=QUICK_SECONDS
        )
        return answer.policy

    async def pin(self, version: str) -> pb.Serving:
        """Serves a version until `follow`: a loaded one, or the digest of a manifest of its tournament."""
        return await self._changed(self._stub.PinVersion, pb.PinVersionRequest(version=version), LOAD_SECONDS)

    async def follow(self) -> pb.Serving:
        """Serves what the source offers again."""
        return await self._changed(self._stub.FollowSource, pb.FollowSourceRequest())

    async def roll_back(self, from_version: str) -> pb.Serving:
        """Serves the version before `from_version`, which must be the one that serves."""
        return await self._changed(self._stub.RollBack, pb.RollBackRequest(from_version=from_version))

    async def start_comparison(self, version: str, *, share: float = 0.0, shadow: bool = False) -> pb.Serving:
        """Adds a second version, which answers a share of the requests or shadows all of them."""
        request = pb.StartComparisonRequest(version=version, share=share, shadow=shadow)
        return await self._changed(self._stub.StartComparison, request, LOAD_SECONDS)

    async def end_comparison(self) -> pb.Serving:
        """Removes the second version."""
        return await self._changed(self._stub.EndComparison, pb.EndComparisonRequest())

    async def _changed(
        self, method: Callable[..., Awaitable[Any]], request: Message, deadline_seconds: float = QUICK_SECONDS
    ) -> pb.Serving:
        answer = await rpc.call(method, request, deadline_seconds=deadline_seconds)
        found: pb.Serving = answer.serving
        return found


def named_version(serving: pb.Serving, text: str) -> str:
    """Returns the version that a user names: a whole digest, or the beginning of one that the server lists.

    Args:
        serving: Which versions serve.
        text: What the user wrote.

    Raises:
        InvalidArgument: It is no digest, or the beginning of several versions.
        NotFound: The server lists no version that begins so.
    """
    if not FEWEST_CHARACTERS <= len(text) <= DIGEST_CHARACTERS or set(text) - set("0123456789abcdef"):
        raise InvalidArgument(
            f"version {text!r}: expected the digest of a manifest, or its first {FEWEST_CHARACTERS} or more characters"
        )
    if len(text) == DIGEST_CHARACTERS:
        return text
    listed = {serving.version, *serving.previous_versions, *(one.version for one in serving.refused)}
    listed |= {serving.comparison.version} if serving.HasField("comparison") else set()
    found = sorted(version for version in listed if version.startswith(text))
    if not found:
        raise NotFound(f"version {text}: the server lists none that begins so; name the whole digest of a manifest")
    if len(found) > 1:
        raise InvalidArgument(f"version {text}: {' and '.join(one[:16] for one in found)} begin so; write more of it")
    return found[0]


def every_address(address: str) -> list[str]:
    """Returns `host:port` with each address of the host: those of all replicas behind a name of DNS.

    Raises:
        InvalidArgument: It is not `host:port`.
        Unavailable: The name has no address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidArgument(f"{address}: expected host:port")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"{address}: {error.strerror}; check the name") from None
    hosts = sorted({str(entry[4][0]) for entry in found})
    return [f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts]
