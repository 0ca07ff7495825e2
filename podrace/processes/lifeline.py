"""A lifeline: processes that must not outlive another hold on to it and learn of its death from the kernel.

The holder makes a named pipe and keeps it open for writing, without ever writing. A peer opens it for reading: nothing
comes, and end-of-file means that the holder is gone, however it went, `kill -9` included. No heartbeat, no timeout, no
pid that could have been reused, and no limit to the number of peers.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_RETRY_SECONDS = 0.02


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Holds a lifeline at `path` until the block or the process ends; one that a dead holder left is replaced."""
    # Under its name only when it is held: whoever saw it before would take its holder for dead.
    incoming = path.with_name(f"{path.name}.incoming")
    incoming.unlink(missing_ok=True)
    os.mkfifo(incoming, 0o600)
    # Reading as well: an end that only writes cannot be opened while nobody reads.
    descriptor = os.open(incoming, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    incoming.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def grasp(path: Path | str) -> int | None:
    """Opens a lifeline for reading.

    Returns:
        A descriptor that becomes readable when the holder is gone; None if it is gone already.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        held = bool(os.read(descriptor, 1))
    except BlockingIOError:
        held = True
    if held:
        return descriptor
    # End-of-file at once: the pipe of a holder that died.
    os.close(descriptor)
    return None


async def lost(path: Path | str, *, appear_seconds: float = 0.0) -> str:
    """Waits for the end of a lifeline.

    Returns:
        The reason in words: the holder at `path` is gone, or has not appeared within `appear_seconds`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + appear_seconds
    while (descriptor := grasp(path)) is None:
        if loop.time() >= deadline:
            return f"lifeline {path} did not appear"
        await asyncio.sleep(_RETRY_SECONDS)
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return f"lifeline {path} was lost"
