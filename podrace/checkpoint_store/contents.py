"""What lies in a checkpoint store, worked out for `podrace store`: agents, damage, and what nobody can reach."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Pointer
from podrace.checkpoint_store.collect import reachable
from podrace.checkpoint_store.manifest import manifest_from_bytes
from podrace.checkpoint_store.publish import read_manifest, read_part
from podrace.checkpoint_store.snapshots import is_snapshot
from podrace.checkpoint_store.store import PROBE_AGENT_ID, PROBE_OBJECT, CheckpointStore, StoredObject
from podrace.digests import digest
from podrace.errors import DataLoss, NotFound, Unimplemented

MANIFEST_BYTES = 16 * 2**20
"""No manifest is larger; what is larger need not be read to know that it is none."""


@dataclass(frozen=True)
class AgentFiles:
    """The newest checkpoint of an agent."""

    pointer: Pointer
    manifest: Manifest
    """An empty one where there is none yet, or it is damaged."""
    size_bytes: int
    """Manifest and parts together."""
    age_seconds: float | None
    """Since it was published; None where nothing was."""
    damage: str = ""
    """Why the manifest cannot be read; empty if it can."""


def list_agents(store: CheckpointStore, now_seconds: float) -> list[AgentFiles]:
    """Reads every pointer and the manifest it names; no parts."""
    return [_agent_files(store, pointer, now_seconds) for pointer in _pointers(store)]


def _pointers(store: CheckpointStore) -> list[Pointer]:
    return [pointer for pointer in store.list_pointers() if pointer.agent_id != PROBE_AGENT_ID]


def _agent_files(store: CheckpointStore, pointer: Pointer, now_seconds: float) -> AgentFiles:
    if not pointer.manifest_digest:
        return AgentFiles(pointer, Manifest(), 0, None)
    try:
        manifest = read_manifest(store, pointer.manifest_digest)
    except (DataLoss, NotFound, Unimplemented) as error:
        return AgentFiles(pointer, Manifest(), 0, None, error.message)
    size_bytes = sum(part.size_bytes for part in manifest.parts)
    age = now_seconds - manifest.publish_time.ToNanoseconds() / 1e9 if manifest.HasField("publish_time") else None
    return AgentFiles(pointer, manifest, size_bytes, age)


@dataclass
class Verification:
    """What was read, and what is wrong with it."""

    agents: int = 0
    manifests: int = 0
    objects: int = 0
    size_bytes: int = 0
    damage: list[str] = field(default_factory=list)
    """One line for each object that is damaged, and for each checkpoint that misses it."""


def verify(store: CheckpointStore) -> Verification:
    """Reads every object and compares it with its digest, and every manifest with what it lists.

    A checkpoint that a leaderboard is just deleting may look incomplete.
    """
    found = Verification()
    manifests: dict[str, Manifest] = {}
    sizes: dict[str, int] = {}
    for stored in store.list_objects():
        _verify_object(store, stored, sizes, manifests, found)
    for pointer in _pointers(store):
        found.agents += 1
        if pointer.manifest_digest and pointer.manifest_digest not in manifests:
            _verify_newest(store, pointer, manifests, found)
    for manifest_digest, manifest in manifests.items():
        _verify_listed(store, manifest_digest, manifest, sizes, found)
    found.manifests = len(manifests)
    return found


def _verify_newest(
    store: CheckpointStore, pointer: Pointer, manifests: dict[str, Manifest], found: Verification
) -> None:
    # It may have been published since the objects were listed.
    try:
        manifests[pointer.manifest_digest] = read_manifest(store, pointer.manifest_digest)
    except (DataLoss, NotFound, Unimplemented) as error:
        found.damage.append(f"newest checkpoint of agent {pointer.agent_id}: {error.message}")


def _verify_object(
    store: CheckpointStore,
    stored: StoredObject,
    sizes: dict[str, int],
    manifests: dict[str, Manifest],
    found: Verification,
) -> None:
    try:
        data = store.get_object(stored.digest)
    except DataLoss as error:
        found.damage.append(error.message)
        return
    except NotFound:
        return  # collected since it was listed
    found.objects += 1
    found.size_bytes += len(data)
    sizes[stored.digest] = len(data)
    manifest = _manifest_in(data)
    if manifest:
        manifests[stored.digest] = manifest


def _verify_listed(
    store: CheckpointStore, manifest_digest: str, manifest: Manifest, sizes: Mapping[str, int], found: Verification
) -> None:
    for part in manifest.parts:
        if sizes.get(part.digest) == part.size_bytes:
            continue
        try:
            read_part(store, part)
        except (DataLoss, NotFound) as error:
            where = f"checkpoint {manifest_digest[:12]} of agent {manifest.agent_id}"
            found.damage.append(f"{where}: part {part.name!r}: {error.message}")


def _manifest_in(data: bytes) -> Manifest | None:
    if not data.startswith(b"{") or len(data) > MANIFEST_BYTES:
        return None
    try:
        return manifest_from_bytes(data)
    except (DataLoss, Unimplemented):
        return None


@dataclass(frozen=True)
class Garbage:
    """What nobody can reach, old enough to be deleted."""

    objects: Sequence[StoredObject]
    scored: int
    """Manifests that are kept only because they carry a score or are snapshots: a leaderboard may need them."""

    @property
    def size_bytes(self) -> int:
        """Room that deleting it gives back."""
        return sum(stored.size_bytes for stored in self.objects)


def find_garbage(
    store: CheckpointStore, keep: Iterable[str], grace_seconds: float, *, boards_are_gone: bool
) -> Garbage:
    """Finds the objects that nobody can reach, without deleting any.

    Reached is what `podrace.checkpoint_store.collect` says, from `keep` and the pointers. What a leaderboard needs
    beyond
    that are candidates on its boards and the checkpoints that agents start from, and both carry a score, and snapshots,
    which say that they are some: unless the boards are gone, all these manifests are kept with their parts.

    Raises:
        DataLoss, NotFound: What is to be kept cannot be read, so that its parts are unknown.
    """
    # Listed before the pointers are read: what a publication adds in between is not in the list.
    old = [stored for stored in store.list_objects() if stored.age_seconds >= grace_seconds]
    kept = reachable(store, keep) | {digest(PROBE_OBJECT)}
    scored = 0
    if not boards_are_gone:
        for stored in old:
            manifest = _needed_manifest(store, stored) if stored.digest not in kept else None
            if manifest:
                scored += 1
                kept |= {stored.digest, *(part.digest for part in manifest.parts)}
    return Garbage([stored for stored in old if stored.digest not in kept], scored)


def _needed_manifest(store: CheckpointStore, stored: StoredObject) -> Manifest | None:
    if stored.size_bytes > MANIFEST_BYTES:
        return None
    try:
        manifest = _manifest_in(store.get_object(stored.digest))
    except (DataLoss, NotFound):
        return None  # nobody could use it
    return manifest if manifest and (manifest.HasField("evaluation") or is_snapshot(manifest)) else None


def delete_garbage(store: CheckpointStore, garbage: Garbage, grace_seconds: float) -> list[StoredObject]:
    """Deletes what was found, but what has become young since; returns what was deleted."""
    return [stored for stored in garbage.objects if store.delete_object(stored.digest, grace_seconds)]
