"""Tests that the children of a process are killed when the process exits for any reason."""

import os
import select
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, subprocess
from podrace.processes import group_reaper
group_reaper.reap_group_after_this_process()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    signal.pause()
print("there is a child that this process has not started", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_children_of_a_process_are_killed_when_it_exits(how: signal.Signals) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        child = os.pidfd_open(int(process.stdout.readline()))
        try:
            process.send_signal(how)
            process.wait(10.0)
            assert select.select([child], [], [], 10.0)[0], "the child outlives its parent"
            # End-of-file: no process holds the pipe any more, so the reaper has exited as well.
            assert process.stdout.read() == ""
        finally:
            if not select.select([child], [], [], 0.0)[0]:
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)
