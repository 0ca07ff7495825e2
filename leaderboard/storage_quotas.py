"""Finds what exceeds the quotas of tournaments in the checkpoint store, for the garbage collection.

A tournament has two quotas. Within `assignment.tournament_replay_bytes`, and within what
`assignment.tournament_checkpoint_bytes` leaves for them, replay memories are reduced to samples
(leaderboard.ranking.replay_quota). What still exceeds the second one are whole checkpoints, which are deleted
(leaderboard.ranking.checkpoint_quota).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from leaderboard.evolution import STRATEGIES
from leaderboard.ranking.board import trial_key
from leaderboard.ranking.checkpoint_quota import Cut, Files, Group, cut_to
from leaderboard.ranking.replay_quota import Memory, beyond_quota
from leaderboard.ranking.retention import TournamentRecord
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest, Part
from podrace.checkpoint_store.manifest import LARGEST_MANIFEST_BYTES, manifest_from_bytes
from podrace.checkpoint_store.replay_parts import is_replay
from podrace.checkpoint_store.store import SHARED, CheckpointStore, ObjectTooLarge, Place
from podrace.errors import DataLoss, NotFound
from podrace.specification.ancestor import tournament_of
from podrace.specification.resolve import TOURNAMENT_REPLAY_BYTES
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

NEWEST = "newest checkpoints of ended agents"
SUBMISSIONS = "last submissions of ended agents off the board"
SNAPSHOTS = "snapshots"


@dataclass(frozen=True)
class QuotaPlan:
    """The quotas of a tournament, and the checkpoints that are kept within them."""

    tournament_id: str
    """The tournament."""
    replay_bytes: int
    """`assignment.tournament_replay_bytes`."""
    checkpoint_bytes: int
    """`assignment.tournament_checkpoint_bytes`; 0: no limit."""
    startable: Sequence[str]
    """Digests of the manifests of candidates that the next agent may start from."""
    others: Sequence[str]
    """Digests of other manifests that are kept."""
    submissions: Mapping[str, str] = field(default_factory=dict)
    """Of the others: last submissions that may be deleted once their agent has ended, oldest first; ids of the agents
    by digest."""
    snapshots: Sequence[str] = ()
    """Of the others: snapshots, oldest first."""


@dataclass(frozen=True)
class Excess:
    """What exceeds the quotas."""

    dropped: set[Place] = field(default_factory=set)
    """Files that are deleted although a checkpoint or a pointer lists them."""
    unneeded: set[Place] = field(default_factory=set)
    """Manifests that are deleted, or were deleted earlier because of the quota."""
    cuts: dict[str, Cut] = field(default_factory=dict)
    """What is deleted of each tournament that has `checkpoint_bytes`, and what is left."""


def quota_plan(
    tournament_id: str, spec: TournamentSpec, record: TournamentRecord, retained: Collection[str]
) -> QuotaPlan:
    """Returns the plan of a tournament.

    Args:
        tournament_id: The tournament.
        spec: Its specification.
        record: What retention decides on.
        retained: Ids of the candidates and snapshots that keep their files.
    """
    assignment, startable = spec.assignment, {one.candidate_id for one in (*record.board, *record.visible)}
    stated = assignment.HasField("tournament_replay_bytes")
    others = [name for name in retained if name not in startable]
    snapshots = [name for name in record.snapshots if name in others]
    # The champion may be the newest submission of a trial on the board, and former leaders of games stay opponents.
    trials, kept = {trial_key(candidate) for candidate in record.board}, {*snapshots, *record.leaders}
    past = {one.candidate_id: one.agent_id for one in record.submissions if trial_key(one) not in trials}
    past = {name: agent_id for name, agent_id in past.items() if name in others and name not in kept}
    return QuotaPlan(
        tournament_id,
        assignment.tournament_replay_bytes if stated else TOURNAMENT_REPLAY_BYTES,
        assignment.tournament_checkpoint_bytes,
        [name for name in retained if name in startable],
        others,
        past if _starts_on_board(spec) else {},
        snapshots,
    )


def _starts_on_board(spec: TournamentSpec) -> bool:
    """Whether agents start from candidates on the board alone."""
    strategy = STRATEGIES[spec.evolution.strategy]
    return not (strategy.reads_history or strategy.fold or spec.evolution.generator)


def beyond_quotas(
    store: CheckpointStore, plans: Iterable[QuotaPlan], starting: Collection[Place], unfinished: Collection[str]
) -> Excess:
    """Returns what no longer fits. Blocks.

    Args:
        store: The store as a whole.
        plans: The plan of each tournament.
        starting: Manifests that unfinished agents start from, and others that are needed in any case.
        unfinished: Ids of the unfinished agents.
    """
    reader = _Reader(store)
    running: defaultdict[str, set[str]] = defaultdict(set)
    ended: defaultdict[str, list[str]] = defaultdict(list)
    for root in starting:
        running[root.tournament_id].add(root.digest)
    for pointer in store.list_pointers():
        published = [name for name in (pointer.manifest_digest, pointer.previous_manifest_digest) if name]
        tournament_id = tournament_of(pointer.agent_id)
        if pointer.agent_id in unfinished:
            running[tournament_id].update(published)
        else:
            ended[tournament_id] += published
    excess = Excess()
    for plan in plans:
        name = plan.tournament_id
        one = _Tournament(reader, plan, running[name], ended[name], unfinished)
        pieces = one.pieces_beyond()
        excess.dropped.update(Place(name, piece) for piece in pieces)
        # Tournaments of podrace 0.1.0 may have a part in the shared folder in common.
        excess.dropped.update(Place(SHARED, piece) for piece in pieces)
        if plan.checkpoint_bytes:
            one.cut(pieces, excess)
    kept = {part.digest for name, roots in running.items() for root in roots for part in reader.memory(name, root)}
    excess.dropped.difference_update([Place(SHARED, name) for name in kept])
    return excess


@dataclass(frozen=True)
class _Tournament:
    """Applies the quotas of one tournament."""

    reader: "_Reader"
    plan: QuotaPlan
    running: Collection[str]
    """Manifests of unfinished agents, and others that are needed in any case."""
    ended: Sequence[str]
    """Manifests that pointers of ended agents name."""
    unfinished: Collection[str]
    """Ids of the unfinished agents."""

    def pieces_beyond(self) -> set[str]:
        """Returns the digests of the pieces of replay memories that do not fit."""
        plan, quota = self.plan, self.plan.replay_bytes
        if plan.checkpoint_bytes:
            every: dict[str, int] = {}
            for name in chain(plan.startable, plan.others, self.running, self.ended):
                every |= self._files(name, replay=False)
            quota = min(quota, max(0, plan.checkpoint_bytes - sum(every.values())))
        tiers = [self._memories(names) for names in (plan.startable, plan.others, self.ended)]
        return beyond_quota(self._memories(self.running), tiers, quota)

    def cut(self, pieces: Collection[str], excess: Excess) -> None:
        """Adds the checkpoints that do not fit, and those that were deleted earlier."""
        plan = self.plan
        submissions = [name for name, agent_id in plan.submissions.items() if agent_id not in self.unfinished]
        # An unfinished agent may need any of them, for instance because it starts from it.
        protected = ({*plan.startable, *plan.others} - {*submissions, *plan.snapshots}) | {*self.running}
        groups = [
            self._group(NEWEST, self.ended, {*protected, *plan.submissions, *plan.snapshots}, pieces),
            self._group(SUBMISSIONS, submissions, protected, pieces),
            self._group(SNAPSHOTS, plan.snapshots, protected, pieces),
        ]
        found = cut_to([self._files(name, pieces) for name in protected], groups, plan.checkpoint_bytes)
        own = plan.tournament_id
        excess.dropped.update(Place(own, name) for name in found.files)
        gone = {name for name in (*plan.submissions, *plan.snapshots) if self.reader.is_missing(own, name)}
        excess.unneeded.update(Place(own, name) for name in (found.checkpoints.keys() | gone) - protected)
        excess.cuts[own] = found

    def _group(self, what: str, names: Iterable[str], protected: Collection[str], pieces: Collection[str]) -> Group:
        own = self.plan.tournament_id
        free = [name for name in names if name not in protected and self.reader.is_readable(own, name)]
        return Group(what, {name: self._files(name, pieces) for name in free})

    def _files(self, name: str, without: Collection[str] = (), *, replay: bool = True) -> Files:
        found = self.reader.read(self.plan.tournament_id, name)
        if found is None:
            return {}
        parts = {part.digest: part.size_bytes for part in found.parts if replay or not is_replay(part)}
        return {name: found.size_bytes, **{key: size for key, size in parts.items() if key not in without}}

    def _memories(self, names: Iterable[str]) -> list[Memory]:
        return [self.reader.memory(self.plan.tournament_id, name) for name in names]


@dataclass(frozen=True)
class _Checkpoint:
    """What a manifest says about the files of a checkpoint. The rest of it takes ten times the memory."""

    size_bytes: int
    """Of the manifest itself."""
    parts: Sequence[Part]


class _Reader:
    """Reads manifests, each once."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._found: dict[Place, _Checkpoint | None] = {}
        self._missing: set[Place] = set()

    def read(self, tournament_id: str, name: str) -> _Checkpoint | None:
        """Returns what a manifest lists; None if it cannot be read."""
        root = Place(tournament_id, name)
        if root not in self._found:
            self._found[root] = self._read(root)
        return self._found[root]

    def is_readable(self, tournament_id: str, name: str) -> bool:
        """Whether a manifest can be read."""
        return self.read(tournament_id, name) is not None

    def is_missing(self, tournament_id: str, name: str) -> bool:
        """Whether a manifest is missing from the store; a damaged one is not missing."""
        return not self.is_readable(tournament_id, name) and Place(tournament_id, name) in self._missing

    def memory(self, tournament_id: str, name: str) -> list[Part]:
        """Returns the parts of the replay memory of a manifest; none if it cannot be read."""
        found = self.read(tournament_id, name)
        return [part for part in found.parts if is_replay(part)] if found else []

    def _read(self, root: Place) -> _Checkpoint | None:
        try:
            content = self._store.within(root.tournament_id).get_object(root.digest, LARGEST_MANIFEST_BYTES)
            return _Checkpoint(len(content), Manifest(parts=manifest_from_bytes(content).parts).parts)
        except NotFound:
            self._missing.add(root)
        except (DataLoss, ObjectTooLarge):
            pass
        return None


def quotas_of(plans: Iterable[QuotaPlan]) -> Mapping[str, int]:
    """Returns the quotas for all checkpoints, by tournament."""
    return {plan.tournament_id: plan.checkpoint_bytes for plan in plans if plan.checkpoint_bytes}
