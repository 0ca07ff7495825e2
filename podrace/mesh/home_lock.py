"""Who owns the mesh of a home: a lock that the kernel gives up with its holder, and what a newcomer does about it."""

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
    """What a command wants a mesh for."""

    QUERY = "query"
    """To ask or tell; no pods are started."""
    EVALUATE = "evaluate"
    """To have pods evaluate."""
    TRAIN = "train"
    """To have pods train; the mesh must be its own, for it ends with the tournament."""


class Answer(Enum):
    """What to do about a mesh that is there."""

    JOIN = "join"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Holder:
    """The process that owns a mesh."""

    pid: int
    use: Use


def decide(wanted: Use, held: Use) -> Answer:
    """What a command does when the home has a mesh already.

    A query's mesh has no pods and is gone in a moment, so whoever needs pods waits for it. Training never joins: who
    owns a mesh ends it.
    """
    if wanted is Use.QUERY or (wanted is Use.EVALUATE and held is not Use.QUERY):
        return Answer.JOIN
    return Answer.WAIT if held is Use.QUERY else Answer.REFUSE


@contextlib.asynccontextmanager
async def claim(folders: Folders, use: Use, *, deadline_seconds: float) -> AsyncIterator[bool]:
    """Takes the lock of a home, or finds that its mesh can be joined.

    Args:
        folders: Those of the home, which exists.
        use: What a mesh is wanted for.
        deadline_seconds: How long to wait for a mesh that is coming or going.

    Yields:
        True while this process holds the lock, False when there is a mesh to join.

    Raises:
        FailedPrecondition: There is a mesh that cannot be joined, or that neither answers nor goes.
    """
    # The file stays: were it removed, two processes could hold the locks of two files of that name.
    descriptor = os.open(folders.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield await _take_or_join(descriptor, use, folders, deadline_seconds)
    finally:
        os.close(descriptor)


async def _take_or_join(descriptor: int, use: Use, folders: Folders, deadline_seconds: float) -> bool:
    give_up = time.monotonic() + deadline_seconds
    while not _take(descriptor, use):
        holder = _read_holder(descriptor)
        answer = decide(use, holder.use) if holder else Answer.WAIT
        if holder and answer is Answer.REFUSE:
            raise FailedPrecondition(
                f"a mesh is running on {folders.home} (pid {holder.pid}, to {holder.use.value}); use another"
                f" --home, or --orchestrator unix:{folders.orchestrator_socket}"
            )
        if answer is Answer.JOIN and listens(folders.orchestrator_socket):
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


def _read_holder(descriptor: int) -> Holder | None:
    """Who holds the lock; None in the instant before it has written its name."""
    pid, _, use = os.pread(descriptor, 100, 0).decode().strip().partition(" ")
    return Holder(int(pid), Use(use)) if use else None
