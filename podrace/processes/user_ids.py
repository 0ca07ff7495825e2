"""Runs processes with user code under separate user ids, and finds and kills processes that remain.

Only root may do this, and only with user ids that exist where it runs: in a container there may be few.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from podrace.processes.identity import Process

CHOWN, KILL, SETGID, SETUID = 0, 5, 6, 7
"""Numbers of Linux capabilities."""
NEEDED = (CHOWN, KILL, SETGID, SETUID)
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
HIGHEST_OOM_SCORE = 1000
"""When memory runs out, the kernel kills the process with the highest score first."""
MOST_PROCESSES = 4096
"""Processes and threads that one user id may have."""
OWN_FOLDERS = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")
"""Variables that name folders of one user."""
_PROC = Path("/proc")


def may_change(user_ids: Collection[int], proc: Path = _PROC) -> bool:
    """Returns whether this process may start processes as these users."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return False
    lines = (proc / "self/status").read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    ranges = [tuple(map(int, line.split())) for line in (proc / "self/uid_map").read_text().splitlines()]
    known = all(any(first <= user_id < first + count for first, _, count in ranges) for user_id in user_ids)
    return known and all(effective >> capability & 1 for capability in NEEDED)


def become(user_id: int, home: Path) -> None:
    """Makes this process permanently one of another user: it has no groups, cannot gain rights, and dumps no memory.

    Args:
        user_id: The user, and its only group.
        home: A folder of that user, in place of those of the previous one.
    """
    os.setgroups([])
    os.setresgid(user_id, user_id, user_id)
    os.setresuid(user_id, user_id, user_id)
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.umask(0o077)
    _leave_closed_folder()
    for name in OWN_FOLDERS:
        os.environ.pop(name, None)
    os.environ["HOME"] = str(home)


def _leave_closed_folder() -> None:
    """Leaves a working folder that this user could not have entered, since relative paths would still be below it."""
    try:
        reachable = Path.cwd().samefile(".")
    except OSError:
        reachable = False
    if not reachable:
        os.chdir("/")


def hide_memory() -> None:
    """Hides memory, environment and open files of this process permanently from others of its user.

    Root still sees them. The kernel also writes no core file of the process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def show_memory() -> None:
    """Undoes hide_memory, for a child process that has inherited it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def raise_oom_score() -> None:
    """Makes the kernel kill this process before all others when memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(HIGHEST_OOM_SCORE))


def limit(memory_bytes: int = 0, *, processes: bool = False) -> None:
    """Limits this process, before it becomes one of another user.

    Args:
        memory_bytes: Data memory that it may allocate in addition to what it has (RLIMIT_DATA); 0: no limit.
        processes: Whether to limit the processes of its user, which no one else may be then.
    """
    raise_oom_score()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if processes:
        _lower(resource.RLIMIT_NPROC, MOST_PROCESSES)
    if memory_bytes:
        _lower(resource.RLIMIT_DATA, memory_bytes + _data_bytes())


def _lower(kind: int, most: int) -> None:
    """Sets a limit permanently, unless a lower one holds already."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def in_use() -> set[int]:
    """Returns the users that have processes."""
    return set(_owners().values())


def kill_all(user_id: int) -> int:
    """Kills every process of a user, and returns how many there were."""
    found = [process for process, owner in _owners().items() if owner == user_id]
    for process in found:
        process.signal(signal.SIGKILL)
    return len(found)


def first_free(candidates: Iterable[int], taken: Collection[int]) -> int:
    """Returns the first user id that is not taken; 0 if all are."""
    return next((each for each in candidates if each not in taken), 0)


def _owners() -> dict[Process, int]:
    """Returns the user of each process that has not exited."""
    found = {}
    for path in _PROC.iterdir():
        # Identified first: the number may be that of another process afterwards, which then does not live.
        process = Process.find(int(path.name)) if path.name.isdigit() else None
        with suppress(OSError):
            if process:
                found[process] = path.stat().st_uid
    return {process: owner for process, owner in found.items() if process.lives}


def _data_bytes() -> int:
    """Returns the data memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) << 10
