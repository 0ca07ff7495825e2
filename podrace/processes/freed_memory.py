"""Sets how the C library treats memory that was freed."""

import contextlib
import ctypes

M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
LARGE_BYTES = 128 * 1024
"""The initial limit of glibc."""
ARENAS = 2
"""glibc's default is eight for each core of the machine."""


def return_all() -> None:
    """Returns the pages to the system that no block uses, wherever they are; takes a few milliseconds."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_little() -> None:
    """Makes this process keep little of the memory that it has freed; call this before it starts threads.

    Blocks of LARGE_BYTES and more return to the system when they are freed. glibc does this only until the first is
    freed: that block's size becomes its limit, up to 32 MiB. From then on each thread keeps the memory of its largest
    blocks. All threads together have ARENAS heaps: a heap keeps what its threads needed at most, and a service starts
    threads for days, as often as more calls than ever come at once.

    Not for processes that compute: they would get new pages, which the system fills with zeros, for each large array,
    and their threads would wait for each other.

    A C library without these settings is left as it is.
    """
    with contextlib.suppress(AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(M_MMAP_THRESHOLD, LARGE_BYTES)
        set_option(M_ARENA_MAX, ARENAS)
