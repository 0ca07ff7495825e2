"""Finds the pieces of replay memories that exceed the quotas of their tournaments, for the garbage collection."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from leaderboard.ranking.replay_quota import Memory, beyond_quota
from leaderboard.ranking.retention import TournamentRecord
from podrace.checkpoint.v1.checkpoint_pb2 import Part
from podrace.checkpoint_store.publish import read_manifest
from podrace.checkpoint_store.replay_parts import is_replay
from podrace.checkpoint_store.store import SHARED, CheckpointStore, Place
from podrace.errors import DataLoss, NotFound
from podrace.specification.ancestor import tournament_of
from podrace.specification.resolve import TOURNAMENT_REPLAY_BYTES
from podrace.tournament.v1.tournament_pb2 import TournamentSpec


@dataclass(frozen=True)
class ReplayPlan:
    """The quota of a tournament, and the checkpoints whose replay memories are kept within it."""

    tournament_id: str
    """The tournament."""
    quota_bytes: int
    """`assignment.tournament_replay_bytes`."""
    startable: Sequence[str]
    """Digests of the manifests of candidates that the next agent may start from."""
    others: Sequence[str]
    """Digests of other manifests that are kept."""


def replay_plan(
    tournament_id: str, spec: TournamentSpec, record: TournamentRecord, retained: Collection[str]
) -> ReplayPlan:
    """Returns the plan of a tournament.

    Args:
        tournament_id: The tournament.
        spec: Its specification.
        record: What retention decides on.
        retained: Ids of the candidates and snapshots that keep their files.
    """
    assignment = spec.assignment
    stated = assignment.HasField("tournament_replay_bytes")
    startable = {candidate.candidate_id for candidate in (*record.board, *record.visible)}
    return ReplayPlan(
        tournament_id,
        assignment.tournament_replay_bytes if stated else TOURNAMENT_REPLAY_BYTES,
        [candidate for candidate in retained if candidate in startable],
        [candidate for candidate in retained if candidate not in startable],
    )


def pieces_beyond_quotas(
    store: CheckpointStore, plans: Iterable[ReplayPlan], starting: Collection[Place], unfinished: Collection[str]
) -> set[Place]:
    """Returns the parts that no longer fit. Blocks.

    Args:
        store: The store as a whole.
        plans: The plan of each tournament.
        starting: Manifests that unfinished agents start from.
        unfinished: Ids of the unfinished agents.
    """
    memories = _MemoryReader(store)
    running: defaultdict[str, list[Memory]] = defaultdict(list)
    ended: defaultdict[str, list[Memory]] = defaultdict(list)
    for root in starting:
        running[root.tournament_id].append(memories.read(root))
    for pointer in store.list_pointers():
        tournament_id = tournament_of(pointer.agent_id)
        published = [pointer.manifest_digest, pointer.previous_manifest_digest]
        group = running if pointer.agent_id in unfinished else ended
        group[tournament_id] += [memories.read(Place(tournament_id, name)) for name in published]
    dropped: set[Place] = set()
    for plan in plans:
        own = plan.tournament_id
        tiers = [[memories.read(Place(own, name)) for name in names] for names in (plan.startable, plan.others)]
        beyond = beyond_quota(running[own], [*tiers, ended[own]], plan.quota_bytes)
        dropped |= {Place(folder, name) for name in beyond for folder in (own, SHARED)}
    # Tournaments of podrace 0.1.0 may have a part in the shared folder in common.
    kept = {part.digest for memory in chain(*running.values()) for part in memory}
    return {place for place in dropped if place.tournament_id != SHARED or place.digest not in kept}


class _MemoryReader:
    """Reads the parts of replay memories, each manifest once."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._found: dict[Place, list[Part]] = {}

    def read(self, root: Place) -> Memory:
        """Returns the parts of the replay memory of a manifest; none if it cannot be read, or the digest is empty."""
        if root not in self._found:
            self._found[root] = self._read(root) if root.digest else []
        return self._found[root]

    def _read(self, root: Place) -> list[Part]:
        try:
            manifest = read_manifest(self._store.within(root.tournament_id), root.digest)
        except (DataLoss, NotFound):
            return []
        return [part for part in manifest.parts if is_replay(part)]
