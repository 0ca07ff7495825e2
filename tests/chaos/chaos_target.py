"""Defines a mesh in which faults happen, and the faults that are the same for processes of every mesh."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import grpc
from chaos_faults import Fault

SLOW_RUN_SECONDS, SLOW_STOP_SECONDS = 0.02, 0.18
WRITE_BYTES = (1 << 16, 512)
TAKEN_SECONDS = 30.0
"""Time within which an environment takes a fault."""


class NotInjected(Exception):
    """A fault that could not happen, and why."""


class Target(Protocol):
    """A mesh in which faults happen.

    tournament_id = target.start(specification)
    target.inject(fault)
    counts = target.finish()
    """

    name: str
    """Key of chaos_faults.CLASSES."""
    classes: Sequence[tuple[str, str]]
    """Classes of faults, as kind and target, that can happen here."""
    unprotected: Sequence[tuple[float, float]]
    """For each loss of the leaderboard's database, the time of its newest backup and that of the loss, in seconds since
    1970: the candidates of this time are lost."""

    def start(self, specification: str) -> str:
        """Starts a tournament and returns its id."""
        ...

    def channel(self, service: str) -> grpc.Channel:
        """Returns a new channel to the service `orchestrator` or `leaderboard`, which the caller closes."""
        ...

    def inject(self, fault: Fault) -> None:
        """Lets one fault happen, and returns at its end.

        Raises:
            NotInjected: It did not happen.
        """
        ...

    def acknowledged(self) -> Mapping[str, float]:
        """Returns the candidates that pods have recorded as accepted, and when (seconds since 1970).

        Empty where the records of a pod are removed with it.
        """
        ...

    def finish(self) -> Mapping[str, int]:
        """Stops the tournament and returns counts of damage, each of which must be 0."""
        ...


# --- faults of processes -----------------------------------------------------------------------------------------


def send(pids: Collection[int], number: signal.Signals) -> None:
    """Sends a signal to processes, of which some may have exited.

    Raises:
        NotInjected: All have exited.
    """
    reached = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached += 1
    if not reached:
        raise NotInjected(f"no process got {number.name}")


def stop(pids: Collection[int], seconds: float) -> None:
    """Stops processes for a time.

    Raises:
        NotInjected: All have exited before.
    """
    send(pids, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        with contextlib.suppress(NotInjected):
            send(pids, signal.SIGCONT)


def slow(pids: Collection[int], seconds: float) -> None:
    """Lets processes run a tenth of the time.

    Raises:
        NotInjected: All have exited before.
    """
    end = time.monotonic() + seconds
    stop(pids, SLOW_STOP_SECONDS)
    while time.monotonic() < end:
        time.sleep(SLOW_RUN_SECONDS)
        # A slow process may be replaced: that is an effect of the fault.
        with contextlib.suppress(NotInjected):
            stop(pids, SLOW_STOP_SECONDS)


def cut(pid: int, seconds: float) -> None:
    """Drops all packets of the network namespace of a process for a time, except those to itself."""
    rules = (("INPUT", "-i"), ("OUTPUT", "-o"))
    inside = ["nsenter", "--target", str(pid), "--net", "iptables", "--wait"]
    with contextlib.ExitStack() as stack:
        for chain, interface in rules:
            rule = [chain, "!", interface, "lo", "--jump", "DROP"]
            subprocess.run([*inside, "--insert", *rule], check=True, capture_output=True)
            # The namespace is gone if the container was removed meanwhile.
            stack.callback(subprocess.run, [*inside, "--delete", *rule], check=False, capture_output=True)
        time.sleep(seconds)


def ask_environment(folder: Path, kind: str, seconds: float) -> None:
    """Lets an environment hold the interpreter's lock, or exhaust the memory: see sleepy_environment.

    Raises:
        NotInjected: No environment has taken the fault within TAKEN_SECONDS.
    """
    path = folder / kind
    temporary = folder / f".{kind}"
    temporary.write_text(str(max(seconds, 1.0)))
    temporary.chmod(0o666)
    temporary.rename(path)
    deadline = time.monotonic() + TAKEN_SECONDS
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        raise NotInjected(f"no environment stepped within {TAKEN_SECONDS:g} s")
    time.sleep(seconds)


# --- temporary files ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Lets this process, and those that it starts, put temporary files into a new folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, contextlib.ExitStack() as stack:
        before = os.environ.get("TMPDIR"), tempfile.tempdir
        stack.callback(setattr, tempfile, "tempdir", before[1])
        stack.callback(os.environ.pop, "TMPDIR", None)
        if before[0] is not None:
            stack.callback(os.environ.__setitem__, "TMPDIR", before[0])
        os.environ["TMPDIR"] = tempfile.tempdir = name
        yield Path(name)


# --- disks -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Writes until there is no room, and deletes it at the end."""
    ballast = folder / "ballast"
    for size in WRITE_BYTES:
        with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(size))
    try:
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[Path | None]:
    """Mounts a small file system at a new folder; yields None if this user may not."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
