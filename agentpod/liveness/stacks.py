"""Dumps the stacks of all threads of a role into a file, and reads them.

- A process that the leader can signal dumps them on a signal. faulthandler writes the dump from the signal handler, so
  it also works while a thread holds the interpreter's lock. A stopped process (SIGSTOP) handles the signal as it
  continues.
- A role in another container dumps them regularly, because the leader cannot signal it. A stopped one cannot dump.

User code may have replaced a file that is read: no links are followed, and at most LONGEST_DUMP_BYTES are read.
"""

import asyncio
import contextlib
import faulthandler
import os
import re
import signal
import stat
import sys
import time
from itertools import islice
from pathlib import Path
from traceback import walk_stack
from typing import IO

from podrace.printable import printable
from podrace.processes.identity import Process

DUMP_SIGNAL = signal.SIGUSR2
DUMP_SECONDS = 1.0
"""Time that a dump may take."""
POLL_SECONDS = 0.05
EARLIER_SECONDS = 2.0
"""Time before the shortest deadline at which a role whose event loop cannot run has dumped its stacks."""
DUMPS_OF_THE_LOOP = 3
"""Dumps that the event loop of a role makes in the time after which it counts as unable to run."""
LONGEST_DUMP_BYTES = 128 << 10
LONGEST_STACKS_CHARACTERS = 3000
FRAMES = 8
"""Innermost frames of a thread that are reported."""
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
_DUMP_OF_A_TIMER = "\nTimeout ("
"""Start of a dump that a timer of faulthandler has added to an earlier one."""


def stacks_file(folder: Path, role: str) -> Path:
    """Returns the file that a role dumps its stacks into."""
    return folder / f"{role}.stacks"


def dump_on_signal(folder: Path, role: str) -> None:
    """Lets this process dump its stacks on DUMP_SIGNAL, until it exits."""
    faulthandler.register(DUMP_SIGNAL, file=_opened(stacks_file(folder, role)), all_threads=True, chain=False)


async def dump_regularly(folder: Path, role: str, floor_seconds: float) -> None:
    """Dumps the stacks of this process again and again, until it is cancelled.

    The event loop dumps them. While it cannot run, because a thread holds the interpreter's lock, a timer of
    faulthandler dumps them once, before the leader can find the role to be stuck.

    Args:
        folder: Folder of the pod.
        role: Role of this process.
        floor_seconds: Shortest deadline of a role.
    """
    held_seconds = max(floor_seconds - EARLIER_SECONDS, floor_seconds / 2)
    with _opened(stacks_file(folder, role)) as file:
        try:
            while True:
                file.truncate(0)
                file.write(_innermost_frames().encode(errors="replace"))
                faulthandler.dump_traceback_later(held_seconds, file=file)
                await asyncio.sleep(held_seconds / DUMPS_OF_THE_LOOP)
        finally:
            faulthandler.cancel_dump_traceback_later()


def own_stacks() -> str:
    """Returns the stacks of this process, condensed."""
    return condensed(_innermost_frames())


async def stacks_of(process: Process, folder: Path, role: str) -> str:
    """Has a process of this host dump its stacks and returns them, condensed, or why there are none.

    A process that is stopped continues. It must be killed afterwards.
    """
    path = stacks_file(folder, role)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return "no stacks: the process has not started to listen for the signal"
    stopped = process.stopped
    process.signal(DUMP_SIGNAL)
    if stopped:
        process.signal(signal.SIGCONT)
    return await _dumped(path) or f"no stacks: the process did not dump them within {DUMP_SECONDS:g} s"


async def last_stacks(folder: Path, role: str, age_seconds: float) -> str:
    """Returns the stacks that a role has dumped regularly, condensed, or why there are none.

    Args:
        folder: Folder of the pod.
        role: Role of the process.
        age_seconds: Time since its last progress. Earlier stacks do not show where it hangs.
    """
    path, since = stacks_file(folder, role), time.time() - age_seconds
    # A role of a third party has no file, and is not waited for.
    found = await _dumped(path, since) if path.exists() else ""
    return found or "no stacks: the role dumped none since its last progress"


def condensed(dump: str) -> str:
    """Returns a dump on one line, the innermost frame of each thread first: `step (gym/env.py:7) < ... | ...`."""
    threads: list[list[str]] = []
    for line in dump.splitlines():
        if found := _FRAME.fullmatch(line):
            place = "/".join(Path(found["file"]).parts[-2:])
            if threads and len(threads[-1]) < FRAMES:
                threads[-1].append(f"{found['function']} ({place}:{found['line']})")
        elif "hread 0x" in line:
            threads.append([])
    text = printable(" | ".join(" < ".join(thread) for thread in threads if thread))
    return text if len(text) <= LONGEST_STACKS_CHARACTERS else f"{text[:LONGEST_STACKS_CHARACTERS]}..."


async def _dumped(path: Path, since: float = 0.0) -> str:
    """Waits for a complete dump and returns it, condensed; "" if there is none within DUMP_SECONDS."""
    before = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DUMP_SECONDS):
            while not before or _read(path, since) != before:
                before = _read(path, since)
                await asyncio.sleep(POLL_SECONDS)
            return condensed(before)
    return ""


def _innermost_frames() -> str:
    """Returns the stacks of this process as faulthandler dumps them, without outer frames.

    faulthandler makes some ten system calls for each frame.
    """
    lines = []
    for thread, innermost in sys._current_frames().items():
        lines.append(f"Thread 0x{thread:x} (most recent call first):")
        for frame, number in islice(walk_stack(innermost), FRAMES):
            lines.append(f'  File "{frame.f_code.co_filename}", line {number} in {frame.f_code.co_name}')
    return "\n".join([*lines, ""])


def _opened(path: Path) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)


def _read(path: Path, since: float) -> str:
    """Returns the last dump in a file; "" if there is none, or none since a time in seconds since 1970."""

    def opened(name: str, flags: int) -> int:
        # Without waiting for the writer of a named pipe.
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)

    try:
        with open(path, "rb", buffering=0, opener=opened) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_mtime < since:
                return ""
            return file.read(LONGEST_DUMP_BYTES).decode(errors="replace").rpartition(_DUMP_OF_A_TIMER)[2]
    except OSError:
        return ""
