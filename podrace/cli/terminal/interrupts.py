"""Handles Ctrl-C and SIGTERM: the first asks the command to stop, the second stops it immediately."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt during the block, as Ctrl-C does, for commands without an event loop."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class Interrupts:
    """Counts the interrupts of a command and passes them to it.

    The first interrupt cancels the task of the command, which then cleans up. Within a `polite` block the first
    interrupt sets an event instead, and the second one cancels the task. Within a `raised` block an interrupt raises
    KeyboardInterrupt. Cleanup code asks `ordered` whether to hurry.
    """

    def __init__(self, task: "asyncio.Task[int]") -> None:
        """Takes the task of the command; signals arrive within `catch`."""
        self.count = 0
        self._task = task
        self._request: asyncio.Event | None = None

    @contextlib.contextmanager
    def catch(self) -> Iterator[None]:
        """Handles the signals of the process during the block. Requires a running event loop."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.interrupt)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def interrupt(self) -> None:
        """Handles one interrupt."""
        self.count += 1
        if self._request and not self._request.is_set():
            self._request.set()
        else:
            self._task.cancel()

    def ordered(self) -> bool:
        """Returns whether there was more than one interrupt, so that cleanup should not wait."""
        return self.count > 1

    @contextlib.contextmanager
    def polite(self) -> Iterator[asyncio.Event]:
        """Yields an event that the first interrupt within the block sets."""
        self._request = asyncio.Event()
        try:
            yield self._request
        finally:
            self._request = None

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Raises KeyboardInterrupt at an interrupt within the block, which blocks the event loop, as a prompt does."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.default_int_handler)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.add_signal_handler(number, self.interrupt)
