"""A lifeline: processes that must not outlive another hold a socket to it and learn of its death from the kernel.

The holder only binds and listens. A peer connects and reads: nothing ever comes, and end-of-file means that the holder
is gone, however it went, `kill -9` included. No heartbeat, no timeout, no pid that could have been reused.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from podrace.errors import InvalidArgument

MAXIMUM_PATH_BYTES = 107
"""Linux' sun_path, without the closing zero."""
_BACKLOG = 512
_RETRY_SECONDS = 0.02


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Holds a lifeline at `path` until the block or the process ends.

    Raises:
        InvalidArgument: The path is too long for a socket.
    """
    if len(str(path).encode()) > MAXIMUM_PATH_BYTES:
        raise InvalidArgument(f"socket path {path} is longer than {MAXIMUM_PATH_BYTES} bytes; choose a shorter folder")
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        holder.bind(str(path))
        # Connections wait in the backlog for ever; the kernel resets them when this socket closes.
        holder.listen(_BACKLOG)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


async def lost(path: Path | str, *, appear_seconds: float = 0.0) -> str:
    """Returns, with the reason in words, when the holder at `path` is gone, or has not appeared within
    `appear_seconds`.
    """
    deadline = asyncio.get_running_loop().time() + appear_seconds
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(str(path))
            break
        except OSError:
            if asyncio.get_running_loop().time() >= deadline:
                return f"lifeline {path} did not appear"
            await asyncio.sleep(_RETRY_SECONDS)
    # A reset is as good an end as end-of-file.
    with contextlib.suppress(OSError):
        await reader.read()
    writer.close()
    return f"lifeline {path} was lost"
