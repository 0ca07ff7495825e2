"""Notifies processes when the process that they must not outlive has exited, through a named pipe: a lifeline.

The holder creates the pipe and keeps it open for writing, but never writes. A peer opens it for reading. The kernel
reports end-of-file to the peer when the holder has exited for any reason, `kill -9` included. This needs no heartbeat,
timeout or pid, and any number of peers can use one lifeline.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from podrace.ownership import is_own_pipe, share

_RETRY_SECONDS = 0.02


@contextlib.contextmanager
def hold(path: Path, group: int = 0) -> Iterator[None]:
    """Holds a lifeline at `path` until the block or the process ends; replaces the pipe of a dead holder.

    Args:
        path: The lifeline.
        group: Group that may read it, if this is root; 0: only processes of this user.
    """
    # Renamed only when it is held: a peer that opened it earlier would consider the holder dead.
    incoming = path.with_name(f"{path.name}.incoming")
    incoming.unlink(missing_ok=True)
    os.mkfifo(incoming, 0o600)
    # Also for reading: without a reader, a pipe cannot be opened only for writing.
    descriptor = os.open(incoming, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    if group:
        # A reader that could write would wake the others.
        share(descriptor, group, 0o640)
    incoming.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def attach(path: Path | str) -> int | None:
    """Opens a lifeline for reading.

    Returns:
        A descriptor that becomes readable when the holder has exited; None if it has exited already, or if the file is
        not a pipe of this user.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    if not is_own_pipe(descriptor):
        os.close(descriptor)
        return None
    try:
        held = bool(os.read(descriptor, 1))
    except BlockingIOError:
        held = True
    if held:
        return descriptor
    # End-of-file at once: the holder is dead.
    os.close(descriptor)
    return None


async def lost(path: Path | str, *, appear_seconds: float = 0.0) -> str:
    """Waits until the holder of a lifeline has exited.

    Args:
        path: The lifeline.
        appear_seconds: Time that the lifeline may take to appear.

    Returns:
        The reason as text: the holder has exited, or the lifeline has not appeared in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + appear_seconds
    while (descriptor := attach(path)) is None:
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
