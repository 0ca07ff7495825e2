"""Kills pods that are still running after their mesh has stopped.

The pods are found by the files that the fork server writes (`pod.json`). While an orchestrator runs, only its launcher
removes pods; the command does so after all other processes of the mesh have exited.
"""

import contextlib
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from podrace.processes.identity import Process, boot_id

SHARED_MEMORY = Path("/dev/shm")


def living_roles(pods: Path) -> list[Process]:
    """Returns the processes of all pods that are still running.

    Args:
        pods: Folder with one folder per pod, each with a `pod.json`.
    """
    return [role for file in pods.glob("*/pod.json") for role in _roles(file) if role.lives]


def _roles(file: Path) -> Iterator[Process]:
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
        pod = json.loads(file.read_text())
        if pod["boot_id"] == boot_id():
            for role in pod["roles"].values():
                yield Process(int(role["pid"]), int(role["start_ticks"]))


def remove(pods: Path) -> None:
    """Kills the processes of pods that are still running and removes the pods' files and shared memory."""
    for role in living_roles(pods):
        role.signal(signal.SIGKILL)
    for folder in pods.glob("*"):
        for left in SHARED_MEMORY.glob(f"podrace-{folder.name}-*"):
            # Another user may have made a file of that name.
            with contextlib.suppress(OSError):
                left.unlink()
        shutil.rmtree(folder, ignore_errors=True)
