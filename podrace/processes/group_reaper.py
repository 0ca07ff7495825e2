"""Owns the end of what a process has started: a sweeper kills it as soon as that process is gone, however it went.

The head of a pod kills a user's function with all that it has started; but where the head itself is killed, the kernel
ends the function alone (`podrace.plugins.loader.confine`), and nobody is left who knows of the others.
"""

import os
import select
import signal
import sys
from contextlib import suppress


def sweep_after_this_process() -> None:
    """Leaves a sweeper behind, which ends when it has killed the process group that this process leads, if it does.

    It is a fork of this process, which must not run other threads yet. What has left the group is out of its reach.
    """
    if sys.platform != "linux":
        return
    watched, leader = os.pidfd_open(os.getpid()), os.getpid()
    between = os.fork()
    if between:
        os.close(watched)
        os.waitpid(between, 0)
        return
    try:
        # Not of the group that it is to kill; nor a child of a process that may wait for all its children.
        os.setsid()
        if not os.fork():
            _sweep(watched, leader)
    finally:
        os._exit(0)


def _sweep(watched: int, leader: int) -> None:
    ending = select.poll()
    ending.register(watched, select.POLLIN)
    ending.poll()
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
