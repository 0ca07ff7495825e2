"""Kills the process group of a process as soon as that process has exited, for any reason.

The leader of a pod kills the process of a user function together with its children. If the leader itself is killed, the
kernel kills only the process of the function (`podrace.plugins.loader.confine`). The reaper kills its children.
"""

import os
import select
import signal
import sys
from contextlib import suppress


def reap_group_after_this_process() -> None:
    """Starts a reaper that waits for the exit of this process, kills the process group that it leads, and exits.

    The reaper is a fork of this process, which must not have other threads yet. It cannot kill processes that have left
    the group. On platforms other than Linux, no reaper is started.
    """
    if sys.platform != "linux":
        return
    watched, leader = os.pidfd_open(os.getpid()), os.getpid()
    child = os.fork()
    if child:
        os.close(watched)
        os.waitpid(child, 0)
        return
    try:
        # A separate session, so that it is not in the group to kill. A grandchild, because this process may wait for
        # all its children.
        os.setsid()
        if not os.fork():
            _reap(watched, leader)
    finally:
        os._exit(0)


def _reap(watched: int, leader: int) -> None:
    exit_poll = select.poll()
    exit_poll.register(watched, select.POLLIN)
    exit_poll.poll()
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
