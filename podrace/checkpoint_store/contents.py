"""Lists the agents of a checkpoint store, verifies its objects, and finds unreachable ones, for `podrace store`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store.collect import Reachable, place_of
from podrace.checkpoint_store.manifest import LARGEST_MANIFEST_BYTES, manifest_from_bytes
from podrace.checkpoint_store.publish import read_manifest, read_part
from podrace.checkpoint_store.replay_parts import is_replay
from podrace.checkpoint_store.snapshots import is_snapshot
from podrace.checkpoint_store.store import (
    ARCHIVE_PREFIX,
    BACKUP_PREFIX,
    PROBE_AGENT_ID,
    PROBE_OBJECT,
    SHARED,
    CheckpointStore,
    Place,
    StoredObject,
)
from podrace.digests import digest
from podrace.errors import DataLoss, NotFound, Unimplemented
from podrace.specification.ancestor import tournament_of


@dataclass(frozen=True)
class AgentFiles:
    """The newest checkpoint of an agent, with its size and age."""

    pointer: Pointer
    manifest: Manifest
    """Empty if nothing was published yet or the manifest is damaged."""
    size_bytes: int
    """Manifest and parts together."""
    age_seconds: float | None
    """Time since its publication; None if nothing was published."""
    damage: str = ""
    """Why the manifest cannot be read; empty if it can."""


def list_agents(store: CheckpointStore, now_seconds: float) -> list[AgentFiles]:
    """Reads every pointer and the manifest that it names, but no parts."""
    pointers = (one for one in _pointers(store) if not one.agent_id.startswith((ARCHIVE_PREFIX, BACKUP_PREFIX)))
    return [_agent_files(store, pointer, now_seconds) for pointer in pointers]


def _pointers(store: CheckpointStore) -> list[Pointer]:
    return [pointer for pointer in store.list_pointers() if pointer.agent_id != PROBE_AGENT_ID]


def _agent_files(store: CheckpointStore, pointer: Pointer, now_seconds: float) -> AgentFiles:
    if not pointer.manifest_digest:
        return AgentFiles(pointer, Manifest(), 0, None)
    try:
        manifest = read_manifest(store.within(tournament_of(pointer.agent_id)), pointer.manifest_digest)
    except (DataLoss, NotFound, Unimplemented) as error:
        return AgentFiles(pointer, Manifest(), 0, None, error.message)
    size_bytes = sum(part.size_bytes for part in manifest.parts)
    age = now_seconds - manifest.publish_time.ToNanoseconds() / 1e9 if manifest.HasField("publish_time") else None
    return AgentFiles(pointer, manifest, size_bytes, age)


@dataclass
class Verification:
    """Counts of what was read, and the damage that was found."""

    agents: int = 0
    manifests: int = 0
    objects: int = 0
    size_bytes: int = 0
    damage: list[str] = field(default_factory=list)
    """One line for each damaged object, and for each checkpoint that lacks it."""
    unfinished_writes: int = 0
    """Files in `incoming`, or uploads in parts: of writers that run, or that were killed a short time ago."""


def verify(store: CheckpointStore) -> Verification:
    """Compares every object with its digest, and every manifest with the parts that it lists.

    A missing part of a replay memory is no damage: such parts are optional.
    A checkpoint that a leaderboard is deleting at the same time may appear incomplete.
    """
    found = Verification(unfinished_writes=store.remove_abandoned())
    manifests: dict[Place, Manifest] = {}
    sizes: dict[Place, int] = {}
    for stored in store.list_objects():
        _verify_object(store, stored, sizes, manifests, found)
    for pointer in _pointers(store):
        found.agents += 1
        newest = Place(tournament_of(pointer.agent_id), pointer.manifest_digest)
        if newest.digest and newest not in manifests and Place(SHARED, newest.digest) not in manifests:
            _verify_newest(store, newest, pointer, manifests, found)
    for place, manifest in manifests.items():
        _verify_listed(store, place, manifest, sizes, found)
    found.manifests = len(manifests)
    return found


def _verify_newest(
    store: CheckpointStore, newest: Place, pointer: Pointer, manifests: dict[Place, Manifest], found: Verification
) -> None:
    # The checkpoint may have been published since the objects were listed.
    try:
        manifests[newest] = read_manifest(store.within(newest.tournament_id), newest.digest)
    except (DataLoss, NotFound, Unimplemented) as error:
        found.damage.append(f"newest checkpoint of agent {pointer.agent_id}: {error.message}")


def _verify_object(
    store: CheckpointStore,
    stored: StoredObject,
    sizes: dict[Place, int],
    manifests: dict[Place, Manifest],
    found: Verification,
) -> None:
    try:
        data = store.within(stored.tournament_id).get_object(stored.digest)
    except DataLoss as error:
        found.damage.append(error.message)
        return
    except NotFound:
        return  # deleted since it was listed
    found.objects += 1
    found.size_bytes += len(data)
    sizes[place_of(stored)] = len(data)
    manifest = _manifest_in(data)
    if manifest:
        manifests[place_of(stored)] = manifest


def _verify_listed(
    store: CheckpointStore, place: Place, manifest: Manifest, sizes: Mapping[Place, int], found: Verification
) -> None:
    for part in manifest.parts:
        # Parts are in the folder of their manifest, or in the shared one.
        if part.size_bytes in (sizes.get(Place(folder, part.digest)) for folder in (place.tournament_id, SHARED)):
            continue
        try:
            read_part(store.within(place.tournament_id), part)
        except (DataLoss, NotFound) as error:
            if isinstance(error, NotFound) and is_replay(part):
                continue  # deleted, because the tournament reached its quota of replay memory
            where = f"checkpoint {place.digest[:12]} of agent {manifest.agent_id}"
            found.damage.append(f"{where}: part {part.name!r}: {error.message}")


def _manifest_in(data: bytes) -> Manifest | None:
    if not data.startswith(b"{") or len(data) > LARGEST_MANIFEST_BYTES:
        return None
    try:
        return manifest_from_bytes(data)
    except (DataLoss, Unimplemented):
        return None


@dataclass(frozen=True)
class Garbage:
    """Unreachable objects that are old enough to be deleted."""

    objects: Sequence[StoredObject]
    scored: int
    """Number of manifests kept only because they have a score or are snapshots: a leaderboard may need them."""

    @property
    def size_bytes(self) -> int:
        """Bytes that deleting the objects frees."""
        return sum(stored.size_bytes for stored in self.objects)


def find_garbage(
    store: CheckpointStore, keep: Iterable[str], grace_seconds: float, *, boards_are_gone: bool
) -> Garbage:
    """Finds the unreachable objects, without deleting them.

    Reachable objects are those that `podrace.checkpoint_store.collect` keeps, from `keep` and the pointers. A
    leaderboard also needs the candidates on its boards, the checkpoints that agents start from, and snapshots. The
    first two have a score, and snapshots are marked as such. Unless the boards no longer exist, all these manifests are
    kept with their parts.

    Args:
        store: The store.
        keep: Digests of manifests to keep with their parts.
        grace_seconds: Younger objects are kept.
        boards_are_gone: No leaderboard uses this store any more: scores and snapshots need not be kept.

    Raises:
        DataLoss, NotFound: A manifest to keep cannot be read, so that its parts are unknown.
    """
    # Listed before the pointers are read, so that the list has no objects of publications that finish in between.
    listed = list(store.list_objects())
    old = [stored for stored in listed if stored.age_seconds >= grace_seconds]
    reachable = Reachable(store, listed)
    for name in keep:
        for root in [place_of(stored) for stored in listed if stored.digest == name] or [Place(SHARED, name)]:
            reachable.add(root)
    reachable.add_pointers()
    scored = 0
    if not boards_are_gone:
        # Also those that are too young to be deleted, because their parts may be old.
        for stored in listed:
            if place_of(stored) not in reachable.kept and _is_needed(store, stored):
                scored += 1
                reachable.add(place_of(stored))
    kept = reachable.kept | {Place(SHARED, digest(PROBE_OBJECT))}
    return Garbage([stored for stored in old if place_of(stored) not in kept], scored)


def _is_needed(store: CheckpointStore, stored: StoredObject) -> bool:
    if stored.size_bytes > LARGEST_MANIFEST_BYTES:
        return False
    try:
        manifest = _manifest_in(store.within(stored.tournament_id).get_object(stored.digest))
    except (DataLoss, NotFound):
        return False  # unusable, so it need not be kept
    return manifest is not None and (manifest.HasField("evaluation") or is_snapshot(manifest))


def delete_garbage(store: CheckpointStore, garbage: Garbage, grace_seconds: float) -> list[StoredObject]:
    """Deletes garbage, except objects that were put again since it was found; returns the objects deleted."""
    return [
        stored
        for stored in garbage.objects
        if store.within(stored.tournament_id).delete_object(stored.digest, grace_seconds)
    ]
