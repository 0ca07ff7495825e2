"""Finds the processors that pods of other meshes on this machine are bound to.

Each mesh distributes the processors of the machine among its own pods. Without this, two commands `podrace train` would
bind their first pods to the same processor.
"""

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

COMMAND = b"agentpod\0forkserver"
"""Part of the command lines of the roles of pods, which are forked. Processes that roles start have others."""


def cpus_of_other_pods(
    own: Collection[int],
    *,
    proc: Path = Path("/proc"),
    affinity: Callable[[int], Collection[int]] = os.sched_getaffinity,
) -> set[int]:
    """Returns the processors that processes of pods are bound to. Processes that cannot be read are ignored.

    Args:
        own: Process ids of the pods of this mesh, which are left out.
        proc: Folder of the processes.
        affinity: Returns the processors that a process may run on; for process 0, those of this one.
    """
    allowed, bound = set(affinity(0)), set[int]()
    for folder in proc.glob("[0-9]*"):
        pid = int(folder.name)
        if pid not in own:
            # A process may end at any time, or belong to a user whose processes are hidden.
            with suppress(OSError):
                if COMMAND in (folder / "cmdline").read_bytes():
                    cpus = allowed & set(affinity(pid))
                    bound |= cpus if cpus < allowed else set()
    return bound
