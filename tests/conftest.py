"""What holds for all tests."""

import os

# Before anything imports torch: small operations on two threads take many times as long as soon as another process
# wants one of the processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")
