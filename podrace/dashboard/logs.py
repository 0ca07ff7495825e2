"""Reads the logs of an embedded mesh for a page, in bounded parts: those of a tournament's pods, and of the services.

They are the files that `podrace logs` shows. A mesh that runs in containers or on other machines has none here.
"""

import itertools
import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from podrace.dashboard import views
from podrace.errors import FailedPrecondition, NotFound
from podrace.processes.log_reading import SUFFIX, GrowingLines, seek_last_lines

SERVICES = ("orchestrator", "leaderboard", "forkserver")
MOST_LINES = 2000
"""Lines of one part, at most."""
MOST_READ = 50_000
"""Lines that are read for one part, at most; the newest `MOST_LINES` of them are returned."""
MOST_TAIL_BYTES = 4 << 20
"""Size of the end of a log in which its last lines are searched."""
MOST_LOGS = 1000
"""Names of logs in an answer, at most: the newest."""


@dataclass(frozen=True)
class LogPart:
    """Lines that were added to a log."""

    lines: list[str]
    """With control characters escaped, each cut at `views.LONGEST_TEXT` characters."""
    left_out: int
    """Number of lines before them that were left out, because there were too many."""


class LogTail:
    """The last lines of a log, and those that are added to it.

    tail = LogTail.open(path, lines=200)
    while watched:
        show(tail.read())
    tail.close()
    """

    def __init__(self, descriptor: int, path: Path, lines: int) -> None:
        """Takes the open file of a log; the first part has at most `lines` lines."""
        self._file = os.fdopen(descriptor, "rb")
        seek_last_lines(self._file, lines, MOST_TAIL_BYTES)
        self._reader = GrowingLines(self._file, path)
        self._pending: Iterator[str] = iter(())

    @classmethod
    def open(cls, path: Path, lines: int) -> "LogTail":
        """Opens a log.

        Raises:
            NotFound: There is none, or it is not a regular file.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NotFound(f"log {path.stem}: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NotFound(f"log {path.stem}: is not a regular file")
        return cls(descriptor, path, lines)

    def read(self) -> LogPart:
        """Returns the lines that were completed since the last call, of which the newest are kept."""
        kept: deque[str] = deque(maxlen=MOST_LINES)
        count = self._take(kept, MOST_READ)
        if count < MOST_READ:
            self._pending = self._reader.read()
            count += self._take(kept, MOST_READ - count)
        return LogPart([views.text(line) for line in kept], count - len(kept))

    def _take(self, kept: deque[str], most: int) -> int:
        count = 0
        for line in itertools.islice(self._pending, most):
            kept.append(line[: views.LONGEST_TEXT + 1])
            count += 1
        return count

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


@dataclass(frozen=True)
class LogFolder:
    """The logs of a mesh."""

    folder: Path | None
    """None: the mesh runs elsewhere."""

    def names(self, tournament_id: str) -> list[str]:
        """Returns the names of the logs of a tournament's pods, the newest first, and of the services.

        Raises:
            FailedPrecondition: The mesh runs elsewhere.
        """
        folder, pod = self._known(), _pod_pattern(tournament_id)
        pods, services = [], []
        for entry in os.scandir(folder) if folder.is_dir() else ():
            name = entry.name.removesuffix(SUFFIX)
            if name == entry.name:
                continue
            if name in SERVICES:
                services.append(name)
            elif pod.fullmatch(name):
                pods.append((entry.stat(follow_symlinks=False).st_mtime, name))
        return [name for _, name in sorted(pods, reverse=True)[:MOST_LOGS]] + sorted(services)

    def tail(self, tournament_id: str, name: str, lines: int) -> LogTail:
        """Opens a log of a tournament's pods or of a service.

        Raises:
            NotFound: There is no such log, or it belongs to another tournament.
            FailedPrecondition: The mesh runs elsewhere.
        """
        folder = self._known()
        if name not in SERVICES and not _pod_pattern(tournament_id).fullmatch(name):
            raise NotFound(f"log {name}: expected the id of a pod of {tournament_id}, or one of {', '.join(SERVICES)}")
        return LogTail.open(folder / f"{name}{SUFFIX}", lines)

    def _known(self) -> Path:
        if self.folder is None:
            raise FailedPrecondition(
                "logs are read from the files of an embedded mesh, and this dashboard shows a mesh that runs elsewhere;"
                " use `docker logs` or `kubectl logs` where that mesh runs"
            )
        return self.folder


def _pod_pattern(tournament_id: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(tournament_id)}-p\d+")
