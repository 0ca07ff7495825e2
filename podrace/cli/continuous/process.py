"""Continuous training as a process: one at a time for each name, begun in the background, found again, stopped.

A lock that the kernel gives up with its holder says whether it runs; the file that is locked says who that is, by pid,
start and boot, so that a pid that was used again is never signalled.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from podrace.cli import EXIT_WRONG_REQUEST
from podrace.errors import AlreadyExists, DeadlineExceeded, FailedPrecondition, InvalidArgument
from podrace.mesh import orphan_pods

LOCK, LOG = "process.lock", "continuous.log"
RECORD_BYTES = 400
CLAIM_SECONDS = 1.0
"""A look at the lock by another command is over by then."""
START_SECONDS = 60.0
POLL_SECONDS = 0.05
ORDER_SECONDS = 20.0
"""How long a process may take that was asked for the second time and does not wait for its pods."""


@dataclass(frozen=True)
class Identity:
    """A process, named so that no other can be meant."""

    pid: int
    start_ticks: int
    boot_id: str
    start_time: float
    """Seconds since the epoch, for a person."""
    ready: bool = False
    """It has looked at everything and goes on by itself."""

    @classmethod
    def own(cls, *, ready: bool = False) -> "Identity":
        """This process."""
        pid = os.getpid()
        return cls(pid, orphan_pods.start_ticks(pid) or 0, orphan_pods.boot_id(), time.time(), ready)

    @property
    def lives(self) -> bool:
        """Whether it runs."""
        return self.boot_id == orphan_pods.boot_id() and orphan_pods.start_ticks(self.pid) == self.start_ticks


class Lock:
    """Held by the process that trains; says who that is."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor of a file that is locked."""
        self._descriptor = descriptor

    def ready(self) -> None:
        """Says that whoever started this process can leave it alone."""
        _write(self._descriptor, Identity.own(ready=True))


@contextlib.contextmanager
def hold(folder: Path, name: str) -> Iterator[Lock]:
    """Holds the lock for the length of the block; the folder exists.

    Raises:
        AlreadyExists: Another process does.
    """
    # The file stays: were it removed, two processes could hold the locks of two files of that name.
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor, folder, name)
        _write(descriptor, Identity.own())
        yield Lock(descriptor)
        os.truncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path, name: str) -> None:
    give_up = time.monotonic() + CLAIM_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = running(folder)
            if holder or time.monotonic() > give_up:
                raise AlreadyExists(_runs(name, holder)) from None
        time.sleep(POLL_SECONDS)


def _runs(name: str, holder: Identity | None) -> str:
    who = f" (pid {holder.pid})" if holder else ""
    return f"continuous {name} is running{who}; end it with: podrace continuous stop {name}"


def _write(descriptor: int, identity: Identity) -> None:
    # Of one length, so that nobody reads the end of an earlier one.
    os.pwrite(descriptor, json.dumps(asdict(identity)).encode().ljust(RECORD_BYTES), 0)


def running(folder: Path) -> Identity | None:
    """The process that trains; None if none does."""
    try:
        found = Identity(**json.loads((folder / LOCK).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.lives else None


def check_free(folder: Path, name: str) -> None:
    """Refuses to start what runs; raises AlreadyExists."""
    holder = running(folder)
    if holder:
        raise AlreadyExists(_runs(name, holder))


def detach(arguments: Sequence[str], folder: Path, name: str, *, deadline_seconds: float = START_SECONDS) -> Identity:
    """Starts a process in a session of its own, which no terminal ends, and returns once it says that it is ready.

    Args:
        arguments: Its command line; it takes the lock of the folder.
        folder: Of the name; its words go to a log there.
        name: For messages.
        deadline_seconds: How long it may take to be ready; after that it is ended.

    Raises:
        InvalidArgument, FailedPrecondition: It ended instead; the line is its own last one.
        DeadlineExceeded: It is not ready.
    """
    log = folder / LOG
    with log.open("ab") as file:
        begin = file.tell()
        child = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, close_fds=True
        )
    give_up = time.monotonic() + deadline_seconds
    while child.poll() is None:
        found = running(folder)
        if found and found.pid == child.pid and found.ready:
            return found
        if time.monotonic() > give_up:
            child.kill()
            child.wait()
            raise DeadlineExceeded(f"continuous {name} is not ready (waited {deadline_seconds:g} s); see {log}")
        time.sleep(POLL_SECONDS)
    line = _last_line(log, begin) or f"it ended with code {child.returncode}"
    error = InvalidArgument if child.returncode == EXIT_WRONG_REQUEST else FailedPrecondition
    raise error(f"{line} (log: {log})")


def _last_line(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip().removeprefix("error: ") for line in reversed(lines) if line.strip()), "")


def stop(process: Identity, *, deadline_seconds: float) -> str:
    """Asks a process to end and waits; after the deadline it is told not to wait for its pods, and at last killed.

    Returns:
        How it ended, for a person: empty if it did as asked.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return ""
    try:
        # Looked at after opening: from here on the descriptor cannot come to mean another process.
        if not process.lives:
            return ""
        steps = (signal.SIGTERM, deadline_seconds), (signal.SIGTERM, ORDER_SECONDS), (signal.SIGKILL, ORDER_SECONDS)
        for attempt, (number, seconds) in enumerate(steps):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
            if select.select([descriptor], [], [], seconds)[0]:
                return ("", "it did not wait for its pods", "it had to be killed; its pods publish and go")[attempt]
    finally:
        os.close(descriptor)
    raise DeadlineExceeded(f"process {process.pid} does not end (waited {deadline_seconds + 2 * ORDER_SECONDS:g} s)")
