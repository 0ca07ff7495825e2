"""Connects to a plugin: to a gRPC service, or to a child process that serves a Python function.

    connection.start()                              # optional: starts the child early
    channel = await connection.ready(seconds)       # raises a PodraceError if the plugin cannot be called
    ... a call on the channel raises `error` ...
    problem = await connection.failed(error)        # one human-readable line; a broken child is killed
    await connection.close()

A child process is started when it is first needed. After it has exited or was killed, the next call starts it again. It
is killed when it does not answer in time, when its function could not be loaded, and when it does not serve within its
start limit. All processes that it started are killed with it.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import grpc.aio

from podrace import rpc
from podrace.access.credentials import TokenSource
from podrace.errors import Cancelled, DeadlineExceeded, FailedPrecondition, PodraceError, Unavailable, Unimplemented
from podrace.limits.config import Allowed
from podrace.limits.user_environment import user_environment
from podrace.tasks import wait_at_most

EXIT_SECONDS = 1.0
"""How long to wait for the exit of a child after its connection broke."""
KILL_SECONDS = 5.0
"""How long to wait for the exit of a killed child. One that is inside a system call of a driver may exit later."""
POLL_SECONDS = 0.01
PROBE_SECONDS = 0.5
"""Time limit of one health check of a starting child. Whether the child has exited is checked after each one."""


class PluginConnection(Protocol):
    """The way to call one plugin; the example at the top of the module uses it."""

    def start(self) -> None:
        """Starts what `ready` would start, without waiting for it.

        Raises:
            Unavailable: The process cannot be started.
        """
        ...

    async def ready(self, seconds: float) -> grpc.aio.Channel:
        """Returns a channel on which the plugin can be called, the same one until the plugin is started again.

        Raises:
            PodraceError: The plugin cannot be called within this time.
        """
        ...

    async def failed(self, error: PodraceError) -> str:
        """Describes why `ready` or a call failed, and kills a child process that cannot be used any more."""
        ...

    async def close(self) -> None:
        """Closes the channel and kills the child process."""
        ...


class ServiceConnection:
    """A connection to a gRPC service that the user runs."""

    def __init__(self, target: str, connect_seconds: float = 0.0, token: TokenSource | None = None) -> None:
        """Prepares a channel; it connects at the first call.

        Args:
            target: `host:port` or `unix:/path`.
            connect_seconds: How long `ready` waits for a service that restarts; 0: not at all.
            token: Token whose audience is this service; None: it gets none.
        """
        # The retries of the contract are off: they would wait for an absent service until the deadline.
        self._target, self._channel = target, rpc.connect(target, token=token, third_party=True)
        self._connect_seconds = connect_seconds

    def start(self) -> None:
        """As PluginConnection; the user runs the service, so there is no process to start."""

    async def ready(self, seconds: float) -> grpc.aio.Channel:
        """As PluginConnection; an unreachable service is noticed here only with `connect_seconds`."""
        if self._connect_seconds:
            limit = min(seconds, self._connect_seconds)
            try:
                await rpc.wait_until_ready(self._channel, limit)
            except Unavailable:
                raise Unavailable(f"no connection to {self._target} within {limit:g} s") from None
        return self._channel

    async def failed(self, error: PodraceError) -> str:
        """As PluginConnection."""
        if isinstance(error, Unavailable):
            return f"unreachable: {error.message}"
        return describe_failure(error)

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()


class ChildConnection:
    """A connection to a child process that serves a Python function over a Unix socket (podrace.plugins.server)."""

    def __init__(
        self,
        command: Sequence[str],
        settings: Mapping[str, object],
        *,
        lifeline: Path,
        socket_prefix: Path,
        start_seconds: float,
        allowed: Allowed,
        user_id: int = 0,
    ) -> None:
        """Prepares the command; `start` and `ready` run it.

        Args:
            command: The program and its first arguments. Its settings are appended as `--set key=value`.
            settings: Settings of podrace.plugins.server.ChildConfig, except `server.listen` and `lifeline`.
            lifeline: The child exits when the holder of this lifeline is gone.
            socket_prefix: Path that the name of every socket begins with; Linux limits a whole path to 107 bytes.
            start_seconds: A child that does not serve after this time is killed.
            allowed: Which environment variables the child gets, because it runs user code.
            user_id: User that the child becomes before it imports the function, and owner of the folder of the sockets;
                0: it stays the user of this process.
        """
        self._command, self._settings = command, settings
        self._lifeline, self._socket_prefix, self._start_seconds = lifeline, socket_prefix, start_seconds
        self._allowed, self._user_id = allowed, user_id
        self._process: ChildProcess | None = None
        self._channel: grpc.aio.Channel | None = None
        self._socket = socket_prefix
        self._starts, self._start_time = 0, 0.0

    @property
    def process(self) -> "ChildProcess | None":
        """The child process, running or exited; None before the first start and after it was killed."""
        return self._process

    def start(self) -> None:
        """As PluginConnection."""
        if self._process is not None:
            return
        self._starts += 1
        self._start_time = time.monotonic()
        # A new name for each process, so that a client never reaches the previous one.
        self._socket = self._socket_prefix.with_name(f"{self._socket_prefix.name}-{self._starts}.sock")
        settings = {**self._settings, "server.listen": f"unix:{self._socket}", "lifeline": self._lifeline}
        if self._user_id:
            settings |= {"user_id": self._user_id, "home": self._socket.parent}
        overrides = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
        try:
            self._process = ChildProcess([*self._command, *overrides], user_environment(os.environ, self._allowed))
        except OSError as error:
            raise Unavailable(f"its process cannot be started: {error.strerror}") from None

    async def ready(self, seconds: float) -> grpc.aio.Channel:
        """As PluginConnection. A child that needs more time to start keeps running, for the next attempt."""
        give_up = time.monotonic() + seconds
        if self._channel is not None and (self._process is None or self._process.exit_code() is not None):
            # It exited after its last answer, which is not a failure.
            await self.close()
        self.start()
        process = self._process
        assert process is not None
        while self._channel is None:
            if (code := process.exit_code()) is not None:
                raise FailedPrecondition(f"its process {describe_exit(code)} before it served")
            remaining = min(give_up, self._start_time + self._start_seconds) - time.monotonic()
            if remaining <= 0:
                raise DeadlineExceeded(f"its process did not serve within {time.monotonic() - self._start_time:.1f} s")
            # gRPC waits for a whole second before it tries a socket for the second time, so it is tried here first.
            if await _listens(self._socket):
                with suppress(Unavailable):
                    limit = min(remaining, PROBE_SECONDS)
                    address, owner = f"unix:{self._socket}", self._user_id or None
                    await rpc.wait_until_serving(address, deadline_seconds=limit, owner=owner)
                    # Meanwhile another call may have connected, or killed the process.
                    if self._channel is None and self._process is process:
                        self._channel = rpc.connect(address, owner=owner)
            else:
                await asyncio.sleep(POLL_SECONDS)
        return self._channel

    async def failed(self, error: PodraceError) -> str:
        """As PluginConnection. A child that raised keeps running; one that is still starting may continue."""
        process = self._process
        if self._channel is None:
            exited = process is None or process.exit_code() is not None
            if exited or time.monotonic() - self._start_time >= self._start_seconds:
                await self.close()
            return error.message
        if isinstance(error, Unavailable) and process is not None:
            code = await process.wait(EXIT_SECONDS)
            await self.close()
            return f"its process {describe_exit(code)}" if code is not None else describe_failure(error)
        if isinstance(error, DeadlineExceeded | FailedPrecondition | Cancelled):
            await self.close()
        return describe_failure(error)

    async def close(self) -> None:
        """Closes the channel; kills the child process and everything it started."""
        # Taken first: the next call may start another process before this one is killed.
        process, channel, socket = self._process, self._channel, self._socket
        self._process = self._channel = None
        if channel is not None:
            await channel.close()
        if process is not None:
            await process.kill()
            socket.unlink(missing_ok=True)


class ChildProcess:
    """A child process that leads its own process group; whatever it started is killed when it exits.

    Use it from one event loop, in the main thread: the kernel kills the child when the thread that started it exits
    (podrace.plugins.loader.confine).
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Starts the process. It can import what this process can; its output goes to the log of this process.

        Args:
            command: The program and its arguments.
            environ: Its environment variables; the search path of this process is added to PYTHONPATH.

        Raises:
            OSError: The process cannot be started.
        """
        paths = [environ.get("PYTHONPATH", ""), *sys.path]
        self._process = subprocess.Popen(
            command,
            env={**environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )
        self._exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # Readable when the process has exited. It cannot be reaped before, so the pid stays its own.
        self._descriptor = os.pidfd_open(self.pid)
        self._loop.add_reader(self._descriptor, self._reap)

    @property
    def pid(self) -> int:
        """Its process id, which is the id of its process group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Returns the exit code, negative for a signal; None while the process runs."""
        if not self._exited.is_set():
            exit_poll = select.poll()
            exit_poll.register(self._descriptor, select.POLLIN)
            if exit_poll.poll(0):
                self._reap()
        return self._process.returncode

    async def wait(self, seconds: float) -> int | None:
        """Returns the exit code as soon as there is one; None if the process still runs after this time."""
        await wait_at_most(self._exited.wait(), seconds)
        return self.exit_code()

    async def kill(self) -> None:
        """Kills the process group and waits for the process, at most KILL_SECONDS."""
        if self.exit_code() is None:
            _kill_group(self.pid)
            await self.wait(KILL_SECONDS)

    def _reap(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        # Killed before it is reaped: afterwards, another process group may have its number.
        _kill_group(self.pid)
        self._process.wait()
        self._exited.set()


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def describe_failure(error: PodraceError) -> str:
    """Describes a failed call in one line."""
    if isinstance(error, Unimplemented):
        return f"does not implement the method: {error.message}"
    return error.message


def describe_exit(code: int) -> str:
    """Describes how a process exited, from its exit code."""
    if code >= 0:
        return f"exited with code {code}"
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
