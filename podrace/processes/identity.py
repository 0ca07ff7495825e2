"""Identifies processes by pid and start time, so that a reused pid is never signalled."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from podrace.tasks import wait_at_most

STOPPED_STATES = ("T", "t")
"""States of a process that a signal (SIGSTOP) or a debugger has stopped."""
DEAD_STATES = ("Z", "X")
"""States in /proc/PID/stat of a main thread that has exited. A zombie keeps its entry until its parent reaps it."""


@dataclass(frozen=True)
class Process:
    """A process of the present boot of the machine, identified by its pid and its start time."""

    pid: int
    start_ticks: int
    """Clock ticks from boot to the start of the process (field 22 of /proc/PID/stat)."""

    @classmethod
    def find(cls, pid: int) -> "Process | None":
        """Returns the process that has this pid now; None if there is none."""
        _, ticks, _ = _status(pid)
        return cls(pid, ticks) if ticks else None

    @property
    def lives(self) -> bool:
        """Whether a thread of the process is running.

        The main thread may exit before the others. Until they have exited as well, the parent cannot reap the process.
        """
        state, ticks, threads = _status(self.pid)
        return ticks == self.start_ticks and (state not in DEAD_STATES or threads > 1)

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped, for instance by SIGSTOP."""
        state, ticks, _ = _status(self.pid)
        return ticks == self.start_ticks and state in STOPPED_STATES

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has exited."""
        with self.opened() as descriptor:
            if descriptor is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)

    async def ended(self, seconds: float) -> bool:
        """Waits until the process has exited, at most this many seconds; returns whether it has."""
        with self.opened() as descriptor:
            if descriptor is None:
                return True
            loop, gone = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(descriptor, gone.set)
            try:
                return await wait_at_most(gone.wait(), seconds)
            finally:
                loop.remove_reader(descriptor)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int | None]:
        """As `open`, but closes the descriptor after the block."""
        descriptor = self.open()
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def open(self) -> int | None:
        """Returns a descriptor that becomes readable when the process exits; None if it has exited already.

        The caller closes the descriptor.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        # Checked after opening, because the descriptor now always refers to the same process.
        if self.lives:
            return descriptor
        os.close(descriptor)
        return None


def boot_id() -> str:
    """Returns the identifier of the present boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _status(pid: int) -> tuple[str, int, int]:
    """Returns the main thread's state, start ticks and number of threads; "", 0 and 0 if there is no such process."""
    try:
        # The name in parentheses may contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0, 0
    return fields[0], int(fields[19]), int(fields[17])
