"""Manages the folder with the sockets of plugin processes, and the lifeline that these processes watch."""

import os
from contextlib import ExitStack
from pathlib import Path

from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.ownership import make_private_folder
from podrace.processes import lifeline


class RuntimeFolder:
    """One leaderboard's share of the folder. It is created when it is first needed.

    folder = RuntimeFolder(Path("/tmp/podrace"))
    path = folder.hold_lifeline()
    folder.release()
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = ExitStack()
        self._lifeline: Path | None = None

    def hold_lifeline(self) -> Path:
        """Returns the lifeline of this leaderboard; child processes exit when its holder is gone.

        Raises:
            InvalidArgument: The folder cannot be used.
        """
        if self._lifeline is None:
            path = self._folder / f"plugins-{os.getpid()}-{id(self):x}.lifeline"
            try:
                # The owner of the folder could replace a socket and answer in the name of a plugin.
                make_private_folder(self._folder, "choose another folder", key="runtime_folder")
                remove_stale(self._folder)
                self._held.enter_context(lifeline.hold(path))
            except FailedPrecondition as error:
                raise InvalidArgument(f"its process cannot be started: {error.message}") from None
            except OSError as error:
                raise InvalidArgument(
                    f"its process cannot be started: runtime_folder {self._folder}: {error.strerror}; choose another"
                ) from None
            self._lifeline = path
        return self._lifeline

    def release(self) -> None:
        """Releases the lifeline; processes that still watch it exit."""
        self._held.close()
        self._lifeline = None


def remove_stale(folder: Path) -> None:
    """Deletes the lifelines and sockets of leaderboards that were killed."""
    for path in folder.glob("plugins-*.lifeline"):
        held = lifeline.attach(path)
        if held is not None:
            os.close(held)
            continue
        for left in (path, *folder.glob(f"{path.stem}-*.sock")):
            left.unlink(missing_ok=True)
