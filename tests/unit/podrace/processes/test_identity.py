"""When a process counts as dead."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from podrace.processes.identity import Process

EXIT_CALLS = {"x86_64": 60, "aarch64": 93}
"""Numbers of the system call that ends only the thread that makes it."""
PROGRAM = """
import ctypes, sys, threading

threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall({number}, 0)
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(platform.machine() not in EXIT_CALLS, reason="the number of the system call is not known here")
def test_a_process_lives_until_its_last_thread_has_exited_because_it_cannot_be_reaped_before() -> None:
    command = [sys.executable, "-c", PROGRAM.format(number=EXIT_CALLS[platform.machine()])]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as started:
        process = Process.find(started.pid)
        assert process is not None
        while state_of(started.pid) != "Z":
            os.sched_yield()
        assert process.lives
        assert os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        assert started.stdin is not None
        started.stdin.close()
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
        assert state_of(started.pid) == "Z", "it is not reaped yet"
        assert not process.lives
