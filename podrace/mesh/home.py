"""Defines the folders of an embedded mesh: the home for lasting data, and a runtime folder for sockets."""

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from podrace.errors import FailedPrecondition


@dataclass(frozen=True)
class Folders:
    """The two folders of an embedded mesh, as absolute paths, and the files in them."""

    home: Path
    """Folder for lasting data: databases, checkpoints, logs, reports."""
    runtime: Path
    """Temporary folder that exists while the mesh runs: sockets, and one folder per pod. Its path is short because the
    length of socket paths is limited."""

    @classmethod
    def of(cls, home: Path, temporary: Path | None = None) -> "Folders":
        """Returns the folders of a home, always the same for the same home, without creating them."""
        real = home.expanduser().resolve()
        name = hashlib.sha256(str(real).encode()).hexdigest()[:8]
        return cls(real, (temporary or Path(tempfile.gettempdir())) / f"podrace-{name}")

    @property
    def orchestrator_socket(self) -> Path:
        """Socket of the orchestrator; unchanged when it restarts."""
        return self.runtime / "orchestrator.sock"

    @property
    def leaderboard_socket(self) -> Path:
        """Socket of the leaderboard; unchanged when it restarts."""
        return self.runtime / "leaderboard.sock"

    @property
    def forkserver_socket(self) -> Path:
        """Socket of the process that forks the pods' roles."""
        return self.runtime / "forkserver.sock"

    @property
    def lifeline(self) -> Path:
        """Lifeline that the command holds. Each process of the mesh reads it and exits when it is closed."""
        return self.runtime / "mesh.lifeline"

    @property
    def pods(self) -> Path:
        """Folder with one folder per pod."""
        return self.runtime / "pods"

    @property
    def lock(self) -> Path:
        """Lock that the command holds which runs the mesh."""
        return self.home / "mesh.lock"

    @property
    def orchestrator_database(self) -> Path:
        """Database of the orchestrator."""
        return self.home / "orchestrator.sqlite"

    @property
    def leaderboard_database(self) -> Path:
        """Database of the leaderboard."""
        return self.home / "leaderboard.sqlite"

    @property
    def store(self) -> Path:
        """Default checkpoint store."""
        return self.home / "store"

    @property
    def store_note(self) -> Path:
        """File with the URI of the checkpoint store, if it is not the default."""
        return self.home / "store.uri"

    @property
    def logs(self) -> Path:
        """Folder with one log per service and pod."""
        return self.home / "logs"

    def tournament(self, tournament_id: str) -> Path:
        """Folder with the reports of one tournament."""
        return self.home / "tournaments" / tournament_id

    def make_home(self) -> None:
        """Creates the home if it does not exist.

        Raises:
            FailedPrecondition: The folder cannot be created or is not writable.
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
        """Creates the runtime folder. The caller holds the lock of the home.

        Raises:
            FailedPrecondition: The folder cannot be created, or it belongs to another user.
        """
        try:
            self.runtime.mkdir(mode=0o700, exist_ok=True)
            status = self.runtime.lstat()
        except OSError as error:
            raise FailedPrecondition(
                f"{self.runtime} cannot be created: {error.strerror}; set TMPDIR to a writable folder"
            ) from None
        # A user who could create a socket there could impersonate the mesh.
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise FailedPrecondition(
                f"{self.runtime} belongs to another user; remove it or set TMPDIR to another folder"
            )
        self.runtime.chmod(0o700)
