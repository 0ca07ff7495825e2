"""Opens a channel again when the certificates of this process have changed, or when its calls exceed their deadlines.

gRPC reads certificates once for each channel. A connection may be half-open: calls then end at their deadlines only.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from podrace.errors import PodraceError

LOOK_SECONDS = 1.0
"""Shortest time between two checks of the files."""

MOST_DEADLINES = 3
"""Calls in a row that exceed their deadline, after which a new channel is opened."""

_log = structlog.get_logger(__name__)


class RenewingChannel(grpc.aio.Channel):
    """A channel that is replaced by a new one when a stamp changes, or after several exceeded deadlines in a row.

    Calls that run complete on the channel on which they began. It is closed with the next renewal but one, or when this
    channel is closed; the server closes its connection when it is idle.
    """

    def __init__(
        self,
        open_channel: Callable[[], grpc.aio.Channel],
        stamp: Callable[[], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the channel.

        Args:
            open_channel: Opens a channel with the present certificates; raises PodraceError while they cannot be used.
            stamp: Changes when the certificates change; raises OSError while a file is missing.
            monotonic: A clock, in seconds.
        """
        self._open, self._stamp, self._monotonic = open_channel, stamp, monotonic
        self._seen, self._channel = stamp(), open_channel()
        self._retired: list[grpc.aio.Channel] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._look_time = monotonic() + LOOK_SECONDS
        self._deadlines_in_row = 0

    def current(self) -> grpc.aio.Channel:
        """Returns the channel for the next call."""
        now = self._monotonic()
        if now >= self._look_time:
            self._look_time = now + LOOK_SECONDS
            self._renew()
        return self._channel

    def _renew(self) -> None:
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return
            channel = self._open()
        except (OSError, PodraceError):
            # The files are being replaced: the present certificates are used meanwhile.
            return
        self._seen = stamp
        self._replace(channel)
        _log.info("the certificates have changed, new calls use them")

    def note_outcome(self, *, deadline_exceeded: bool) -> None:
        """Counts the outcome of a call, and opens a new channel after several exceeded deadlines in a row."""
        self._deadlines_in_row = self._deadlines_in_row + 1 if deadline_exceeded else 0
        if self._deadlines_in_row < MOST_DEADLINES:
            return
        self._deadlines_in_row = 0
        with contextlib.suppress(OSError, PodraceError):
            self._replace(self._open())
            _log.warning("several calls exceeded their deadline, new calls use a new connection")

    def _replace(self, channel: grpc.aio.Channel) -> None:
        self._retired.append(self._channel)
        self._channel = channel
        if len(self._retired) > 1:
            # Its calls have had the time of a renewal to complete.
            closing = asyncio.ensure_future(self._retired.pop(0).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def __aenter__(self) -> "RenewingChannel":
        """Opens the channel."""
        return self

    async def __aexit__(self, *exception: Any) -> None:
        """Closes the channel."""
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Closes the channel, with those that it replaced."""
        for channel in (*self._retired, self._channel):
            await channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns the state of the connection."""
        return self.current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits for another state of the connection."""
        await self.current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the channel is connected."""
        await self.current().channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a method with one request and one response."""
        return _RenewingMethod(self, "unary_unary", args, kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a method with one request and a stream of responses."""
        return _RenewingMethod(self, "unary_stream", args, kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a method with a stream of requests and one response."""
        return _RenewingMethod(self, "stream_unary", args, kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a method with two streams."""
        return _RenewingMethod(self, "stream_stream", args, kwargs)


class _RenewingMethod:
    """One method of a stub, on the channel that is current when it is called."""

    def __init__(self, owner: RenewingChannel, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._owner, self._kind, self._args, self._kwargs = owner, kind, args, kwargs
        self._channel: grpc.aio.Channel | None = None
        self._method: Any = None

    def note_outcome(self, *, deadline_exceeded: bool) -> None:
        """See RenewingChannel."""
        self._owner.note_outcome(deadline_exceeded=deadline_exceeded)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        channel = self._owner.current()
        if channel is not self._channel:
            self._channel, self._method = channel, getattr(channel, self._kind)(*self._args, **self._kwargs)
        return self._method(*args, **kwargs)


def note_outcome(method: object, *, deadline_exceeded: bool) -> None:
    """Counts the outcome of a call of a method, if its channel can be renewed."""
    renewing = getattr(method, "__wrapped__", method)
    if isinstance(renewing, _RenewingMethod):
        renewing.note_outcome(deadline_exceeded=deadline_exceeded)
