"""Owns how the bytes of an object arrive: in memory once, and their digest with them.

The digest of a large object is taken by a thread of its own behind what has arrived, for hashlib lets the one that
reads run on meanwhile.
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
"""In what is smaller, a thread costs about as much as it saves."""


@dataclass(frozen=True)
class Arrival:
    """The bytes of an object, not verified yet."""

    data: bytes
    digest: str
    """Their SHA-256, lower-case hexadecimal."""


def receive(
    size_bytes: int, read_into: Callable[[memoryview], int | None], tell: Callable[[int], None] = lambda _: None
) -> Arrival:
    """Reads so many bytes, or fewer where the source ends before.

    Args:
        size_bytes: How many there should be.
        read_into: Fills a buffer from its front on and returns how many bytes it put there; 0 at the end.
        tell: Is told how many bytes have arrived.
    """
    hasher = hashlib.sha256()
    # BytesIO takes bytes that nobody else refers to, and gives them back, without a copy; zeros cost no memory until
    # they are written.
    buffer = io.BytesIO(bytes(size_bytes))
    received = 0
    with buffer.getbuffer() as whole, _hashing(hasher.update, overlapped=size_bytes >= OVERLAPPED_BYTES) as hash_piece:
        while received < size_bytes and (count := read_into(whole[received : received + CHUNK_BYTES])):
            hash_piece(whole[received : received + count])
            received += count
            tell(received)
    data = buffer.getvalue()
    return Arrival(data if received == size_bytes else data[:received], hasher.hexdigest())


@contextmanager
def _hashing(update: Callable[[memoryview], None], *, overlapped: bool) -> Iterator[Callable[[memoryview], None]]:
    """Yields what hashes one piece after the other; after the block all are hashed."""
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
