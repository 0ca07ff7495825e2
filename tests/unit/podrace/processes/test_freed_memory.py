"""Large blocks are mapped separately, and so return to the system; threads share a few heaps."""

import subprocess
import sys

import pytest

PREPARE = """
import ctypes, sys
from podrace.processes import freed_memory
if sys.argv[1] == "set":
    freed_memory.keep_little()
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
"""
MAPPED = """
library.free(library.malloc(4 << 20))
block = library.malloc(1 << 20)
# The second bit of the size before a block of glibc: the block is mapped separately.
print(bool(ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & 2))
"""
HEAPS = """
import threading
THREADS, HEAP_BYTES = 6, 64 << 20
together, heaps = threading.Barrier(THREADS), set()
def allocate():
    block = library.malloc(1 << 12)
    # The third bit: the block is not in the heap of the main thread. Such a heap begins at a multiple of HEAP_BYTES.
    other = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & 4
    heaps.add(block // HEAP_BYTES if other else "main")
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(heaps) > 2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at blocks of glibc")
@pytest.mark.parametrize(
    ("look", "setting", "found"),
    [(MAPPED, "set", "True"), (MAPPED, "unset", "False"), (HEAPS, "set", "False"), (HEAPS, "unset", "True")],
)
def test_the_settings_take_effect(look: str, setting: str, found: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PREPARE + look, setting], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == found


RETURNED = """
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
blocks = [library.malloc(4096) for _ in range(10_000)]
for block in blocks:
    ctypes.memset(block, 1, 4096)
for block in blocks[:-1]:
    library.free(block)
before = resident()
freed_memory.return_all()
print(before - resident() > 5_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the pages of Linux")
def test_free_pages_below_a_block_that_is_used_are_returned() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PREPARE + RETURNED, "set"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "True"
