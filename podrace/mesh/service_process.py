"""A service as a process: started, watched, started again when it dies, stopped. Knows no service by name."""

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

START_SECONDS = 30.0
"""A service that does not serve by then never will."""
RESTART_DELAYS_SECONDS = (0.0, 0.2, 1.0, 2.0, 5.0)
"""Before each attempt to start a service again that does not come up."""
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class ServiceCommand:
    """How a service is started, and where it then answers."""

    name: str
    arguments: Sequence[str]
    """The command line."""
    socket: Path
    """Unix socket it serves on; the same each time."""
    log: Path
    """Its output is appended to this file."""


def listens(path: Path) -> bool:
    """Whether a process listens on this Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class ServiceProcess:
    """One service. It runs from `start` to `stop`, whatever happens to its process, as long as somebody awaits `watch`.

    service = ServiceProcess(command, tell=print)
    await service.start()
    watching = asyncio.create_task(service.watch())
    ...
    watching.cancel()
    await service.stop(grace_seconds=10)
    """

    def __init__(self, command: ServiceCommand, *, tell: Callable[[str], None]) -> None:
        """Starts nothing yet; `tell` takes lines for a person."""
        self._command = command
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Starts the process and waits until it serves.

        Raises:
            FailedPrecondition: It ended instead (the line is its own last one), or does not serve in time.
        """
        self._command.log.parent.mkdir(parents=True, exist_ok=True)
        with self._command.log.open("ab") as log:
            begin = log.tell()
            # A session of its own: Ctrl-C in the terminal reaches only us, who tell the others in order.
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
                line = _last_line(command.log, log_begin) or _how_it_ended(process.returncode)
                raise FailedPrecondition(f"the {command.name} does not start: {line} (log: {command.log})")
            if time.monotonic() > give_up:
                raise FailedPrecondition(
                    f"the {command.name} does not serve (waited {START_SECONDS:g} s; log: {command.log})"
                )
            # A channel would wait a whole second before it tries a socket for the second time.
            if not listens(command.socket):
                await asyncio.sleep(POLL_SECONDS)
                continue
            with contextlib.suppress(Unavailable):
                return await rpc.wait_until_serving(f"unix:{command.socket}", deadline_seconds=1.0)

    async def watch(self) -> None:
        """Starts the service again each time its process ends; never returns.

        Raises:
            PodraceError: It does not come up again.
        """
        while self._process is not None:
            code = await self._process.wait()
            self._tell(f"the {self._command.name} {_how_it_ended(code)}; starting it again")
            await self._start_again()

    async def _start_again(self) -> None:
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
        """Asks the process to end, and after the grace makes it."""
        if self.pid is None or self._process is None:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), grace_seconds)
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """Ends the process at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _how_it_ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _last_line(log: Path, begin: int) -> str:
    """The last line that was written to the log since `begin`; services say there why they do not start."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip().removeprefix("error: ") for line in reversed(lines) if line.strip()), "")
