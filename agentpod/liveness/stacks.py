"""Dumps the stacks of all threads of a role into a file, on a signal, and reads them.

faulthandler writes the dump from the signal handler, so it also works while a thread holds the interpreter's lock. A
stopped process (SIGSTOP) handles no signal and cannot dump.
"""

import asyncio
import faulthandler
import os
import re
import signal
from pathlib import Path
from typing import IO

from podrace.processes.identity import Process

DUMP_SIGNAL = signal.SIGUSR2
DUMP_SECONDS = 1.0
"""Time that a dump may take."""
POLL_SECONDS = 0.05
LONGEST_DUMP_BYTES = 64 << 10
LONGEST_STACKS_CHARACTERS = 3000
FRAMES = 8
"""Innermost frames of a thread that are reported."""
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')


def stacks_file(folder: Path, role: str) -> Path:
    """Returns the file that a role dumps its stacks into."""
    return folder / f"{role}.stacks"


def dump_on_signal(folder: Path, role: str) -> None:
    """Lets this process dump its stacks on DUMP_SIGNAL, until it exits."""
    faulthandler.register(DUMP_SIGNAL, file=_opened(stacks_file(folder, role)), all_threads=True, chain=False)


def own_stacks(folder: Path, role: str) -> str:
    """Dumps the stacks of this process and returns them, condensed."""
    with _opened(stacks_file(folder, role)) as file:
        faulthandler.dump_traceback(file, all_threads=True)
    return condensed(_read(stacks_file(folder, role)))


async def stacks_of(process: Process, folder: Path, role: str) -> str:
    """Has a process of this host dump its stacks and returns them, condensed, or why there are none."""
    if process.stopped:
        return "no stacks: a stopped process cannot dump them"
    path = stacks_file(folder, role)
    if not path.exists():
        return "no stacks: the process has not started to listen for the signal"
    path.write_bytes(b"")
    process.signal(DUMP_SIGNAL)

    async def dumped() -> str:
        before = ""
        while not before or _read(path) != before:
            before = _read(path)
            await asyncio.sleep(POLL_SECONDS)
        return before

    try:
        return condensed(await asyncio.wait_for(dumped(), DUMP_SECONDS))
    except TimeoutError:
        return f"no stacks: the process did not dump them within {DUMP_SECONDS:g} s"


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
    text = " | ".join(" < ".join(thread) for thread in threads if thread)
    return text if len(text) <= LONGEST_STACKS_CHARACTERS else f"{text[:LONGEST_STACKS_CHARACTERS]}..."


def _opened(path: Path) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LONGEST_DUMP_BYTES).decode(errors="replace")
