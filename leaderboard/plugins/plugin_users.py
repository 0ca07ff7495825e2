"""Gives each process of a generator or updater function a separate user id, if the leaderboard runs as root.

Such a process can then read neither memory, environment or files of the leaderboard and other services, nor those of
other plugins. The embedded mesh of one user is exempt: there, the code has the rights of that user.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from leaderboard.config import PluginConfig
from podrace.errors import InvalidArgument
from podrace.limits.config import Allowed
from podrace.ownership import make_own_folder, make_private_folder, share
from podrace.processes import lifeline, user_ids

REMEDY = "set TMPDIR to another folder"
EVERYONE = 0o001
"""Mode bit that lets every user enter a folder."""
_log = structlog.get_logger(__name__)


@dataclass
class PluginUser:
    """The user of one child process, and the folder that it may enter."""

    user_id: int
    folder: Path
    """Below it are the lifeline, which it may read, and `home`, which belongs to it."""
    held: ExitStack = field(default_factory=ExitStack)

    @property
    def home(self) -> Path:
        """Folder of the user, for its socket."""
        return self.folder / "home"

    @property
    def lifeline(self) -> Path:
        """Lifeline of the leaderboard."""
        return self.folder / "lifeline"

    def end(self) -> None:
        """Kills the processes that are left of this user, and removes its folder."""
        user_ids.kill_all(self.user_id)
        self.held.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class PluginUsers:
    """The user ids that a leaderboard gives to child processes.

    user = users.choose()           # None: child processes have the user id of the leaderboard
    ...
    users.end(user)
    """

    def __init__(self, config: PluginConfig, runtime_folder: Path, allowed: Allowed) -> None:
        """Finds out whether this process may change user ids.

        Args:
            config: Names the user ids.
            runtime_folder: Folder of the leaderboard, which other users cannot enter.
            allowed: Whether specifications may name everything, because the mesh belongs to one user.
        """
        first = 0 if allowed.everything else config.user_code_uid
        self._candidates = range(first, first + config.user_code_uids) if first > 0 else range(0)
        ends = self._candidates[:: max(1, len(self._candidates) - 1)]
        self._usable = bool(ends) and user_ids.may_change(ends)
        digest = hashlib.sha256(str(runtime_folder.absolute()).encode()).hexdigest()[:12]
        self._folder = Path(tempfile.gettempdir()) / f"podrace-plugins-{digest}"
        self._chosen: dict[int, PluginUser] = {}

    def choose(self) -> PluginUser | None:
        """Returns a user that has no processes, with its folder; None if there are no user ids to give.

        Raises:
            InvalidArgument: All user ids have processes, or the folder cannot be used.
        """
        if not self._usable:
            return None
        if not all(folder.stat().st_mode & EVERYONE for folder in Path(os.__file__).parents):
            _log.warning(
                "a plugin cannot import modules of Python, because it runs as another user: install Python where"
                " everyone can read it",
                python=sys.prefix,
            )
        user_id = user_ids.first_free(self._candidates, {*self._chosen, *user_ids.in_use()})
        if not user_id:
            raise InvalidArgument("its process cannot be started: no user id is free; raise plugins.user_code_uids")
        user = PluginUser(user_id, self._folder / str(user_id))
        try:
            self._make_folder(user)
        except OSError as error:
            raise InvalidArgument(f"its process cannot be started: {user.folder}: {error.strerror}; {REMEDY}") from None
        self._chosen[user_id] = user
        return user

    def _make_folder(self, user: PluginUser) -> None:
        make_own_folder(self._folder, REMEDY, mode=0o711)
        # Left by a leaderboard that was killed; no process of this user lives.
        shutil.rmtree(user.folder, ignore_errors=True)
        user.folder.mkdir(mode=0o700)
        share(user.folder, user.user_id, 0o750)
        make_private_folder(user.home, REMEDY)
        os.chown(user.home, user.user_id, user.user_id)
        user.held.enter_context(lifeline.hold(user.lifeline, user.user_id))

    def end(self, user: PluginUser | None) -> None:
        """Kills the remaining processes of a user and removes its folder, after its child process was killed."""
        if user is not None:
            self._chosen.pop(user.user_id, None)
            user.end()
