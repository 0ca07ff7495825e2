"""Starts, finds and stops the background process of a continuous training. At most one process runs per name.

The process holds a file lock that the kernel releases when the process exits. The locked file contains the pid, start
time and boot id of the process, so a process that reuses the pid is never signalled.
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
from podrace.processes.identity import Process, boot_id
from podrace.processes.log_rotation import copy_and_truncate, open_log

LOCK, LOG = "process.lock", "continuous.log"
LOG_BYTES = 16_777_216
"""A longer log is rotated."""
KEPT_LOGS = 3
RECORD_BYTES = 400
CLAIM_SECONDS = 1.0
"""Time to wait for a lock whose holder is unknown."""
START_SECONDS = 60.0
POLL_SECONDS = 0.05
ORDER_SECONDS = 20.0
"""Time limit for a process that was asked a second time to stop and does not wait for its pods."""


@dataclass(frozen=True)
class TrainingProcess:
    """Identifies a process of this machine, across reuse of its pid."""

    pid: int
    start_ticks: int
    """Clock ticks from boot to the start of the process."""
    boot_id: str
    start_time: float
    """Seconds since the epoch, for display."""
    ready: bool = False
    """Whether it has checked its arguments and runs on its own."""

    @classmethod
    def own(cls, *, ready: bool = False) -> "TrainingProcess":
        """Returns the current process."""
        own = Process.find(os.getpid())
        assert own is not None
        return cls(own.pid, own.start_ticks, boot_id(), time.time(), ready)

    @property
    def lives(self) -> bool:
        """Whether the process is running."""
        return self.boot_id == boot_id() and Process(self.pid, self.start_ticks).lives


class ProcessLock:
    """Lock that the training process holds; its file identifies the process."""

    def __init__(self, descriptor: int) -> None:
        """Wraps the descriptor of a locked file."""
        self._descriptor = descriptor

    def ready(self) -> None:
        """Reports to the command that started this process that it is ready."""
        _write(self._descriptor, TrainingProcess.own(ready=True))


@contextlib.contextmanager
def hold(folder: Path, name: str) -> Iterator[ProcessLock]:
    """Holds the lock for the duration of the block. The folder must exist.

    Raises:
        AlreadyExists: Another process holds it.
    """
    # The file is never removed. Otherwise two processes could lock two different files with the same name.
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor, folder, name)
        _write(descriptor, TrainingProcess.own())
        yield ProcessLock(descriptor)
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


def _runs(name: str, holder: TrainingProcess | None) -> str:
    who = f" (pid {holder.pid})" if holder else ""
    return f"continuous {name} is running{who}; stop it with: podrace continuous stop {name}"


def _write(descriptor: int, identity: TrainingProcess) -> None:
    # Records have a fixed length, so that a shorter record overwrites a longer one completely.
    os.pwrite(descriptor, json.dumps(asdict(identity)).encode().ljust(RECORD_BYTES), 0)


def running(folder: Path) -> TrainingProcess | None:
    """Returns the running training process; None if there is none."""
    try:
        found = TrainingProcess(**json.loads((folder / LOCK).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.lives else None


def check_free(folder: Path, name: str) -> None:
    """Raises AlreadyExists if the training is running."""
    holder = running(folder)
    if holder:
        raise AlreadyExists(_runs(name, holder))


def detach(
    arguments: Sequence[str], folder: Path, name: str, *, deadline_seconds: float = START_SECONDS
) -> TrainingProcess:
    """Starts a background process and returns when it is ready.

    Args:
        arguments: Command line of the process, which takes the lock of the folder.
        folder: Folder of the training; the output of the process goes to a log there.
        name: Name of the training, for messages.
        deadline_seconds: Time limit for the process to be ready; it is killed after that.

    Raises:
        InvalidArgument, FailedPrecondition: The process exited; the message is its last log line.
        DeadlineExceeded: The process was not ready in time.
    """
    log = folder / LOG
    with open_log(log) as file:
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
    line = _last_line(log, begin) or f"it exited with code {child.returncode}"
    error = InvalidArgument if child.returncode == EXIT_WRONG_REQUEST else FailedPrecondition
    raise error(f"{line} (log: {log})")


def rotate_log(folder: Path) -> None:
    """Rotates the log of the process if it is long; one that cannot be rotated grows."""
    log = folder / LOG
    with contextlib.suppress(OSError):
        if log.stat().st_size > LOG_BYTES:
            copy_and_truncate(log, KEPT_LOGS)


def _last_line(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip().removeprefix("error: ") for line in reversed(lines) if line.strip()), "")


def stop(process: TrainingProcess, *, deadline_seconds: float) -> str:
    """Asks a process to stop and waits for it.

    After the deadline the process is asked not to wait for its pods, and finally it is killed.

    Returns:
        How it stopped, as text for the user; empty if it stopped within the deadline.

    Raises:
        DeadlineExceeded: It does not exit even after it was killed.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return ""
    try:
        # Checked after opening: from now on the descriptor cannot refer to another process.
        if not process.lives:
            return ""
        steps = (signal.SIGTERM, deadline_seconds), (signal.SIGTERM, ORDER_SECONDS), (signal.SIGKILL, ORDER_SECONDS)
        for attempt, (number, seconds) in enumerate(steps):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
            if select.select([descriptor], [], [], seconds)[0]:
                return ("", "it did not wait for its pods", "it was killed; its pods publish and exit")[attempt]
    finally:
        os.close(descriptor)
    raise DeadlineExceeded(f"process {process.pid} does not stop (waited {deadline_seconds + 2 * ORDER_SECONDS:g} s)")
