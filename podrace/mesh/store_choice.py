"""Chooses the checkpoint store of a home: a folder in the home, or the store that was named when the home was new.

The home records the choice, because its databases refer to checkpoints in that store.
"""

from pathlib import Path

from podrace.errors import FailedPrecondition
from podrace.mesh.home import Folders

DEADLINE_SECONDS = 10.0
"""Deadline of calls to the store."""


def choose_store(folders: Folders, wanted: str, *, writes: bool) -> str:
    """Returns the URI of the store to use, and records it for a new home. The caller holds the lock of the home.

    Args:
        folders: Folders of the home, which must exist.
        wanted: Store that the user named, as a URI or a folder; empty if none.
        writes: Whether checkpoints will be written. If not, a store other than the one of the home is ignored, because
            the environment variable may be meant for another home.

    Raises:
        FailedPrecondition: The home has another store.
        PodraceError: The named store cannot be used, as raised by `open_store`.
    """
    usual = f"folder://{folders.store}"
    named = wanted if "://" in wanted else f"folder://{Path(wanted).absolute()}" if wanted else ""
    known = _recorded(folders) or (usual if folders.leaderboard_database.exists() else "")
    if known:
        if writes and named not in ("", known):
            raise FailedPrecondition(
                f"the checkpoints of home {folders.home} are in {known}, not in {named}; omit --store and"
                " PODRACE_STORE, or use another --home"
            )
        return known
    if named not in ("", usual):
        from podrace.checkpoint_store import open_store  # imported late, because it takes longer than most commands

        named = open_store(named, deadline_seconds=DEADLINE_SECONDS).uri
        folders.store_note.write_text(f"{named}\n")
    return named or usual


def _recorded(folders: Folders) -> str:
    try:
        return folders.store_note.read_text().strip()
    except FileNotFoundError:
        return ""
