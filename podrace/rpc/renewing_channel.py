"""Opens a channel again when the certificates of this process have changed, or when its calls exceed their deadlines.

gRPC reads certificates once for each channel. A connection may be half-open: calls then end at their deadlines only.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import grpc
import structlog

from podrace.errors import PodraceError
from podrace.tasks import cancel_all

LOOK_SECONDS = 1.0
"""Shortest time between two checks of the files."""

MOST_DEADLINES = 3
"""Calls in a row that exceed their deadline, after which a new channel is opened."""

GRACE_SECONDS = 3600.0
"""Time after which a replaced channel is closed although calls on it run: the longest deadline of a call."""

_log = structlog.get_logger(__name__)


class RenewingChannel(grpc.aio.Channel):
    """A channel that is replaced by a new one when a stamp changes, or after several exceeded deadlines in a row.

    Calls that run complete on the channel on which they began. After the next renewal but one it is closed as soon as
    they have completed, and after GRACE_SECONDS at the latest; the server closes its connection when it is idle.

    Attributes:
        calls: Calls that began on the current channel, those that have completed as well while they are referenced.
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
        self.calls: WeakSet[grpc.aio.Call] = WeakSet()
        self._retired: list[tuple[grpc.aio.Channel, WeakSet[grpc.aio.Call]]] = []
        self._closing: dict[asyncio.Future[None], grpc.aio.Channel] = {}
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

    def note_outcome(self, channel: grpc.aio.Channel, *, deadline_exceeded: bool) -> None:
        """Counts the outcome of a call, and opens a new channel after several exceeded deadlines in a row.

        Args:
            channel: The channel on which the call began. If it was replaced, the outcome says nothing about the
                present one and is not counted.
            deadline_exceeded: Whether the call exceeded its deadline.
        """
        if channel is not self._channel:
            return
        self._deadlines_in_row = self._deadlines_in_row + 1 if deadline_exceeded else 0
        if self._deadlines_in_row < MOST_DEADLINES:
            return
        self._deadlines_in_row = 0
        with contextlib.suppress(OSError, PodraceError):
            self._replace(self._open())
            _log.warning("several calls exceeded their deadline, new calls use a new connection")

    def _replace(self, channel: grpc.aio.Channel) -> None:
        self._retired.append((self._channel, self.calls))
        self._channel, self.calls, self._deadlines_in_row = channel, WeakSet(), 0
        if len(self._retired) > 1:
            retired, calls = self._retired.pop(0)
            closing = asyncio.ensure_future(_close_when_idle(retired, calls))
            self._closing[closing] = retired
            closing.add_done_callback(self._closing.pop)

    async def __aenter__(self) -> "RenewingChannel":
        """Opens the channel."""
        return self

    async def __aexit__(self, *exception: Any) -> None:
        """Closes the channel."""
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Closes the channel, with those that it replaced."""
        replaced = [*self._closing.values(), *(channel for channel, _ in self._retired)]
        await cancel_all(*self._closing)
        for channel in (*replaced, self._channel):
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


async def _close_when_idle(channel: grpc.aio.Channel, calls: WeakSet[grpc.aio.Call]) -> None:
    """Closes a channel when these calls have completed, or after GRACE_SECONDS.

    The grace of `Channel.close` could not be ended early: a second `close` has no effect.
    """
    running = [asyncio.ensure_future(call.code()) for call in calls if not call.done()]
    try:
        if running:
            await asyncio.wait(running, timeout=GRACE_SECONDS)
    finally:
        await cancel_all(*running)
    await channel.close()


class _RenewingMethod:
    """One method of a stub, on the channel that is current when it is called.

    Attributes:
        owner: The channel that is replaced.
        channel: The channel on which the latest call began; None before the first one.
    """

    def __init__(self, owner: RenewingChannel, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.owner = owner
        self.channel: grpc.aio.Channel | None = None
        self._kind, self._args, self._kwargs = kind, args, kwargs
        self._method: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        channel = self.owner.current()
        if channel is not self.channel:
            self.channel, self._method = channel, getattr(channel, self._kind)(*self._args, **self._kwargs)
        call = self._method(*args, **kwargs)
        self.owner.calls.add(call)
        return call


class CallOutcome:
    """The outcome of the call of a method that was made last; without effect if its channel cannot be renewed.

    call = method(request)
    outcome = CallOutcome(method)
    ... await call ...
    outcome.note(deadline_exceeded=False)
    """

    def __init__(self, method: object) -> None:
        renewing = getattr(method, "__wrapped__", method)
        self._owner = renewing.owner if isinstance(renewing, _RenewingMethod) else None
        self._channel = renewing.channel if isinstance(renewing, _RenewingMethod) else None

    def note(self, *, deadline_exceeded: bool) -> None:
        """Counts the outcome; see RenewingChannel."""
        if self._owner is not None and self._channel is not None:
            self._owner.note_outcome(self._channel, deadline_exceeded=deadline_exceeded)
