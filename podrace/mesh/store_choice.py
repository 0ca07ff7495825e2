"""Which checkpoint store the embedded mesh of a home uses: a folder in it, or what was named when the home was new.

A home remembers it, for its databases name checkpoints that lie nowhere else.
"""

from pathlib import Path

from podrace.errors import FailedPrecondition
from podrace.mesh.home import Folders

DEADLINE_SECONDS = 10.0
"""How long a store may take to answer a person."""


def settle(folders: Folders, wanted: str, *, writes: bool) -> str:
    """Says which store to use, and remembers it for a new home. The caller holds the lock of the home.

    Args:
        folders: Those of the home, which exists.
        wanted: What the user named; empty: nothing.
        writes: Whether checkpoints are going to be written: only then is another store than the home's an error, for
            the variable may be meant for other homes.

    Raises:
        FailedPrecondition: The home has another store.
        PodraceError: The store that was named cannot be used; as open_store raises.
    """
    usual = f"folder://{folders.store}"
    named = wanted if "://" in wanted else f"folder://{Path(wanted).absolute()}" if wanted else ""
    known = _remembered(folders) or (usual if folders.leaderboard_database.exists() else "")
    if known:
        if writes and named not in ("", known):
            raise FailedPrecondition(
                f"the checkpoints of home {folders.home} are in {known}, not in {named}; leave --store and"
                " PODRACE_STORE away, or use another --home"
            )
        return known
    if named not in ("", usual):
        from podrace.checkpoint_store import open_store  # only here: it takes longer than most commands

        named = open_store(named, deadline_seconds=DEADLINE_SECONDS).uri
        folders.store_note.write_text(f"{named}\n")
    return named or usual


def _remembered(folders: Folders) -> str:
    try:
        return folders.store_note.read_text().strip()
    except FileNotFoundError:
        return ""
