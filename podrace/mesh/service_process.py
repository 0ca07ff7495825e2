"""Runs a service as a child process: starts it, restarts it when it crashes, and stops it."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from podrace import rpc
from podrace.errors import FailedPrecondition, Unavailable
from podrace.processes.log_rotation import open_log
from podrace.tasks import wait_at_most

START_SECONDS = 30.0
"""Time limit for a service to start serving."""
RESTART_DELAYS_SECONDS = (0.0, 0.2, 1.0, 2.0, 5.0)
"""Delay before each attempt to restart a service."""
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class ServiceCommand:
    """Command line of a service, and the files it uses."""

    name: str
    arguments: Sequence[str]
    """The command line."""
    socket: Path
    """Unix socket on which it serves; unchanged when it restarts."""
    log: Path
    """File to which its output is appended."""


def listens(path: Path) -> bool:
    """Returns whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class ServiceProcess:
    """Runs one service from `start` to `stop`, and restarts its process when it exits while `watch` is awaited.

    service = ServiceProcess(command, notify=print)
    await service.start()
    watching = asyncio.create_task(service.watch())
    ...
    watching.cancel()
    await service.stop(grace_seconds=10)
    """

    def __init__(self, command: ServiceCommand, *, notify: Callable[[str], None]) -> None:
        """Creates a service that is not started yet.

        Args:
            command: How the service is started.
            notify: Receives lines for the user.
        """
        self._command = command
        self._notify = notify
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None while no process runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Starts the process and waits until it serves.

        Raises:
            FailedPrecondition: The process exited (the message contains its last log line), or does not serve in time.
        """
        self._command.log.parent.mkdir(parents=True, exist_ok=True)
        with open_log(self._command.log) as log:
            begin = log.tell()
            # In a separate session, Ctrl-C in the terminal reaches only the command, which stops the services in order.
            self._process = await asyncio.create_subprocess_exec(
                *self._command.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        await self._wait_until_serving(self._process, begin)

    async def _wait_until_serving(self, process: asyncio.subprocess.Process, log_begin: int) -> None:
        command = self._command
        give_up = time.monotonic() + START_SECONDS
        while True:
            if process.returncode is not None:
                line = _last_line(command.log, log_begin) or _describe_exit(process.returncode)
                raise FailedPrecondition(f"the {command.name} does not start: {line} (log: {command.log})")
            if time.monotonic() > give_up:
                raise FailedPrecondition(
                    f"the {command.name} does not serve (waited {START_SECONDS:g} s; log: {command.log})"
                )
            # A gRPC channel would wait a second before its second attempt to connect.
            if not listens(command.socket):
                await asyncio.sleep(POLL_SECONDS)
                continue
            with contextlib.suppress(Unavailable):
                return await rpc.wait_until_serving(f"unix:{command.socket}", deadline_seconds=1.0)

    async def watch(self) -> None:
        """Restarts the service each time its process exits; never returns.

        Raises:
            PodraceError: The service did not restart.
        """
        while self._process is not None:
            code = await self._process.wait()
            self._notify(f"the {self._command.name} {_describe_exit(code)}; restarting it")
            await self._restart()

    async def _restart(self) -> None:
        for attempt, delay in enumerate(RESTART_DELAYS_SECONDS, start=1):
            await asyncio.sleep(delay)
            try:
                await self.start()
            except FailedPrecondition:
                self.kill()
                if attempt == len(RESTART_DELAYS_SECONDS):
                    raise
            else:
                return

    async def stop(self, *, grace_seconds: float) -> None:
        """Asks the process to exit, and kills it after `grace_seconds`."""
        if self.pid is None or self._process is None:
            return
        self._signal(signal.SIGTERM)
        await wait_at_most(self._process.wait(), grace_seconds)
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """Kills the process."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _describe_exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _last_line(log: Path, begin: int) -> str:
    """Returns the last line of a log after offset `begin`, in which a service reports why it does not start."""
    with log.open("rb") as file:
        # The log is shorter if it was rotated meanwhile.
        file.seek(begin if begin <= os.fstat(file.fileno()).st_size else 0)
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip().removeprefix("error: ") for line in reversed(lines) if line.strip()), "")
