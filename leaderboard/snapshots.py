"""Owns the snapshots: policies kept at fixed times of a tournament, for learning curves; no decision rests on them.

What stands for an agent, or for the champion, and a number, stands for ever: a pod that lost the answer, or took an
agent over after a crash, may take the same snapshot again and is answered the first.
"""

import asyncio
import math
from collections.abc import Sequence

import prometheus_client
from google.protobuf.duration_pb2 import Duration

from leaderboard.store import pagination, records
from leaderboard.store.records import timestamp
from leaderboard.updater import read_published
from podrace.checkpoint.v1.checkpoint_pb2 import Manifest
from podrace.checkpoint_store.publish import read_manifest, read_part
from podrace.checkpoint_store.snapshots import POLICY_PART, is_snapshot, store_snapshot_of
from podrace.checkpoint_store.store import CheckpointStore, check_digest
from podrace.database import Database, Transaction
from podrace.errors import InvalidArgument, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import (
    Agent,
    Candidate,
    ListSnapshotsRequest,
    ListSnapshotsResponse,
    Snapshot,
    SnapshotChampionRequest,
    SnapshotChampionResponse,
    SubmitSnapshotRequest,
    SubmitSnapshotResponse,
)

SNAPSHOTS = prometheus_client.Counter("podrace_leaderboard_snapshots", "Snapshots kept", ["of"])
_CHAMPION = ""
"""Where an agent's id stands otherwise."""


class SnapshotRecorder:
    """Keeps the snapshots of agents and champions."""

    def __init__(self, state: Database, store: CheckpointStore) -> None:
        self._state, self._store = state, store

    async def submit(self, request: SubmitSnapshotRequest) -> SubmitSnapshotResponse:
        """Takes note of an agent's snapshot.

        Raises:
            InvalidArgument: The request is incomplete, or the manifest is not a snapshot of the named agent.
            NotFound: The agent was never generated here, or the manifest is not in the store.
            DataLoss: The manifest is damaged (BAD_DIGEST).
            FailedPrecondition: The agent was since handed to another pod (STALE_EPOCH).
        """
        check_digest(request.checkpoint.manifest_digest)
        running_seconds = _checked("SubmitSnapshot", request.number, request.running_duration)
        known = await self._state.transact(_kept_or_agent, request)
        if isinstance(known, Snapshot):
            return SubmitSnapshotResponse(snapshot=known)
        manifest = await asyncio.to_thread(read_published, self._store, request)
        draft = snapshot_of(manifest, request.checkpoint.manifest_digest, known)
        draft.number = request.number
        draft.running_duration.FromNanoseconds(round(running_seconds * 1e9))
        return SubmitSnapshotResponse(snapshot=await self._keep(draft))

    async def champion(self, request: SnapshotChampionRequest) -> SnapshotChampionResponse:
        """Takes the snapshot of the board's best as of now.

        Raises:
            InvalidArgument: The request is incomplete.
            NotFound, DataLoss: The best one's manifest is not in the store, or damaged.
        """
        running_seconds = _checked("SnapshotChampion", request.number, request.running_duration)
        known, manifest_digest = await self._store_best(request)
        if known is None:
            return SnapshotChampionResponse()
        if isinstance(known, Snapshot):
            return SnapshotChampionResponse(snapshot=known)
        draft = Snapshot(
            manifest_digest=manifest_digest,
            tournament_id=known.tournament_id,
            agent_id=known.agent_id,
            algorithm=known.algorithm,
            champion=True,
            number=request.number,
            environment_steps=known.environment_steps,
            agent_environment_steps=known.agent_environment_steps,
            tournament_environment_steps=request.environment_steps,
        )
        draft.running_duration.FromNanoseconds(round(running_seconds * 1e9))
        return SnapshotChampionResponse(snapshot=await self._keep(draft))

    async def _store_best(self, request: SnapshotChampionRequest) -> tuple[Snapshot | Candidate | None, str]:
        """What stands there already; else the best of now, and the digest of its snapshot, which is stored."""
        gone = ""
        while True:
            known = await self._state.transact(_kept_or_best, request)
            if not isinstance(known, Candidate):
                return known, ""
            try:
                return known, await asyncio.to_thread(_store_champion, self._store, known.candidate_id)
            except NotFound:
                # It may have been driven off the board and collected since; then somebody else is best.
                if known.candidate_id == gone:
                    raise
                gone = known.candidate_id

    async def _keep(self, draft: Snapshot) -> Snapshot:
        kept, new = await self._state.transact(keep, draft)
        if new:
            SNAPSHOTS.labels("champion" if kept.champion else "agent").inc()
        return kept


