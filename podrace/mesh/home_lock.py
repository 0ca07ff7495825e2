"""Locks a home, so that at most one command runs a mesh on it.

The kernel releases the lock when its holder exits. A command that finds the home locked joins the running mesh, waits
until it has stopped, or reports an error.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum

from podrace.errors import FailedPrecondition
from podrace.mesh.home import Folders
from podrace.mesh.service_process import listens

POLL_SECONDS = 0.1


class Use(Enum):
    """Purpose for which a command needs a mesh."""

    QUERY = "query"
    """Calls the services; the mesh starts no pods."""
    EVALUATE = "evaluate"
    """Needs pods that evaluate."""
    DASHBOARD = "dashboard"
    """Shows tournaments and starts them on request."""
    TRAIN = "train"
    """Needs pods that train. The command must run the mesh itself, because the mesh stops with the command."""


class LockDecision(Enum):
    """What a command does if a mesh already runs on the home."""

    JOIN = "join"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True)
class LockHolder:
    """The process that holds the lock of a home."""

    pid: int
    use: Use


def decide(wanted: Use, held: Use) -> LockDecision:
    """Decides what a command does if a mesh already runs on the home.

    The mesh of a query has no pods and stops soon, so a command that needs pods waits for its end. Training never
    joins a mesh, because the mesh would stop with the command that runs it.

    Args:
        wanted: Purpose of the command.
        held: Purpose of the command that runs the mesh.
    """
    if wanted is Use.QUERY or (wanted is Use.EVALUATE and held is not Use.QUERY):
        return LockDecision.JOIN
    return LockDecision.WAIT if held is Use.QUERY else LockDecision.REFUSE


@contextlib.asynccontextmanager
async def claim(folders: Folders, use: Use, *, deadline_seconds: float) -> AsyncIterator[bool]:
    """Takes the lock of a home, or finds that its mesh can be joined.

    Args:
        folders: Folders of the home, which must exist.
        use: Purpose for which the command needs a mesh.
        deadline_seconds: Time to wait for a mesh that is starting or stopping.

    Yields:
        True if this process holds the lock, False if there is a mesh to join.

    Raises:
        FailedPrecondition: There is a mesh that cannot be joined, or that neither answers nor stops.
    """
    # The file is never removed. Otherwise two processes could lock two different files with the same name.
    descriptor = os.open(folders.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield await _take_or_join(descriptor, use, folders, deadline_seconds)
    finally:
        os.close(descriptor)


async def _take_or_join(descriptor: int, use: Use, folders: Folders, deadline_seconds: float) -> bool:
    give_up = time.monotonic() + deadline_seconds
    while not _take(descriptor, use):
        holder = _read_holder(descriptor)
        decision = decide(use, holder.use) if holder else LockDecision.WAIT
        if holder and decision is LockDecision.REFUSE:
            raise FailedPrecondition(
                f"a mesh is running on {folders.home} (pid {holder.pid}, to {holder.use.value}); use another"
                f" --home, or --orchestrator unix:{folders.orchestrator_socket}"
            )
        if decision is LockDecision.JOIN and listens(folders.orchestrator_socket):
            return False
        if time.monotonic() > give_up:
            raise FailedPrecondition(
                f"the mesh on {folders.home} does not answer (waited {deadline_seconds:g} s); see {folders.logs}"
            )
        await asyncio.sleep(POLL_SECONDS)
    return True


def _take(descriptor: int, use: Use) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {use.value}\n".encode(), 0)
    return True


def _read_holder(descriptor: int) -> LockHolder | None:
    """Returns the process that holds the lock; None if it has not yet written its pid."""
    pid, _, use = os.pread(descriptor, 100, 0).decode().strip().partition(" ")
    return LockHolder(int(pid), Use(use)) if use else None
