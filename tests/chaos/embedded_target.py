"""Injects faults into an embedded mesh."""

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import grpc
from chaos_faults import CLASSES, FUSED_CLASSES, Fault
from chaos_target import NotInjected, ask_environment, filled, send, slow, small_disk, stop, temporary_folder
from homes import Home, wait_for

from podrace.backup.copies import Backups
from podrace.checkpoint_store import open_store
from podrace.mesh.service_process import listens

STORE_MIB = 256
BACKUP_PERIOD_SECONDS = 2.0
LONGEST_BACKUP_AGE_SECONDS = 30.0
"""Of the newest backup of a service whose database is lost: faults may delay a backup. What is lost of an earlier time
is damage."""
START_SECONDS = 180.0
STOP_SECONDS = 600.0
"""The command writes its reports before it ends, also for hundreds of agents."""
END_SECONDS = 120.0
"""Longer than an unfinished write of a killed process is kept."""
PROCESS_SECONDS = 60.0
ACCEPTED = re.compile(r"(\S+) \[info *\] submitted .*\bcandidate_id=([0-9a-f]{64})\b")
"""The line of a pod's log after the leaderboard has accepted a candidate."""


class EmbeddedTarget:
    """A mesh that `podrace train` starts in a new home."""

    name = "embedded"

    def __init__(self, folder: Path, temporary: Path, store: Path | None, learners: int) -> None:
        """Creates the home.

        Args:
            folder: Empty folder.
            temporary: Empty folder into which the mesh puts temporary files.
            store: Folder of a small disk for the store; None: there is none, and faults that fill it do not happen.
            learners: Learners of an agent.
        """
        self._folder, self._temporary, self._store, self._errors = folder, temporary, store, folder / "errors"
        self.home = Home(folder / "home")
        self.home.path.mkdir(mode=0o755)
        if store:
            (self.home.path / "store").symlink_to(store)
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.classes = (*CLASSES[self.name], *(FUSED_CLASSES if learners > 1 else ()))
        self.unprotected: list[tuple[float, float]] = []
        folders = self.home.folders
        self._sockets = {"orchestrator": folders.orchestrator_socket, "leaderboard": folders.leaderboard_socket}

    def start(self, specification: str) -> str:
        """See Target."""
        path = self._folder / "chaos.toml"
        path.write_text(specification)
        self._training = self.home.start("train", str(path), "--json", errors=self._errors)
        tournament_id: str = wait_for(self.home.tournament_id, START_SECONDS, what="a pod")
        return tournament_id

    def channel(self, service: str) -> grpc.Channel:
        """See Target."""
        return grpc.insecure_channel(f"unix:{self._sockets[service]}")

    def pids(self, target: str) -> list[int]:
        """Processes of a service that serves, of the fork server, of a role in one pod, or of one pod."""
        if target in self._sockets and not listens(self._sockets[target]):
            # The command gives a service up that is killed again and again before it serves.
            return []
        if target in self._sockets or target == "fork server":
            with contextlib.suppress(ValueError):
                return [self.home.service(target)]
            return []
        pods = self.home.roles().values()
        if target == "pod":
            return next((list(roles.values()) for roles in pods), [])
        return [roles[target] for roles in pods if target in roles][:1]

    def inject(self, fault: Fault) -> None:
        """See Target."""
        if fault.kind == "full":
            if not self._store:
                raise NotInjected("this user may not mount a small disk")
            with filled(self._store):
                time.sleep(fault.seconds)
        elif fault.kind == "hold":
            ask_environment(self.faults, fault.kind, fault.seconds)
        else:
            self._signal(fault)

    def _signal(self, fault: Fault) -> None:
        target = fault.target.removesuffix(" database")
        if target == "fork server" and not self.pids(target):
            raise NotInjected("no fork server runs: pods live on without it, and the next pod starts another one")
        pids = wait_for(lambda: self.pids(target), PROCESS_SECONDS, what=f"a process of {target}")
        if fault.kind == "stop":
            stop(pids, fault.seconds)
        elif fault.kind == "slow":
            slow(pids, fault.seconds)
        elif target == fault.target:
            send(pids, signal.SIGKILL)
        else:
            send(pids, signal.SIGSTOP)
            if target == "leaderboard":
                self.unprotected.append(self.since_backup(target))
            for file in self.home.path.glob(f"{target}.sqlite*"):
                file.unlink()
            send(pids, signal.SIGKILL)

    def since_backup(self, service: str) -> tuple[float, float]:
        """Returns the time of the newest backup of a stopped service, and now."""
        newest = Backups(open_store(str(self.home.path / "store"), only_reading=True), "main", service).newest()
        now = time.time()
        return max(newest.time if newest else 0.0, now - LONGEST_BACKUP_AGE_SECONDS), now

    def acknowledged(self) -> Mapping[str, float]:
        """See Target."""
        logs = self.home.folders.logs.glob("*-p*.log*")
        lines = sorted(line for path in logs for line in path.read_text(errors="replace").splitlines())
        return {found[2]: datetime.fromisoformat(found[1]).timestamp() for found in map(ACCEPTED.match, lines) if found}

    def finish(self) -> Mapping[str, int]:
        """See Target."""
        ended = self._training.poll() is not None
        self._training.send_signal(signal.SIGINT)
        self._training.communicate(timeout=STOP_SECONDS)
        store = str(self.home.path / "store")
        deadline = time.monotonic() + END_SECONDS
        while (left := self.left_behind(store)) and time.monotonic() < deadline:
            time.sleep(0.5)
        for what in sorted(left):
            print(f"left behind: {what}", file=sys.stderr)
        damage = self.home.json("store", "verify", store, with_home=False)["damage"]
        return {
            "corrupt_checkpoints": len(damage),
            "left_behind": len(left),
            "commands_ended": int(ended),
            "tracebacks": self._errors.read_text().count("Traceback"),
        }

    def left_behind(self, store: str) -> set[str]:
        """Processes, shared memory, temporary files, and unfinished writes of the store."""
        open_store(store, only_reading=True).remove_abandoned()
        unfinished, temporary = (self.home.path / "store/incoming").iterdir(), self._temporary.iterdir()
        return {*self.home.left_behind(), *map(str, unfinished), *map(str, temporary)}


@contextlib.contextmanager
def embedded(folder: Path, learners: int = 1) -> Iterator[EmbeddedTarget]:
    """Yields a target; kills what it started."""
    for service in ("ORCHESTRATOR", "LEADERBOARD"):
        os.environ[f"PODRACE_{service}__BACKUP__PERIOD_SECONDS"] = str(BACKUP_PERIOD_SECONDS)
    with small_disk(folder / "disk", STORE_MIB) as store, temporary_folder() as temporary:
        target = EmbeddedTarget(folder, temporary, store, learners)
        try:
            yield target
        finally:
            for process in target.home.started:
                process.kill()
                process.communicate()
