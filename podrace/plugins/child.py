"""Owns how a custom part is reached: a service at an address, or a child process that serves a function of the user's.

    stub = await connection.ready(seconds)        # raises a PodraceError that says why it is not
    ... a call of the stub fails with `error` ...
    problem = await connection.failed(error)      # what that was, in words that follow the part's name
    await connection.close()

Whoever asks sees no difference between the two.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import grpc.aio

from podrace import rpc
from podrace.errors import DeadlineExceeded, FailedPrecondition, PodraceError, Unavailable, Unimplemented
from podrace.evolution.v1.evolution_pb2_grpc import EvolutionServiceStub

START_SECONDS = 30.0
"""A child that does not serve by then hangs in its import and is killed."""
EXIT_SECONDS = 1.0
"""How long the end of a child may take to be noticed after its connection broke."""
POLL_SECONDS = 0.01
PROBE_SECONDS = 0.5
"""Of one look whether a child serves, between two looks whether it lives."""


class Connection(Protocol):
    """The way to a part."""

    async def ready(self, seconds: float) -> Any:
        """Returns a stub of EvolutionService that can be asked.

        Raises:
            PodraceError: The part is not there within that time.
        """
        ...

    async def failed(self, error: PodraceError) -> str:
        """Says what a failure of `ready` or of a call was, and makes way for the next attempt."""
        ...

    async def close(self) -> None:
        """Hangs up, and ends what was started."""
        ...


class ServedConnection:
    """The way to a service of somebody else's."""

    def __init__(self, target: str) -> None:
        """Dials nothing yet."""
        # Without the contract's retries: they would wait for a service that is away until the deadline.
        self._target, self._channel = target, rpc.connect(target)
        self._stub: Any = EvolutionServiceStub(self._channel)

    async def ready(self, seconds: float) -> Any:
        """The stub; whether anybody is there shows when it is asked."""
        return self._stub

    async def failed(self, error: PodraceError) -> str:
        """As Connection."""
        if isinstance(error, Unavailable):
            return f"cannot be reached: {error.message}"
        return told(error)

    async def close(self) -> None:
        """Hangs up."""
        await self._channel.close()


class ChildConnection:
    """A child process, started when it is needed: first, and again after it died or had to be killed."""

    def __init__(self, settings: Mapping[str, object], lifeline: Path) -> None:
        """Starts nothing yet.

        Args:
            settings: Of podrace.plugins.server, all but where it listens.
            lifeline: The child ends when whoever holds this is gone; its sockets lie beside, named alike.
        """
        self._settings, self._lifeline = settings, lifeline
        self._process: asyncio.subprocess.Process | None = None
        self._channel: grpc.aio.Channel | None = None
        self._socket = lifeline
        self._started, self._begin = 0, 0.0

    @property
    def pid(self) -> int | None:
        """Process id; None while there is none."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def ready(self, seconds: float) -> Any:
        """As Connection; a child that takes longer to start is left to it, for the next attempt."""
        give_up = time.monotonic() + seconds
        if self._channel is not None and self.pid is None:
            # It ended since it has answered, and owes nothing.
            await self.close()
        if self._process is None:
            await self._start()
        assert self._process is not None
        while self._channel is None:
            if self._process.returncode is not None:
                raise FailedPrecondition(f"does not start: it {how_it_ended(self._process.returncode)}")
            seconds = give_up - time.monotonic()
            if seconds <= 0:
                raise DeadlineExceeded(f"has not started within {time.monotonic() - self._begin:.1f} s")
            # A channel would wait a whole second before it tries a socket for the second time.
            if await _listens(self._socket):
                with suppress(Unavailable):
                    await rpc.wait_until_serving(f"unix:{self._socket}", deadline_seconds=min(seconds, PROBE_SECONDS))
                    self._channel = rpc.connect(f"unix:{self._socket}")
            else:
                await asyncio.sleep(POLL_SECONDS)
        return EvolutionServiceStub(self._channel)

    async def _start(self) -> None:
        self._started += 1
        self._begin = time.monotonic()
        self._socket = self._lifeline.with_name(f"{self._lifeline.stem}-{id(self):x}-{self._started}.sock")
        settings = {**self._settings, "server.listen": f"unix:{self._socket}", "lifeline": self._lifeline}
        overrides = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
        # A session of its own: what the function starts can be killed with it. It prints into our log.
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "podrace.plugins.server",
                *overrides,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"cannot be started: {error.strerror}") from None

    async def failed(self, error: PodraceError) -> str:
        """As Connection. One that still starts may go on with it; one that hangs, or has nothing to offer, may not."""
        if self._channel is None:
            if self.pid is None or time.monotonic() - self._begin > START_SECONDS:
                await self.close()
            return error.message
        process = self._process
        if isinstance(error, Unavailable) and process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), EXIT_SECONDS)
            code = process.returncode
            await self.close()
            return f"broke off: it {how_it_ended(code)}" if code is not None else told(error)
        if isinstance(error, DeadlineExceeded | FailedPrecondition):
            await self.close()
        return told(error)

    async def close(self) -> None:
        """Kills the child with all it has started."""
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if channel is not None:
            await channel.close()
        if process is not None:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            self._socket.unlink(missing_ok=True)


def told(error: PodraceError) -> str:
    """What a failed call was, in words that follow the part's name."""
    if isinstance(error, DeadlineExceeded):
        return error.message
    if isinstance(error, Unimplemented):
        return f"does not offer what it is asked for: {error.message}"
    return f"failed: {error.message}"


def how_it_ended(code: int) -> str:
    """The end of a process for a person, from its return code."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def _listens(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True
