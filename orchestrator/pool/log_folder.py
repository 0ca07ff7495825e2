"""Limits the size of the folder of logs: rotates long logs, and deletes logs of pods that have exited."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import structlog

from orchestrator.decisions.log_retention import LogFile, LogLimits, logs_to_delete, pod_of
from orchestrator.state.clock import Clock
from orchestrator.state.runtime import RuntimeState
from podrace.processes.log_rotation import copy_and_truncate

CHECK_SECONDS = 5.0
"""Time between two checks. In this time a log may grow beyond its limit."""
FORK_SERVER_LOG = "forkserver.log"
MESH_LOGS = ("orchestrator.log", "leaderboard.log")
"""Logs to which the services of an embedded mesh append. Where the output of a standing service goes is not known."""
_log = structlog.get_logger(__name__)


class LogFolder:
    """The folder with the logs of pods, of the fork server, and of the services of an embedded mesh.

    tidying = asyncio.create_task(log_folder.run())
    """

    def __init__(self, folder: Path, limits: LogLimits, runtime: RuntimeState, clock: Clock, *, mesh: bool) -> None:
        """Creates the task; it runs in `run`.

        Args:
            folder: The folder.
            limits: What is kept.
            runtime: Lists the pods that have not exited.
            clock: Wall time.
            mesh: Whether the services of an embedded mesh log to this folder.
        """
        self._folder, self._limits, self._runtime, self._clock = folder, limits, runtime, clock
        self._services = {FORK_SERVER_LOG, *(MESH_LOGS if mesh else ())}
        self._failed: set[str] = set()

    async def run(self) -> None:
        """Checks the folder periodically, until it is cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Rotates and deletes what the limits demand; what fails is logged once and tried again."""
        living = frozenset(self._runtime.cache.pods)
        failures = await asyncio.to_thread(self._check, living, self._clock.wall())
        for name, error in failures.items():
            if name not in self._failed:
                _log.warning("a log cannot be rotated or deleted", log=str(self._folder / name), error=error)
        self._failed = set(failures)

    def _check(self, living: Collection[str], now: float) -> dict[str, str]:
        failures: dict[str, str] = {}
        try:
            files = _files(self._folder)
        except OSError as error:
            return {"": str(error)}
        doomed = logs_to_delete(files, living, now, self._limits)
        for name in doomed:
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                failures[name] = str(error)
        if not self._limits.file_bytes:
            return failures
        for file in files:
            if file.size > self._limits.file_bytes and file.name not in doomed and self._is_log(file.name):
                try:
                    copy_and_truncate(self._folder / file.name, self._limits.kept_files)
                except OSError as error:
                    failures[file.name] = str(error)
        return failures

    def _is_log(self, name: str) -> bool:
        return name in self._services or (name.endswith(".log") and bool(pod_of(name)))


def _files(folder: Path) -> list[LogFile]:
    """Returns the files of a folder; a file that disappears meanwhile is left out."""
    found = []
    for path in folder.iterdir():
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        found.append(LogFile(path.name, status.st_size, status.st_mtime))
    return found
