"""Ctrl-C and SIGTERM: the first is a request, the second an order."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Counts the interrupts of one command and hands them to it.

    The first cancels the command's task, whose blocks then end in order. Within `polite` it sets an event instead, and
    the second one cancels; what ends then asks `ordered` whether there is time left.
    """

    def __init__(self, task: "asyncio.Task[int]") -> None:
        """Knows the task of the command; `catch` makes signals arrive."""
        self.count = 0
        self._task = task
        self._request: asyncio.Event | None = None

    @contextlib.contextmanager
    def catch(self) -> Iterator[None]:
        """Takes the signals of the process during the block; needs the running loop."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.interrupt)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def interrupt(self) -> None:
        """One more interrupt."""
        self.count += 1
        if self._request and not self._request.is_set():
            self._request.set()
        else:
            self._task.cancel()

    def ordered(self) -> bool:
        """Whether the user asked twice."""
        return self.count > 1

    @contextlib.contextmanager
    def polite(self) -> Iterator[asyncio.Event]:
        """An event that the first interrupt within the block sets."""
        self._request = asyncio.Event()
        try:
            yield self._request
        finally:
            self._request = None
