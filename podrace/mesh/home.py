"""Defines the folders of an embedded mesh: the home for lasting data, and a runtime folder for sockets."""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from podrace.ownership import check_link, make_own_folder, make_private_folder

HOME_REMEDY = "choose another folder with --home or PODRACE_HOME"
RUNTIME_REMEDY = "remove it or set TMPDIR to another folder"


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
        """Returns the folders of a home, always the same for the same home, without creating them.

        Raises:
            FailedPrecondition: The home is a symbolic link that another user made.
        """
        check_link(home.expanduser(), HOME_REMEDY)
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
            FailedPrecondition: The folder cannot be created or written to, belongs to another user, or others can write
                to it.
        """
        for folder in (self.home, self.logs):
            make_own_folder(folder, HOME_REMEDY)

    def make_runtime(self) -> None:
        """Creates the runtime folder, or checks one that a killed mesh has left. The caller holds the lock of the home.

        Raises:
            FailedPrecondition: The folder cannot be created, belongs to another user, or others can enter it.
        """
        make_private_folder(self.runtime, RUNTIME_REMEDY)
