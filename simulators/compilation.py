"""Reports that a simulator compiles kernels in this process, so that it is not considered stuck."""

import contextlib
import threading
import time
from collections.abc import Iterator

import structlog

LONG_SECONDS = 5.0
"""A block that took this long is logged. If it compiled kernels, they were not in the cache."""
_log = structlog.get_logger(__name__)
_lock = threading.Lock()
_running = 0


@contextlib.contextmanager
def compiling(what: str) -> Iterator[None]:
    """Marks the block as one in which kernels may be compiled.

    Args:
        what: What is started or compiled, for the log.
    """
    global _running
    with _lock:
        _running += 1
    started = time.monotonic()
    try:
        yield
    finally:
        with _lock:
            _running -= 1
    seconds = time.monotonic() - started
    if seconds >= LONG_SECONDS:
        _log.info("a simulator has started or compiled", what=what, seconds=round(seconds, 1))


def is_compiling() -> bool:
    """Whether a thread of this process is in a block that may compile."""
    return _running > 0
