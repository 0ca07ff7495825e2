"""Deletes objects of a store that nothing refers to. Called only by the leaderboard.

Kept are the roots that the caller names (board, pins, parents of unfinished agents) with their parts, and for each
pointer its manifest and the previous manifest, both with their parts. The predecessor of the previous manifest is not
kept; otherwise the chain of manifests would keep every object. All other objects that are older than the grace age are
deleted. The grace age must exceed the duration of the longest publication, because nothing refers to its objects until
its last step.

Each tournament has its own folder of objects. A manifest keeps the objects of the folder that it is in. What is not
there is kept in the shared folder, where podrace 0.1.0 stored the objects of all tournaments.

The caller may name files that are not kept although a manifest or a pointer lists them: parts of replay memories, and
checkpoints of ended agents that exceed a quota.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from podrace.checkpoint_store.publish import read_manifest
from podrace.checkpoint_store.store import SHARED, CheckpointStore, Place, StoredObject
from podrace.errors import DataLoss, NotFound
from podrace.specification.ancestor import tournament_of

_log = structlog.get_logger(__name__)


def collect(store: CheckpointStore, roots: Iterable[Place], grace_seconds: float) -> list[str]:
    """Deletes unreachable objects and returns their digests.

    Args:
        store: The store as a whole.
        roots: Manifests to keep with their parts.
        grace_seconds: Younger objects are kept, whether reachable or not.

    Raises:
        DataLoss: The manifest of a root or a pointer is damaged, so that its parts are unknown; nothing was deleted.
        NotFound: The manifest of a root is not in the store; nothing was deleted.
    """
    found = survey(store, list(store.list_objects()), roots, grace_seconds)
    if found.missing:
        missing = min(place.digest for place in found.missing)
        raise NotFound(f"manifest {missing} is not in {store.uri}; nothing was deleted")
    return delete(store, found, grace_seconds)


@dataclass(frozen=True)
class Survey:
    """The unreachable objects of a store, and the roots that are missing from it."""

    garbage: Sequence[Place]
    """The unreachable objects that are older than the grace age."""
    missing: frozenset[Place]
    """Roots that are not in the store. Their parts are unknown and can no longer be read."""
    kept_bytes: Mapping[str, int]
    """Bytes of the objects that are not garbage, by tournament; of the shared folder under an empty id."""


def survey(
    store: CheckpointStore,
    listed: Sequence[StoredObject],
    roots: Iterable[Place],
    grace_seconds: float,
    *,
    dropped: Collection[Place] = (),
    replaceable: Callable[[str], bool] = lambda _: False,
    foreign: Callable[[str], bool] = lambda _: False,
) -> Survey:
    """Finds what `collect` would delete, without deleting it. A missing root is reported and keeps nothing.

    Args:
        store: The store as a whole.
        listed: All its objects. They are listed before the pointers are read, so that the list has no objects of
            publications that finish in between.
        roots: Manifests to keep with their parts.
        grace_seconds: Younger objects are kept.
        dropped: Files that are not kept although a root or a pointer lists them.
        replaceable: Whether the newest checkpoint of an agent may have been deleted on purpose, by the agent's id.
        foreign: Whether it is unknown what is needed of a tournament, by its id. Its objects are kept, and so is the
            shared folder if it has an agent: podrace 0.1.0 stored the objects of all tournaments there.

    Raises:
        DataLoss: The manifest of a root or a pointer is damaged, so that its parts are unknown.
    """
    reachable, missing = Reachable(store, listed), set[Place]()
    for root in roots:
        try:
            reachable.add(root)
        except NotFound:
            missing.add(root)
    reachable.add_pointers(replaceable)
    kept = reachable.kept - set(dropped)
    spared = _spared(listed, reachable.tournaments, foreign)
    garbage: list[Place] = []
    kept_bytes: Counter[str] = Counter()
    for stored in listed:
        collected = stored.age_seconds >= grace_seconds and stored.tournament_id not in spared
        if collected and (place := place_of(stored)) not in kept:
            garbage.append(place)
        else:
            kept_bytes[stored.tournament_id] += stored.size_bytes
    return Survey(garbage, frozenset(missing), kept_bytes)


def _spared(
    listed: Iterable[StoredObject], with_agents: Iterable[str], foreign: Callable[[str], bool]
) -> Collection[str]:
    """Returns the tournaments in whose folders nothing is garbage."""
    spared = {name for name in {stored.tournament_id for stored in listed} - {SHARED} if foreign(name)}
    return spared | {SHARED} if any(foreign(name) for name in with_agents) else spared


def delete(
    store: CheckpointStore, found: Survey, grace_seconds: float, check_leads: Callable[[], None] = lambda: None
) -> list[str]:
    """Deletes the garbage of a survey, except objects that were put again since; returns the digests deleted.

    Unfinished writes of killed writers are removed as well.

    Args:
        store: The store as a whole.
        found: The survey.
        grace_seconds: Younger objects are kept.
        check_leads: Called before each deletion. Another leader may need what was not needed at the survey. A process
            that is stopped after this check still deletes one object.

    Raises:
        PodraceError: That of `check_leads`; nothing more was deleted.
    """
    check_leads()
    store.remove_abandoned()
    deleted: list[str] = []
    for place in found.garbage:
        check_leads()
        if store.within(place.tournament_id).delete_object(place.digest, grace_seconds):
            deleted.append(place.digest)
    return deleted


def place_of(stored: StoredObject) -> Place:
    """Returns where an object that was listed is."""
    return Place(stored.tournament_id, stored.digest)


class Reachable:
    """Collects the objects that manifests and pointers refer to.

    reachable = Reachable(store, store.list_objects())
    reachable.add(root)
    reachable.add_pointers()
    garbage = [stored for stored in listed if place_of(stored) not in reachable.kept]
    """

    def __init__(self, store: CheckpointStore, listed: Iterable[StoredObject]) -> None:
        """Starts with no object.

        Args:
            store: The store as a whole.
            listed: All its objects, listed before.
        """
        self._store = store
        self._listed = {place_of(stored) for stored in listed}
        self.kept: set[Place] = set()
        self.tournaments: set[str] = set()
        """Tournaments of the agents that have a pointer."""

    def add(self, root: Place) -> None:
        """Adds a manifest and its parts.

        Raises:
            DataLoss: The manifest is damaged, so its parts are unknown.
            NotFound: It is not in the store.
        """
        manifest = read_manifest(self._store.within(root.tournament_id), root.digest)
        for name in (root.digest, *(part.digest for part in manifest.parts)):
            own = Place(root.tournament_id, name)
            self.kept.add(own)
            if own not in self._listed:
                self.kept.add(Place(SHARED, name))

    def add_pointers(self, replaceable: Callable[[str], bool] = lambda _: False) -> None:
        """Adds the manifest and the previous manifest of each pointer. A missing manifest is logged and keeps nothing.

        Args:
            replaceable: Whether the newest checkpoint of an agent may be missing on purpose, by the agent's id.

        Raises:
            DataLoss: The newest manifest of an agent is damaged, so its parts are unknown.
        """
        for pointer in self._store.list_pointers():
            tournament_id = tournament_of(pointer.agent_id)
            if tournament_id:
                self.tournaments.add(tournament_id)
            if pointer.manifest_digest:
                try:
                    self.add(Place(tournament_id, pointer.manifest_digest))
                except NotFound as error:
                    # Its parts cannot be read any more, and one lost file must not fill the disk with others.
                    if not replaceable(pointer.agent_id):
                        _log.error(
                            "the newest checkpoint of an agent is lost", agent_id=pointer.agent_id, error=error.message
                        )
            if pointer.manifest_digest and pointer.previous_manifest_digest:
                # A previous manifest that cannot be read is of no use to a reader either.
                with suppress(DataLoss, NotFound):
                    self.add(Place(tournament_id, pointer.previous_manifest_digest))
