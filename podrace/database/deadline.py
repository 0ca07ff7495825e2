"""Ends statements that a server of PostgreSQL does not answer in time.

The kernel closes a connection on which the other side acknowledges nothing. That does not happen if the server, or a
pool in front of it, is alive and hangs. libpq waits for such an answer without end.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import psycopg

POLL_SECONDS = 0.25
Link = psycopg.Connection[tuple[Any, ...]]


def interrupt(link: Link) -> None:
    """Ends a connection, from any thread: what waits for an answer on it fails with OperationalError."""
    # A copy of the descriptor: that of the connection may be closed and reused meanwhile.
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(link.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


class Deadline:
    """Interrupts a connection when an answer is overdue.

    with deadline.within(10.0):
        link.execute(...)
    """

    def __init__(self, link: Link, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Starts the thread that watches; it ends with the connection.

        Args:
            link: The connection.
            monotonic: Clock in seconds.
        """
        self._link, self._monotonic, self._due = link, monotonic, inf
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="database deadline", daemon=True).start()

    def begin(self, seconds: float) -> None:
        """Interrupts the connection after this time, unless `end` is called before."""
        self._due = self._monotonic() + seconds

    def end(self) -> None:
        """Ends the deadline."""
        self._due = inf

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Interrupts the connection if the block takes longer."""
        self.begin(seconds)
        try:
            yield
        finally:
            self.end()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            if self._monotonic() >= self._due:
                self.end()
                interrupt(self._link)
