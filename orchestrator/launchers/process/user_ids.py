"""Chooses the user ids of processes with user code, and cleans up after them."""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import structlog

from orchestrator.launchers.options import ProcessOptions
from podrace.errors import InvalidArgument, Unavailable
from podrace.processes import user_ids
from podrace.tournament.v1.tournament_pb2 import PodSpec

PLANES = ("auto", "shared", "cuda")
"""Planes that connect processes of different users: the others need the socket of the leader."""
EVERYONE = 0o001
"""Mode bit that lets every user enter a folder."""
_log = structlog.get_logger(__name__)


class CodeUserIds:
    """The user ids that this launcher gives to processes with user code, and the folders that these may enter.

    uid = code_user_ids.choose(taken)                   # 0: that of this process
    settings |= code_user_ids.settings(uid, pod_id)
    ...
    if not code_user_ids.kill(uid):
        code_user_ids.remove_folder(pod_id)
    """

    def __init__(self, options: ProcessOptions, runtime_folder: Path) -> None:
        """Finds out whether this process may change user ids.

        Args:
            options: Options of the launcher.
            runtime_folder: Folder of the orchestrator, which other users cannot enter.
        """
        first = options.user_code_uid
        self._candidates = range(first, first + options.user_code_uids) if first > 0 else range(0)
        ends = self._candidates[:: max(1, len(self._candidates) - 1)]
        self._usable = bool(ends) and user_ids.may_change(ends)
        # Folders of several orchestrators must differ, and an orchestrator that restarts must find its own.
        digest = hashlib.sha256(str(runtime_folder.absolute()).encode()).hexdigest()[:12]
        self._folder = Path(tempfile.gettempdir()) / f"podrace-code-{digest}"

    def check(self, spec: PodSpec) -> None:
        """Refuses a pod whose processes could not work together as different users.

        Raises:
            InvalidArgument: The pod requires a plane that needs the socket of the leader, or other users cannot enter
                the folder of temporary files.
        """
        if not self._usable:
            return
        if spec.plane not in ("", *PLANES):
            raise InvalidArgument(
                f"pod.plane = {spec.plane!r}: user code runs as another user than the leader, which is reached by the"
                f" planes {', '.join(PLANES)}"
            )
        for folder in self._folder.parents:
            if not folder.stat().st_mode & EVERYONE:
                raise InvalidArgument(
                    f"user code runs as another user, who cannot enter {folder}; set TMPDIR of the orchestrator to a"
                    " folder that everyone may enter"
                )

    def choose(self, taken: Collection[int]) -> int:
        """Returns a user id that has no processes and is not taken; 0 if user code runs as the user of this process.

        Raises:
            Unavailable: There is none.
        """
        if not self._usable:
            _log.warning(
                "user code runs with the user id of its leader and can read the leader's memory; to separate them, run"
                " the orchestrator as root",
                setting="launchers.process.user_code_uid",
            )
            return 0
        if not all(folder.stat().st_mode & EVERYONE for folder in Path(os.__file__).parents):
            _log.warning(
                "user code cannot import modules of Python, which runs as another user: install Python where everyone"
                " can read it",
                python=sys.prefix,
            )
        found = user_ids.first_free(self._candidates, {*taken, *user_ids.in_use()})
        if not found:
            raise Unavailable("no user id for user code is free; raise launchers.process.user_code_uids")
        return found

    def settings(self, uid: int, pod_id: str) -> dict[str, Any]:
        """Returns the configuration keys of a pod with this user id."""
        return {"user_code_uid": uid, "user_code_folder": str(self._folder / pod_id)} if uid else {}

    def kill(self, uid: int) -> int:
        """Kills all processes of a user id of this launcher; returns how many there were."""
        return user_ids.kill_all(uid) if self._usable and uid in self._candidates else 0

    def remove_folder(self, pod_id: str) -> None:
        """Removes the folder of a pod whose processes have exited."""
        if self._usable:
            shutil.rmtree(self._folder / pod_id, ignore_errors=True)
