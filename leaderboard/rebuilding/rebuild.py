"""Rebuilds an empty database from the checkpoint store, before the service answers calls."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from leaderboard.checkpoints.manifest_check import Expected, first_problem
from leaderboard.rebuilding.derivation import DerivedAgent, DerivedTournament, derived_tournaments
from leaderboard.score_histories import ScoreHistories
from leaderboard.store import records
from leaderboard.store.known_records import is_empty
from leaderboard.store.records import Generation
from leaderboard.updater import candidate_of, record
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.manifest import LARGEST_MANIFEST_BYTES, manifest_from_bytes
from podrace.checkpoint_store.store import ARCHIVE_PREFIX, BACKUP_PREFIX, CheckpointStore
from podrace.database import Database, Transaction
from podrace.errors import DataLoss, NotFound, ResourceExhausted, Unimplemented
from podrace.leaderboard.v1.leaderboard_pb2 import SubmitCandidateRequest

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Rebuilt:
    """What was recorded of a tournament."""

    tournament_id: str
    agents: int
    candidates: int
    refused: int
    """Scored checkpoints that contradict their agent or themselves."""


async def rebuild(state: Database, store: CheckpointStore) -> list[Rebuilt]:
    """Records what can be derived from the store, if the database has no tournament; returns what was recorded.

    A database with a tournament is left as it is, so a repetition has no effect. All is one transaction: the garbage
    collection would delete the checkpoints of tournaments that an interrupted rebuild had left out.

    Raises:
        PodraceError: The store cannot be read, or the database cannot be written; nothing was recorded.
    """
    if not await state.transact(is_empty):
        return []
    manifests = await asyncio.to_thread(read_manifests, store)
    derived = derived_tournaments(manifests)
    rebuilt = await state.transact(record_all, derived, manifests)
    for tournament, done in zip(derived, rebuilt, strict=True):
        _log.warning(
            "tournament rebuilt from the checkpoint store",
            tournament_id=done.tournament_id,
            agents=done.agents,
            candidates=done.candidates,
            refused=done.refused,
            lost="; ".join(tournament.lost),
        )
    return rebuilt


def read_manifests(store: CheckpointStore) -> dict[str, Manifest]:
    """Returns all manifests of a store by digest, those of backups and archives excepted. Blocks.

    Reads every object that is not larger than a manifest can be, because the name of an object does not show whether it
    is a manifest. Damaged objects are skipped.
    """
    return dict(_manifests(store))


def _manifests(store: CheckpointStore) -> Iterator[tuple[str, Manifest]]:
    for stored in store.list_objects():
        place = stored.tournament_id
        if stored.size_bytes > LARGEST_MANIFEST_BYTES or place.startswith((BACKUP_PREFIX, ARCHIVE_PREFIX)):
            continue
        with suppress(DataLoss, NotFound, ResourceExhausted, Unimplemented):
            data = store.within(place).get_object(stored.digest, LARGEST_MANIFEST_BYTES)
            if data.startswith(b"{"):
                yield stored.digest, manifest_from_bytes(data)


def record_all(
    transaction: Transaction, derived: Sequence[DerivedTournament], manifests: Mapping[str, Manifest]
) -> list[Rebuilt]:
    """Records tournaments; see record_tournament."""
    return [record_tournament(transaction, one, manifests) for one in derived]


def record_tournament(
    transaction: Transaction, derived: DerivedTournament, manifests: Mapping[str, Manifest]
) -> Rebuilt:
    """Records a tournament; its candidates are judged again in their order, by the rules of every submission."""
    records.add_spec(transaction, derived.tournament_id, derived.spec)
    waiting, histories = list(derived.agents), ScoreHistories()
    numbers = {one.agent.agent_id: one.agent.number for one in waiting}
    refused = 0
    for digest in derived.candidates:
        manifest = manifests[digest]
        while waiting and waiting[0].agent.number <= numbers[manifest.agent_id]:
            _add(transaction, waiting.pop(0))
        generation = records.get_generation(transaction, manifest.agent_id)
        expected = Expected(generation.agent, derived.spec, None, manifest.lease_epoch)
        if first_problem(manifest, expected):
            refused += 1
            continue
        request = SubmitCandidateRequest(request_id=f"rebuilt-{digest}", lease_epoch=manifest.lease_epoch)
        request.checkpoint.agent_id, request.checkpoint.manifest_digest = manifest.agent_id, digest
        # Most have been verified before, and those of an ended tournament could not be verified any more.
        record(transaction, candidate_of(manifest, digest, generation), request, histories, verified=True)
    for agent in waiting:
        _add(transaction, agent)
    return Rebuilt(derived.tournament_id, len(derived.agents), len(derived.candidates) - refused, refused)


def _add(transaction: Transaction, derived: DerivedAgent) -> None:
    position, after = records.next_position(transaction), records.last_sequence(transaction)
    records.add_generation(transaction, Generation(derived.agent, derived.depth, after, position))
