"""Where an embedded mesh keeps what: what lasts in its home, sockets in a short folder among temporary files."""

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from podrace.errors import FailedPrecondition


@dataclass(frozen=True)
class Folders:
    """The two folders of an embedded mesh, both absolute, and what lies in them."""

    home: Path
    """What lasts: databases, checkpoints, logs, reports."""
    runtime: Path
    """What lives as long as the mesh: sockets, and a folder a pod. Short, because a socket's path must be."""

    @classmethod
    def of(cls, home: Path, temporary: Path | None = None) -> "Folders":
        """Names the folders of a home; the same home always has the same ones. Makes nothing."""
        real = home.expanduser().resolve()
        name = hashlib.sha256(str(real).encode()).hexdigest()[:8]
        return cls(real, (temporary or Path(tempfile.gettempdir())) / f"podrace-{name}")

    @property
    def orchestrator_socket(self) -> Path:
        """Socket of the orchestrator; the same over its restarts."""
        return self.runtime / "orchestrator.sock"

    @property
    def leaderboard_socket(self) -> Path:
        """Socket of the leaderboard; the same over its restarts."""
        return self.runtime / "leaderboard.sock"

    @property
    def nursery_socket(self) -> Path:
        """Socket of the process that forks the pods' roles."""
        return self.runtime / "nursery.sock"

    @property
    def lifeline(self) -> Path:
        """Held by the CLI; whoever reads its end goes."""
        return self.runtime / "mesh.lifeline"

    @property
    def pods(self) -> Path:
        """A folder a pod."""
        return self.runtime / "pods"

    @property
    def lock(self) -> Path:
        """Held by the CLI whose mesh it is."""
        return self.home / "mesh.lock"

    @property
    def orchestrator_database(self) -> Path:
        """What the orchestrator remembers."""
        return self.home / "orchestrator.sqlite"

    @property
    def leaderboard_database(self) -> Path:
        """What the leaderboard remembers."""
        return self.home / "leaderboard.sqlite"

    @property
    def store(self) -> Path:
        """Checkpoints, where no other store was named."""
        return self.home / "store"

    @property
    def store_note(self) -> Path:
        """Holds the URI of the checkpoint store, where another one was named."""
        return self.home / "store.uri"

    @property
    def logs(self) -> Path:
        """A log a process or pod."""
        return self.home / "logs"

    def tournament(self, tournament_id: str) -> Path:
        """Reports of one tournament."""
        return self.home / "tournaments" / tournament_id

    def make_home(self) -> None:
        """Makes the home where it is missing.

        Raises:
            FailedPrecondition: It cannot be made or written.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            if not os.access(self.home, os.W_OK | os.X_OK):
                raise PermissionError(0, "it is not writable")
        except OSError as error:
            raise FailedPrecondition(
                f"home {self.home} cannot be used: {error.strerror}; choose another folder with --home or PODRACE_HOME"
            ) from None

    def make_runtime(self) -> None:
        """Makes the runtime folder; only the owner of the home's lock does, for the previous one removed it.

        Raises:
            FailedPrecondition: It cannot be made, or it belongs to somebody else.
        """
        try:
            self.runtime.mkdir(mode=0o700, exist_ok=True)
            status = self.runtime.lstat()
        except OSError as error:
            raise FailedPrecondition(
                f"{self.runtime} cannot be made: {error.strerror}; name a writable folder in TMPDIR"
            ) from None
        # Whoever could put a socket there could pretend to be the mesh.
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise FailedPrecondition(f"{self.runtime} belongs to somebody else; remove it or name a folder in TMPDIR")
        self.runtime.chmod(0o700)
