"""Sends a token, or other metadata, with every call of a channel."""

import ipaddress
from collections.abc import Callable
from typing import Any

import grpc

from podrace import tls
from podrace.access.credentials import AUTHORIZATION, BEARER, TokenSource

MetadataSource = Callable[[], tuple[tuple[str, str | bytes], ...]]
LOOPBACK_NAMES = ("localhost", "localhost.localdomain")
LISTS = ("ipv4:", "ipv6:")
"""Schemes of gRPC for a comma-separated list of addresses: those of the replicas of a service."""


def each_address(address: str) -> list[str]:
    """Returns the addresses in a list such as `ipv4:10.0.0.7:50051,10.0.0.8:50051`; any other address unchanged."""
    scheme = next((scheme for scheme in LISTS if address.startswith(scheme)), "")
    return address.removeprefix(scheme).split(",") if scheme else [address]


def is_loopback(address: str) -> bool:
    """Whether `host:port`, or each address of a list, is on loopback: no other machine reaches it."""
    return all(map(_is_loopback, each_address(address)))


def is_local(address: str) -> bool:
    """Whether only processes of this machine reach an address: a Unix socket, or one on loopback.

    No name is resolved except `localhost`: another answer a moment later would make a local port one of the network.
    """
    return address.startswith("unix:") or is_loopback(address)


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES


def may_send_token(address: str) -> bool:
    """Whether a token may be sent to an address: over TLS, or without leaving this machine."""
    return is_local(address) or tls.identity_for(address) is not None


class MetadataChannel(grpc.aio.Channel):
    """A channel that adds metadata to each call.

    A client interceptor would do the same, but creates several tasks for each call.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: MetadataSource) -> None:
        """Wraps a channel.

        Args:
            channel: The channel that makes the calls.
            metadata: Called for each call; returns what is added to its metadata.
        """
        self._channel, self._metadata = channel, metadata

    async def __aenter__(self) -> "MetadataChannel":
        """Opens the channel."""
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> Any:
        """Closes the channel."""
        return await self._channel.__aexit__(*exception)

    async def close(self, grace: float | None = None) -> None:
        """Closes the channel."""
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns the state of the connection."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits for another state of the connection."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the channel is connected."""
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a method with one request and one response."""
        return self._with_metadata(args[0], self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a method with one request and a stream of responses."""
        return self._with_metadata(args[0], self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a method with a stream of requests and one response."""
        return self._with_metadata(args[0], self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a method with two streams."""
        return self._with_metadata(args[0], self._channel.stream_stream(*args, **kwargs))

    def _with_metadata(self, path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            return method(*args, metadata=(*(metadata or ()), *self._metadata()), **kwargs)

        # podrace.rpc.renewing_channel looks for the method behind this wrapper to count the outcomes of its calls.
        call.__wrapped__ = method  # type: ignore[attr-defined]
        call.path = path  # type: ignore[attr-defined]
        return call


class TokenChannel(MetadataChannel):
    """A channel that adds the current token to the metadata of each call."""

    def __init__(self, channel: grpc.aio.Channel, token: TokenSource) -> None:
        """Wraps a channel.

        Args:
            channel: The channel that makes the calls.
            token: Called for each call.
        """

        def metadata() -> tuple[tuple[str, str | bytes], ...]:
            current = token()
            return ((AUTHORIZATION, f"{BEARER}{current}"),) if current else ()

        super().__init__(channel, metadata)
