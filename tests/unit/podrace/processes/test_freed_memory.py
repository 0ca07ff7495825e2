"""Large blocks are mapped separately, and so return to the system, also after a larger one was freed."""

import subprocess
import sys

import pytest

LOOK = """
import ctypes, sys
from podrace.processes import freed_memory
if sys.argv[1] == "set":
    freed_memory.return_large_blocks()
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
library.free(library.malloc(4 << 20))
block = library.malloc(1 << 20)
# The second bit of the size before a block of glibc: the block is mapped separately.
print(bool(ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & 2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at blocks of glibc")
@pytest.mark.parametrize(("setting", "mapped"), [("set", "True"), ("unset", "False")])
def test_a_large_block_is_mapped_after_a_larger_one_was_freed(setting: str, mapped: str) -> None:
    found = subprocess.run([sys.executable, "-c", LOOK, setting], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == mapped
