"""Pods that outlive the mesh they belong to: found by the files their nursery wrote, and at last killed.

While an orchestrator runs, its launcher alone does this; the CLI does it when everything else of the mesh is gone.
"""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Role:
    """A process of a pod, named so that no other can be meant: pids are used again, pids with their start are not."""

    pid: int
    start_ticks: int
    """Clock ticks from boot to the start of the process (field 22 of /proc/pid/stat)."""


def boot_id() -> str:
    """Which boot of the machine this is."""
    return _BOOT_ID.read_text().strip()


def start_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None if there is none, or only its zombie."""
    try:
        # The command's name may hold spaces and brackets: fields are counted from the last bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(role: Role) -> bool:
    """Whether this very process runs."""
    return start_ticks(role.pid) == role.start_ticks


def living_roles(pods: Path) -> list[Role]:
    """The roles of all pods that still run.

    Args:
        pods: Folder with a folder a pod, each with its pod.json.
    """
    return [role for file in pods.glob("*/pod.json") for role in _roles(file) if is_alive(role)]


def _roles(file: Path) -> Iterator[Role]:
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
        pod = json.loads(file.read_text())
        if pod["boot_id"] == boot_id():
            for role in pod["roles"].values():
                yield Role(int(role["pid"]), int(role["start_ticks"]))


def remove(pods: Path) -> None:
    """Kills the roles that still run and removes what their pods left, shared memory included."""
    for role in living_roles(pods):
        with contextlib.suppress(ProcessLookupError):
            os.kill(role.pid, signal.SIGKILL)
    for folder in pods.glob("*"):
        for left in SHARED_MEMORY.glob(f"podrace-{folder.name}-*"):
            left.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
