"""Sets how the C library treats memory that was freed."""

import contextlib
import ctypes

M_MMAP_THRESHOLD = -3
LARGE_BYTES = 128 * 1024
"""The initial limit of glibc."""


def return_large_blocks() -> None:
    """Makes this process return memory blocks of LARGE_BYTES and more to the system when they are freed.

    glibc returns them only until the first is freed: that block's size becomes its limit, up to 32 MiB. From then on
    each thread keeps the memory of its largest blocks. In a service whose threads take turns with the backup of a
    growing database, that memory grows for days. Not for processes that compute: they would get new pages, which the
    system fills with zeros, for each large array.

    A C library without this setting is left as it is.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
