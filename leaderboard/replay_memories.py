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
from podrace.checkpoint_store.store import CheckpointStore
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
    store: CheckpointStore, plans: Iterable[ReplayPlan], starting: Collection[str], unfinished: Collection[str]
) -> set[str]:
    """Returns the digests of the parts that no longer fit. Blocks.

    Args:
        store: The store.
        plans: The plan of each tournament.
        starting: Digests of the manifests that unfinished agents start from.
        unfinished: Ids of the unfinished agents.
    """
    memories = _MemoryReader(store)
    running: defaultdict[str, list[Memory]] = defaultdict(list)
    ended: defaultdict[str, list[Memory]] = defaultdict(list)
    for manifest_digest in starting:
        running[memories.tournament_of(manifest_digest)].append(memories.read(manifest_digest))
    for pointer in store.list_pointers():
        published = [memories.read(name) for name in (pointer.manifest_digest, pointer.previous_manifest_digest)]
        group = running if pointer.agent_id in unfinished else ended
        group[tournament_of(pointer.agent_id)] += published
    kept = {part.digest for memory in chain(*running.values()) for part in memory}
    dropped: set[str] = set()
    for plan in plans:
        startable, others = ([memories.read(name) for name in names] for names in (plan.startable, plan.others))
        tiers = [startable, others, ended[plan.tournament_id]]
        dropped |= beyond_quota(running[plan.tournament_id], tiers, plan.quota_bytes)
    return dropped - kept


class _MemoryReader:
    """Reads the parts of replay memories, each manifest once."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._found: dict[str, tuple[str, list[Part]]] = {"": ("", [])}

    def read(self, manifest_digest: str) -> Memory:
        """Returns the parts of a replay memory; none if the manifest cannot be read."""
        return self._read(manifest_digest)[1]

    def tournament_of(self, manifest_digest: str) -> str:
        """Returns the id of the tournament of a manifest; empty if it cannot be read."""
        return self._read(manifest_digest)[0]

    def _read(self, manifest_digest: str) -> tuple[str, list[Part]]:
        if manifest_digest not in self._found:
            try:
                manifest = read_manifest(self._store, manifest_digest)
            except (DataLoss, NotFound):
                return self._found[""]
            parts = [part for part in manifest.parts if is_replay(part)]
            self._found[manifest_digest] = manifest.tournament_id, parts
        return self._found[manifest_digest]
