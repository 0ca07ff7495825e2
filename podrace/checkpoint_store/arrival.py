"""Receives the bytes of an object into memory without a copy and computes their digest meanwhile.

A separate thread computes the digest of a large object from the bytes received so far. hashlib releases the GIL, so the
receiving thread continues.
"""

import hashlib
import io
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CHUNK_BYTES = 2**20
OVERLAPPED_BYTES = 8 * 2**20
"""For smaller objects, starting a thread costs about as much as it saves."""


@dataclass(frozen=True)
class Arrival:
    """The received bytes of an object, not verified yet."""

    data: bytes
    digest: str
    """Their SHA-256, lower-case hexadecimal."""


def receive(
    size_bytes: int, read_into: Callable[[memoryview], int | None], report: Callable[[int], None] = lambda _: None
) -> Arrival:
    """Reads this many bytes, or fewer if the source ends before.

    Args:
        size_bytes: Expected number of bytes.
        read_into: Fills a buffer from its start and returns the number of bytes written; 0 at the end of the source.
        report: Called with the number of bytes received so far.
    """
    hasher = hashlib.sha256()
    # BytesIO takes over bytes without another reference, and returns them, without a copy. Zeros take no memory until
    # they are written.
    buffer = io.BytesIO(bytes(size_bytes))
    received = 0
    with buffer.getbuffer() as whole, _hashing(hasher.update, overlapped=size_bytes >= OVERLAPPED_BYTES) as hash_piece:
        while received < size_bytes and (count := read_into(whole[received : received + CHUNK_BYTES])):
            hash_piece(whole[received : received + count])
            received += count
            report(received)
    data = buffer.getvalue()
    return Arrival(data if received == size_bytes else data[:received], hasher.hexdigest())


@contextmanager
def _hashing(update: Callable[[memoryview], None], *, overlapped: bool) -> Iterator[Callable[[memoryview], None]]:
    """Yields a function that hashes one piece after the other; all are hashed when the block ends."""
    if not overlapped:
        yield update
        return
    pieces: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()

    def run() -> None:
        while (piece := pieces.get()) is not None:
            update(piece)

    thread = threading.Thread(target=run, name="digest", daemon=True)
    thread.start()
    try:
        yield pieces.put
    finally:
        pieces.put(None)
        thread.join()