def snapshot_of(manifest: Manifest, manifest_digest: str, agent: Agent) -> Snapshot:
    """The snapshot that a manifest stands for, without its number and time. Pure.

    Raises:
        InvalidArgument: It is no snapshot, or another agent's.
    """
    if not is_snapshot(manifest):
        raise InvalidArgument(f"manifest {manifest_digest}: is no snapshot: its only part must be the policy")
    for name in ("agent_id", "tournament_id", "algorithm"):
        stated, expected = getattr(manifest, name), getattr(agent, name)
        if stated != expected:
            raise InvalidArgument(f"manifest {manifest_digest}: {name} = {stated!r}: expected {expected!r}")
    return Snapshot(
        manifest_digest=manifest_digest,
        tournament_id=agent.tournament_id,
        agent_id=agent.agent_id,
        algorithm=agent.algorithm,
        environment_steps=manifest.lineage_environment_steps,
        agent_environment_steps=manifest.environment_steps,
    )


def _checked(method: str, number: int, running: Duration) -> float:
    """Seconds of the running time."""
    seconds = running.seconds + running.nanos / 1e9
    if number < 1 or seconds < 0 or not math.isfinite(seconds):
        raise InvalidArgument(f"{method}: number = {number} at {seconds:g} s: expected 1 or more at a time from 0 on")
    return seconds


def _store_champion(store: CheckpointStore, candidate_id: str) -> str:
    manifest = read_manifest(store, candidate_id)
    # Put again, because that makes it young: a collection under way may have read what is needed before the snapshot is
    # noted and after its candidate was driven off the board, and spares only what is young.
    for part in manifest.parts:
        if part.name == POLICY_PART:
            store.put_object(read_part(store, part))
    return store_snapshot_of(store, candidate_id, manifest)


# --- what is remembered ------------------------------------------------------------------------------------------


def find(transaction: Transaction, tournament_id: str, subject: str, number: int) -> Snapshot | None:
    """What stands for an agent (or, with an empty id, for the champion) and a number."""
    rows = transaction.execute(
        "SELECT snapshot FROM snapshots WHERE tournament_id = ? AND subject = ? AND number = ?",
        tournament_id,
        subject,
        number,
    )
    return Snapshot.FromString(rows[0][0]) if rows else None


def _kept_or_agent(transaction: Transaction, request: SubmitSnapshotRequest) -> Snapshot | Agent:
    agent = records.get_generation(transaction, request.checkpoint.agent_id).agent
    return find(transaction, agent.tournament_id, agent.agent_id, request.number) or agent


def _kept_or_best(transaction: Transaction, request: SnapshotChampionRequest) -> Snapshot | Candidate | None:
    kept = find(transaction, request.tournament_id, _CHAMPION, request.number)
    return kept or next(iter(records.read_board(transaction, request.tournament_id)), None)


def keep(transaction: Transaction, draft: Snapshot) -> tuple[Snapshot, bool]:
    """Remembers a snapshot unless one stands there already; returns what stands there, and whether it is this one."""
    subject = _CHAMPION if draft.champion else draft.agent_id
    kept = find(transaction, draft.tournament_id, subject, draft.number)
    if kept:
        return kept, False
    last = transaction.execute("SELECT coalesce(max(sequence), 0) FROM snapshots")[0][0]
    snapshot = Snapshot(sequence=int(last) + 1, create_time=timestamp(transaction.now))
    snapshot.MergeFrom(draft)
    transaction.execute(
        "INSERT INTO snapshots (sequence, tournament_id, subject, number, manifest_digest, total_steps, snapshot)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        snapshot.sequence,
        snapshot.tournament_id,
        subject,
        snapshot.number,
        snapshot.manifest_digest,
        snapshot.tournament_environment_steps if snapshot.champion else None,
        snapshot.SerializeToString(),
    )
    return snapshot, True


def page_of_snapshots(transaction: Transaction, request: ListSnapshotsRequest) -> ListSnapshotsResponse:
    """A page of the snapshots of a tournament by arrival; a tournament that is not known has none.

    Raises:
        InvalidArgument: The page token is not one of this list.
    """
    page = pagination.asked_for(request)
    # Who counts the steps of all agents asks for the champion's snapshot: an agent's of the same number is as old.
    rows = transaction.execute(
        "SELECT own.snapshot, champions.total_steps FROM snapshots AS own LEFT JOIN snapshots AS champions"
        " ON champions.tournament_id = own.tournament_id AND champions.subject = ? AND champions.number = own.number"
        " WHERE own.tournament_id = ? AND own.sequence > ? ORDER BY own.sequence LIMIT ?",
        _CHAMPION,
        request.tournament_id,
        page.after,
        page.size + 1,
    )
    found = [_with_total(Snapshot.FromString(data), total) for data, total in rows]
    token = pagination.token_after(request, found[page.size - 1].sequence) if len(found) > page.size else ""
    return ListSnapshotsResponse(snapshots=found[: page.size], next_page_token=token)


def _with_total(snapshot: Snapshot, total_steps: int | None) -> Snapshot:
    snapshot.tournament_environment_steps = total_steps or 0
    return snapshot


def manifests_of(transaction: Transaction, tournament_id: str) -> Sequence[str]:
    """Digests of the manifests of a tournament's snapshots."""
    rows = transaction.execute("SELECT DISTINCT manifest_digest FROM snapshots WHERE tournament_id = ?", tournament_id)
    return [manifest_digest for (manifest_digest,) in rows]
