"""Owns the identity of processes: a pid alone may have been reused, so it is never signalled without proof."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEAD_STATES = ("Z", "X")
"""In /proc/PID/stat: a zombie keeps its entry until its parent looks."""


@dataclass(frozen=True)
class Process:
    """One process of this boot of the machine, for ever."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks from boot to its start."""

    @classmethod
    def find(cls, pid: int) -> "Process | None":
        """The process that has this pid now."""
        _, ticks = _status(pid)
        return cls(pid, ticks) if ticks else None

    @property
    def lives(self) -> bool:
        """Whether it runs."""
        state, ticks = _status(self.pid)
        return ticks == self.start_ticks and state not in DEAD_STATES

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal; nothing happens when it is gone."""
        with self.opened() as descriptor:
            if descriptor is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)

    async def ended(self, seconds: float) -> bool:
        """Waits until it is gone, at most so long, and says whether it is."""
        with self.opened() as descriptor:
            if descriptor is None:
                return True
            loop, gone = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(descriptor, gone.set)
            try:
                await asyncio.wait_for(gone.wait(), seconds)
            except TimeoutError:
                return False
            finally:
                loop.remove_reader(descriptor)
            return True

    @contextlib.contextmanager
    def opened(self) -> Iterator[int | None]:
        """As `open`, and closes it after the block."""
        descriptor = self.open()
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def open(self) -> int | None:
        """A file descriptor that becomes readable when it dies, to be closed by the caller; None when it is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        # Checked after opening: from here on the descriptor cannot come to mean another process.
        if self.lives:
            return descriptor
        os.close(descriptor)
        return None


def boot_id() -> str:
    """Which boot of the machine this is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _status(pid: int) -> tuple[str, int]:
    """State and start ticks of a process; empty and 0 when there is none."""
    try:
        # The name before the parenthesis may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[19])
